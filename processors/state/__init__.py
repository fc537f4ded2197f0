"""State of processors: typed objects over one ordered byte map for each task."""

from onceflow.processors.state.faces import ListState, MapState, State

__all__ = ["State", "MapState", "ListState"]
