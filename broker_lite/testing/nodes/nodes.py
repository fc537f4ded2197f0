"""The nodes of one broker: their placement and addresses, stop and start of one node.

It keeps the ports over restarts of the broker, so that clients find each node again. ``routing``
decides which node answers a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from onceflow.broker_lite.testing.nodes.routing import Router
from onceflow.broker_lite.testing.nodes.shared_placement import SharedPlacement, make_nodes

if TYPE_CHECKING:
    from onceflow.broker_lite.net.server import Server
    from onceflow.broker_lite.services import Services
    from onceflow.broker_lite.settings.listeners import Listener


class Nodes:
    """The nodes that one broker in process simulates.

    Args:
        count: Number of nodes.
        first_id: Id of the first (``node.id``); the others follow.
        racks: Racks of the nodes, in order; nodes beyond the list have none.

    Attributes:
        placement: Leaders and replicas; :meth:`begin` makes it for each start of the broker.
        ports: Ports by node id and name of the listener, as of the last start.

    Raises:
        ConfigError: There are too many nodes, or none.
    """

    def __init__(self, count: int, first_id: int, racks: Sequence[str | None] = ()) -> None:
        self._count = count
        self._first_id = first_id
        self._racks = tuple(racks)
        self.ports: dict[tuple[int, str], int] = {}
        self.placement: SharedPlacement = self.begin()

    def begin(self) -> SharedPlacement:
        """Make the placement for a start of the broker, at which all nodes run."""
        self.placement = SharedPlacement(make_nodes(self._count, self._first_id, self._racks))
        return self.placement

    def opened(self, state: Services) -> Router | None:
        """Place the topics of a broker that was opened; return its router, None with one node."""
        self.placement.use(state.topics)
        return None if self.placement.single else Router(state, self.placement)

    def listeners_of(self, listener: Listener) -> list[tuple[int, Listener]]:
        """Return each node's listener: on its former port, or on one after the first node's."""
        found = []
        for node_id in self.placement.nodes:
            distance = node_id - self._first_id
            former = self.ports.get((node_id, listener.name))
            moved = listener.bound(former or (listener.port and listener.port + distance))
            if listener.advertised_port:
                moved = replace(moved, advertised_port=listener.advertised_port + distance)
            found.append((node_id, moved))
        return found

    def note_ports(self, server: Server) -> None:
        """Keep the ports on which the broker listens."""
        for endpoint in server.endpoints:
            self.ports[endpoint.node_id, endpoint.listener.name] = endpoint.listener.port

    async def stop(self, server: Server, node_id: int) -> None:
        """Stop a node: close its listeners, move its leaders, cut its connections.

        Raises:
            PlacementError: The node is unknown.
        """
        await server.close_listeners(node_id)
        self.placement.stop_node(node_id, server.clock())
        server.cut_connections(node_id)
        server.after_event()
        await asyncio.sleep(0)

    async def start(self, server: Server, node_id: int) -> None:
        """Start a stopped node under its old address.

        Raises:
            PlacementError: The node is unknown.
            OSError: Another process has taken its address.
        """
        node = self.placement.nodes.get(node_id)
        if node is not None and not node.running:
            await server.reopen_listeners(node_id)
        self.placement.start_node(node_id, server.clock())
        server.after_event()
