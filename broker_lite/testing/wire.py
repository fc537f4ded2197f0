"""Faults on a broker's connections: answers are cut, slowed or held back; all bytes are captured.

A :class:`WireWatch` belongs to one broker in process and sees each connection from its beginning.
Fault rules choose the answers; ``capture`` writes the file.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from onceflow.broker_lite.testing.capture import Capture
from onceflow.broker_lite.testing.fault_rules import Fault, FaultRule
from onceflow.sdk.protocol.primitives import Buffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from onceflow.broker_lite.net.taps import TappedConnection
    from onceflow.broker_lite.purgatory import Timers
    from onceflow.broker_lite.request_context import ConnectionState, RequestContext

PIECE_MS = 50
"""Time between two pieces of a slow answer."""


class ConnectionWire:
    """One connection and the faults that apply to it.

    Attributes:
        connection: The connection.
        state: The broker's state of the connection.
        shapes: Rules for future answers, by correlation id.
        isolated_by: The rule that holds all bytes back, or None.
    """

    __slots__ = ("_pieces", "_watch", "_withheld", "connection", "isolated_by", "shapes", "state")

    def __init__(
        self, watch: WireWatch, connection: TappedConnection, state: ConnectionState
    ) -> None:
        self._watch = watch
        self._withheld: deque[tuple[list[Buffer], int]] = deque()
        self._pieces: deque[tuple[bytes, int]] = deque()
        self.connection: TappedConnection = connection
        self.state: ConnectionState = state
        self.shapes: dict[int, FaultRule] = {}
        self.isolated_by: FaultRule | None = None

    def received(self, data: bytes) -> None:
        """Capture bytes that the client sent."""
        capture = self._watch.capture
        if capture is not None:
            capture.received(self.state.connection_id, data, self._watch.clock())

    def takes(self, parts: list[Buffer], correlation_id: int) -> bool:
        """Apply the faults to an answer; True if the connection must not send it itself."""
        if self.isolated_by is not None:
            self._withheld.append((parts, correlation_id))
            return True
        rule = self.shapes.pop(correlation_id, None) if self.shapes else None
        if self._pieces or (rule is not None and rule.fault is Fault.SLOW_ANSWER):
            idle = not self._pieces
            self._cut_up(b"".join(parts), rule)
            if idle:
                self._send_piece(self._watch.clock())
            return True
        if rule is not None:
            parts = [b"".join(parts)[: rule.cut_bytes]]
        self._note_sent(parts)
        if rule is not None:
            self.connection.send(parts)
            self.connection.close()
            return True
        return False

    def rejoin(self) -> None:
        """Send the answers that were held back, and hold back no more."""
        self.isolated_by = None
        withheld, self._withheld = self._withheld, deque()
        for parts, correlation_id in withheld:
            if not self.takes(parts, correlation_id):
                self.connection.send(parts)
        self.connection.rejoin()

    def closed(self) -> None:
        """Drop what is left to send, after the connection was closed."""
        self._pieces.clear()
        self._withheld.clear()
        self._watch.forget(self)

    def _note_sent(self, parts: list[Buffer]) -> None:
        capture = self._watch.capture
        if capture is not None:
            data = parts[0] if len(parts) == 1 else b"".join(parts)
            capture.sent(self.state.connection_id, data, self._watch.clock())

    def _cut_up(self, data: bytes, rule: FaultRule | None) -> None:
        if rule is None:  # not slow itself, but must wait for a slow answer before it
            self._pieces.append((data, 0))
            return
        size = max(1, rule.bytes_per_second * PIECE_MS // 1000)
        pause_ms = max(PIECE_MS, 1000 // rule.bytes_per_second)
        for start in range(0, len(data), size):
            self._pieces.append((data[start : start + size], pause_ms))

    def _send_piece(self, now_ms: int) -> None:
        while self._pieces:
            piece, pause_ms = self._pieces[0]
            self._note_sent([piece])
            self.connection.send([piece])
            if not self._pieces:
                return  # send() found the connection closed
            self._pieces.popleft()
            if self._pieces and pause_ms:
                self._watch.schedule(now_ms + pause_ms, self._send_piece)
                return


class WireWatch:
    """All connections of one broker.

    Attributes:
        clock: Returns the broker's wall milliseconds.
        capture: File for all bytes, or None.
        refusal: Whether to reset a new connection to a node, by node id.
    """

    def __init__(self, clock: Callable[[], int], capture: Capture | None = None) -> None:
        self.clock = clock
        self.capture = capture
        self.refusal: Callable[[int], bool] | None = None
        self._timers: Timers | None = None
        self._open: dict[int, ConnectionWire] = {}

    def use(self, timers: Timers) -> None:
        """Use the timers of a broker that starts."""
        self._timers = timers
        self._open.clear()

    def schedule(self, at_ms: int, callback: Callable[[int], None]) -> None:
        """Call a function at a time, on the broker's timers."""
        assert self._timers is not None
        self._timers.schedule(at_ms, callback)

    def opened(
        self, connection: TappedConnection, state: ConnectionState, peer: tuple[str, int]
    ) -> ConnectionWire:
        """Watch a new connection."""
        wire = ConnectionWire(self, connection, state)
        self._open[state.connection_id] = wire
        if self.capture is not None:
            self.capture.opened(state.connection_id, peer, state.local_address, self.clock())
        return wire

    def forget(self, wire: ConnectionWire) -> None:
        """Drop a closed connection."""
        connection_id = wire.state.connection_id
        self._open.pop(connection_id, None)
        if self.capture is not None:
            self.capture.closed(connection_id, self.clock())

    def shape(self, context: RequestContext, rule: FaultRule) -> None:
        """Apply a rule to the answer of a request."""
        wire = self._open.get(context.connection_id)
        if wire is not None:
            wire.shapes[context.connection.correlation_id] = rule

    def refuses(self, node_id: int) -> bool:
        """Whether the fault rules reset a new connection to a node."""
        return self.refusal is not None and self.refusal(node_id)

    def isolate(self, rule: FaultRule) -> None:
        """Hold back all bytes of the connections that a rule selects."""
        for wire in self._open.values():
            if rule.client_id in (None, wire.state.client_id) and rule.node_id in (
                None,
                wire.state.node_id,
            ):
                self._isolate(wire, rule)

    def isolate_connection(self, connection_id: int, rule: FaultRule) -> None:
        """Hold back all bytes of one connection."""
        wire = self._open.get(connection_id)
        if wire is not None:
            self._isolate(wire, rule)

    def rejoin(self, rule: FaultRule) -> None:
        """Let bytes pass again on the connections that a rule isolated."""
        for wire in list(self._open.values()):
            if wire.isolated_by is rule:
                wire.rejoin()

    def _isolate(self, wire: ConnectionWire, rule: FaultRule) -> None:
        if wire.isolated_by is None:
            wire.isolated_by = rule
            wire.connection.isolate()
