"""The server: listeners, connections, and the alarm that runs all timers.

It decides how many connections there may be and how long one may be idle. ``connection`` handles
one connection. The caller passes the clock.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from onceflow.broker_lite.clock import MovableTime, SettableTime, work_clock_ns
from onceflow.broker_lite.net.connection import ClientConnection
from onceflow.broker_lite.net.connection_limits import ConnectionLimits
from onceflow.broker_lite.net.endpoint import Endpoint
from onceflow.broker_lite.net.request_pool import RequestPool
from onceflow.broker_lite.security.listener_security import ListenerSecurity
from onceflow.broker_lite.settings.idle_settings import without_effect
from onceflow.broker_lite.settings.listeners import Listener, check_openness
from onceflow.sdk.errors import ConfigError

if TYPE_CHECKING:
    from onceflow.broker_lite.broker import BrokerState
    from onceflow.broker_lite.net.taps import WireTaps
    from onceflow.broker_lite.purgatory import Timer
    from onceflow.broker_lite.security.jwks import JwksKeys

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.server")

BACKLOG = 128
ACCEPTED_AT_ONCE = 16
"""Connections that are accepted before the limits are checked; fewer than ``HANDLES_KEPT``."""

PORT_ATTEMPTS = 20
"""Most ports that are tried for a host with several addresses, which all get the same port."""

TLS_FILES_PAUSE_MS = 60_000
"""Interval of the check for changed key and certificate files."""


class Server:
    """Any number of listeners on one event loop.

    Attributes:
        broker: The state that handlers share.
        clock: Wall milliseconds.
        loop: The event loop that everything runs on.
        endpoints: The listeners that are open, of every node.
        taps: See the bytes of connections in tests; None otherwise.
        pool: Room for requests in memory; None without a limit.
        handling: True while a request is handled; operations that it wakes run directly after.
    """

    def __init__(
        self,
        broker: BrokerState,
        clock: Callable[[], int],
        let_in: Callable[[asyncio.Server], Awaitable[None]] | None = None,
        taps: WireTaps | None = None,
    ) -> None:
        """Make a server that does not listen yet.

        Args:
            broker: The state that handlers share.
            clock: Wall milliseconds.
            let_in: Begins to accept clients after all listeners are bound; by default with a queue
                of ``BACKLOG``, which needs sockets of the system.
            taps: See the bytes of connections, for tests.
        """
        self.broker = broker
        self.clock = clock
        self.taps = taps
        self._let_in = let_in or _let_in
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.endpoints: list[Endpoint] = []
        limit = broker.config.queued_max_request_bytes
        self.pool: RequestPool | None = RequestPool(limit) if limit > 0 else None
        self._limits = ConnectionLimits(broker.config, broker.log_manager.volume().handles_max)
        self._connections: set[ClientConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_connection_id = 0
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._settle_scheduled = False
        self.handling = False
        self._stopped = False
        self._virtual = isinstance(clock, MovableTime) and clock.stands_still
        if not self._virtual:
            broker.work_clock_ns = work_clock_ns
        broker.dynamic_config.on_change.append(self._limits.apply)

    async def start(
        self,
        listeners: Sequence[Listener],
        listeners_of: Callable[[Listener], Iterable[tuple[int, Listener]]] | None = None,
    ) -> tuple[Listener, ...]:
        """Bind all listeners of the broker, then serve them.

        Args:
            listeners: Where to listen; port 0 takes any free one.
            listeners_of: Returns the nodes that open a listener, each with its address; by default
                the broker's node.

        Returns:
            The same with their ports, of the first node.

        Raises:
            OSError: An address cannot be bound; none is served then.
            ConfigError: A listener is reachable without authentication and this was not allowed,
                or its settings do not fit together.
        """
        check_openness(listeners, allowed=self.broker.config.onceflow_allow_insecure_network)
        for remark in without_effect(self.broker.config, listeners):
            logger.warning("%s", remark)
        try:
            for listener in listeners:
                security = ListenerSecurity(self.broker, listener)
                if security.jwks is not None:
                    await asyncio.to_thread(security.jwks.refresh)
                own = [(self.broker.node_id, listener)]
                for node_id, place in own if listeners_of is None else listeners_of(listener):
                    await self._bind(place, node_id, security)
        except BaseException:
            for endpoint in self.endpoints:
                await endpoint.close()
            raise
        self._begin_upkeep()
        for endpoint in self.endpoints:
            if endpoint.security.jwks is not None:
                self._watch_keys(endpoint.security.jwks, endpoint.security.jwks_refresh_ms)
            for remark in endpoint.remarks():
                logger.warning("%s", remark)
            await self._serve(endpoint)
        self.arm()
        return tuple(
            endpoint.listener
            for endpoint in self.endpoints
            if endpoint.node_id == self.broker.node_id
        )

    def _begin_upkeep(self) -> None:
        """Connect the broker's timers, wakes and clock to the event loop."""
        self.broker.purgatory.on_wake = self._schedule_settle
        if self.broker.log_manager.shared_flush is not None:
            self.broker.log_manager.shared_flush.post = self.loop.call_soon_threadsafe
        if isinstance(self.clock, MovableTime):
            self.clock.subscribe(self._moved)
        if isinstance(self.clock, SettableTime):
            self.clock.on_set = self._clock_set
        if self.broker.config.connections_max_idle_ms >= 0:
            self._schedule_idle_check(self.clock())
        for security in {endpoint.security: None for endpoint in self.endpoints}:
            if security.reads_tls_files:
                self._watch_tls_files(security)

    async def _serve(self, endpoint: Endpoint) -> None:
        assert endpoint.acceptor is not None
        await self._let_in(endpoint.acceptor)

    # --- the listeners of one node, which tests stop and start by itself

    async def close_listeners(self, node_id: int) -> None:
        """Accept no connections on the listeners of a node; open ones stay."""
        for endpoint in self.endpoints:
            if endpoint.node_id == node_id:
                await endpoint.close()

    def cut_connections(self, node_id: int) -> None:
        """Cut every connection of a node."""
        for connection in list(self._connections):
            if connection.state is not None and connection.state.node_id == node_id:
                connection.abort()

    async def reopen_listeners(self, node_id: int) -> None:
        """Bind the listeners of a node again, under their former addresses, and serve them.

        Raises:
            OSError: An address is taken.
        """
        for endpoint in [each for each in self.endpoints if each.node_id == node_id]:
            self.endpoints.remove(endpoint)
            await self._serve(await self._bind(endpoint.listener, node_id, endpoint.security))

    async def _bind(self, listener: Listener, node_id: int, security: ListenerSecurity) -> Endpoint:
        """Bind one listener and return it with its address; it does not serve yet."""
        endpoint = Endpoint(listener, node_id, security)
        port = listener.port
        # `::` includes IPv4, as in Java; asyncio would bind only IPv6 for it.
        host = None if listener.host == "::" else listener.host
        attempts = PORT_ATTEMPTS
        while True:
            try:
                acceptor = await self.loop.create_server(
                    lambda: ClientConnection(self, endpoint),
                    host,
                    port,
                    backlog=ACCEPTED_AT_ONCE,
                    start_serving=False,
                )
            except OSError as error:
                attempts -= 1
                if error.errno != errno.EADDRINUSE or port == listener.port or not attempts:
                    raise
                # Another program has the port on one of the other addresses.
                port = 0
                continue
            bound_port = int(acceptor.sockets[0].getsockname()[1])
            if port or len(acceptor.sockets) == 1:
                break
            # A name with several addresses (localhost) got several ports; bind all with one port.
            acceptor.close()
            port = bound_port
        endpoint.acceptor = acceptor
        endpoint.listener = listener.bound(bound_port)
        self.endpoints.append(endpoint)
        self.broker.listeners[node_id, listener.name] = endpoint.listener
        return endpoint

    async def stop(self, *, abort: bool = False) -> None:
        """Close the listeners and every connection.

        Args:
            abort: Drop answers that were not sent yet.
        """
        self._stopped = True
        for endpoint in self.endpoints:
            await endpoint.close()
        for task in self._tasks:
            task.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        if isinstance(self.clock, MovableTime):
            self.clock.unsubscribe(self._moved)
        if isinstance(self.clock, SettableTime):
            self.clock.on_set = None
        self.broker.purgatory.on_wake = None
        for connection in list(self._connections):
            if abort:
                connection.abort()
            else:
                connection.close()
        # Transports call `connection_lost` in the next turns of the loop.
        for _ in range(3):
            await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)
        self._connections.clear()

    # --- for connections

    def admit(
        self, connection: ClientConnection, endpoint: Endpoint, sock: socket.socket | None
    ) -> bool:
        """Count a new connection; return False if there are too many."""
        if self._stopped:
            return False
        handle = -1 if sock is None else sock.fileno()
        broken = self._limits.admit(endpoint.listener.name, connection.address, handle)
        if broken is not None:
            logger.warning("connection from %s refused: %s reached", connection.address, broken)
            return False
        self._connections.add(connection)
        return True

    def hold_off(self, connection: ClientConnection) -> Timer | None:
        """Return the timer that closes this connection, if its address opens them too fast.

        A client whose connection is closed at once would reconnect at once (KIP-612).
        """
        now_ms = self.clock()
        throttle_ms = self.broker.quotas.connected(connection.address, now_ms)
        if not throttle_ms:
            listener = "" if connection.state is None else connection.state.listener
            if delay_ms := self._limits.delay_ms(listener, now_ms):
                connection.mute(delay_ms)
            return None
        timer = self.broker.timers.schedule(now_ms + throttle_ms, lambda _: connection.abort())
        self.arm()
        return timer

    def forget(self, connection: ClientConnection, endpoint: Endpoint) -> None:
        """Forget an admitted connection that was closed."""
        self._connections.discard(connection)
        self._limits.leave(endpoint.listener.name, connection.address)

    def next_connection_id(self) -> int:
        """Return a new id for a connection."""
        self._last_connection_id += 1
        return self._last_connection_id

    def file_handles(self) -> list[int]:
        """Handles of all sockets that are open."""
        sockets = [
            each
            for endpoint in self.endpoints
            if endpoint.acceptor is not None
            for each in endpoint.acceptor.sockets
        ]
        handles = [each.fileno() for each in sockets]
        return handles + [connection.file_handle for connection in list(self._connections)]

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._connections)

    def settle(self) -> None:
        """Run the operations that the last request woke."""
        while self.broker.purgatory.unsettled:
            try:
                self.broker.settle(self.clock())
            except Exception:  # A bug in one operation must not stop the others.
                logger.exception("a parked request failed")

    def after_event(self) -> None:
        """Finish an event: run woken operations and set the alarm."""
        self.settle()
        self.broker.start_flush()
        self.arm()

    # --- timers

    def run_timers(self) -> None:
        """Run the timers that are due."""
        if self._stopped:
            return
        try:
            self.broker.timers.run_due(self.clock())
        except Exception:  # The failed timer is removed; the others run in the next turn.
            logger.exception("a timer failed")
        self.after_event()

    def _moved(self) -> None:
        """Set the alarm again after the clock was moved by hand."""
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            alarm.cancel()
        self.run_timers()

    def _clock_set(self, forward_ms: int, ahead_ms: int) -> None:
        """Move timeouts after the system's clock was set or the machine slept."""
        if forward_ms:
            logger.warning(
                "the system's clock went forward by %d ms: it was set, or the machine slept",
                forward_ms,
            )
        if ahead_ms:
            logger.warning(
                "the system's clock was set back: the broker's stays %d ms ahead of it until a "
                "restart; nothing is removed by its age before the system's clock says so",
                ahead_ms,
            )
        self.broker.clock_set(forward_ms, ahead_ms)
        for connection in self._connections:
            connection.last_active_ms += forward_ms
        self._alarm_ms += forward_ms

    def arm(self) -> None:
        """Move the alarm to what is due first."""
        if self._virtual or self._stopped:
            return
        deadline_ms = self.broker.timers.next_deadline_ms()
        alarm = self._alarm
        if deadline_ms is None:
            return
        if alarm is not None:
            # An alarm that is too early only costs a look; moving it each time costs more.
            if self._alarm_ms <= deadline_ms:
                return
            alarm.cancel()
        self._alarm_ms = deadline_ms
        delay = (deadline_ms - self.clock()) / 1000 + 0.001
        self._alarm = self.loop.call_later(max(0.0, delay), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self.run_timers()

    def _watch_keys(self, keys: JwksKeys, refresh_ms: int) -> None:
        """Read the keys of tokens again from time to time, and soon when one was missing."""
        from onceflow.broker_lite.security.jwks import MISSING_KEY_PAUSE_MS

        read_ms = self.clock()
        task: asyncio.Task[None] | None = None

        def look(now_ms: int) -> None:
            nonlocal read_ms, task
            due = now_ms - read_ms >= refresh_ms or keys.missing
            if due and (task is None or task.done()):
                read_ms = now_ms
                task = self.loop.create_task(_refresh(keys))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            self.broker.timers.schedule(now_ms + pause_ms, look)

        pause_ms = min(refresh_ms, MISSING_KEY_PAUSE_MS)
        self.broker.timers.schedule(read_ms + pause_ms, look)

    def _watch_tls_files(self, security: ListenerSecurity) -> None:
        """Take renewed certificates without a restart."""
        task: asyncio.Task[None] | None = None

        def look(now_ms: int) -> None:
            nonlocal task
            if (task is None or task.done()) and security.tls_files_changed:
                task = self.loop.create_task(asyncio.to_thread(security.renew_tls))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            self.broker.timers.schedule(now_ms + TLS_FILES_PAUSE_MS, look)

        self.broker.timers.schedule(self.clock() + TLS_FILES_PAUSE_MS, look)

    def _schedule_settle(self) -> None:
        if not self._settle_scheduled and not self.handling:
            self._settle_scheduled = True
            self.loop.call_soon(self._settle_later)

    def _settle_later(self) -> None:
        self._settle_scheduled = False
        if not self._stopped:
            self.after_event()

    def _schedule_idle_check(self, now_ms: int) -> None:
        idle_ms = self.broker.config.connections_max_idle_ms
        oldest_ms = min(
            (connection.last_active_ms for connection in self._connections if not connection.busy),
            default=now_ms,
        )
        self.broker.timers.schedule(max(now_ms + 1, oldest_ms + idle_ms), self._close_idle)

    def _close_idle(self, now_ms: int) -> None:
        idle_ms = self.broker.config.connections_max_idle_ms
        for connection in list(self._connections):
            if not connection.busy and now_ms - connection.last_active_ms >= idle_ms:
                logger.info("connection closed: idle for %d ms", idle_ms)
                connection.expire()
        self._schedule_idle_check(now_ms)


async def _let_in(acceptor: asyncio.Server) -> None:
    """Let clients in; more may queue up than are accepted in one turn of the loop."""
    await acceptor.start_serving()
    for listening in acceptor.sockets:
        with socket.socket(fileno=os.dup(listening.fileno())) as same:
            same.listen(BACKLOG)


async def _refresh(keys: JwksKeys) -> None:
    try:
        await asyncio.to_thread(keys.refresh)
    except ConfigError as error:
        logger.warning("%s", error)
