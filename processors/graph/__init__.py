"""The topology of an application: nodes, edges, checks, and the cut into tasks."""

from onceflow.processors.graph.specs import StoreKind
from onceflow.processors.graph.topology import SubTopology, Topology

__all__ = ["Topology", "SubTopology", "StoreKind"]
