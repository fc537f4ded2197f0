"""Several nodes over one shared log: who leads and coordinates what, and who is told so."""

from onceflow.broker_lite.nodes.placement import Node, Placement, PlacementError

__all__ = ["Node", "Placement", "PlacementError"]
