"""Several nodes over one shared log: placement of leaders and coordinators, routing of requests."""

from onceflow.broker_lite.placement import Node, PlacementError
from onceflow.broker_lite.testing.nodes.nodes import Nodes
from onceflow.broker_lite.testing.nodes.shared_placement import SharedPlacement

__all__ = ["Node", "Nodes", "PlacementError", "SharedPlacement"]
