"""A broker in the current process, for tests, notebooks and demos.

``with Broker() as broker`` runs it in a background thread with its own event loop;
``async with Broker() as broker`` runs it on the caller's loop. It differs from a daemon's broker
only in where it stores data and in a few defaults (``in_process_defaults``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar

from onceflow.broker_lite.clock import MovableTime
from onceflow.broker_lite.log import MemoryStorage, RealStorage, Storage
from onceflow.broker_lite.net.serving import Hooks, Serving
from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.broker_lite.settings.listeners import read_listeners
from onceflow.broker_lite.settings.topic_config import validate_overrides
from onceflow.broker_lite.testing import forks
from onceflow.broker_lite.testing.capture import Capture
from onceflow.broker_lite.testing.disk_watch import DiskWatch
from onceflow.broker_lite.testing.faults import FaultInjector
from onceflow.broker_lite.testing.faulty_storage import with_faults
from onceflow.broker_lite.testing.figures import PartitionFigures, partition_figures
from onceflow.broker_lite.testing.in_process_defaults import IN_PROCESS_DEFAULTS
from onceflow.broker_lite.testing.journal import Journal
from onceflow.broker_lite.testing.loop_thread import LoopThread, check_outside
from onceflow.broker_lite.testing.nodes import Nodes
from onceflow.broker_lite.testing.nodes.moves import coordinator_of, describe_nodes, known_topic
from onceflow.broker_lite.testing.virtual_clock import RunningClock
from onceflow.broker_lite.testing.wire import WireWatch

if TYPE_CHECKING:
    from onceflow.broker_lite.broker import BrokerState
    from onceflow.broker_lite.testing.control import ControlServer

T = TypeVar("T")

CALL_TIMEOUT_SECONDS = 30.0


class Broker:
    """A Kafka broker in this process.

    It listens on a real socket, so any Kafka client can use it. Data stays in memory unless
    ``data`` names a folder. ``docs/kafka-differences.md`` lists what the broker leaves out.

    Args:
        data: Folder for the data, created if missing; None keeps all data in memory.
        host: Address to listen on.
        port: Port to listen on, 0 for any free one. A restart keeps the port.
        listeners: Kafka's ``listeners``, in place of host and port, for several listeners or
            secured ones: ``"PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0"``.
        settings: Broker settings by Kafka's property names; ``in_process_defaults`` lists the
            defaults that differ from a daemon's. A ``BrokerConfig`` is used unchanged.
        nodes: Number of nodes, with ids from ``node.id`` (1) on, each on its own listeners.
            They share one log; partition leaders and coordinators are spread over them. With a
            fixed ``port`` the other nodes use the ports after it.
        racks: The nodes' racks, in order.
        profile: A release of Kafka, such as ``"2.8"`` or ``"4.0"``: the broker serves and announces
            only what that release has. Setting ``onceflow.profile``.
        clock: Returns wall milliseconds. The default follows the system's clock and can be moved
            forward; a ``VirtualClock`` stands still until it is moved.
        seed: Makes ids repeatable; None uses the system's randomness.
        storage: Storage for the data, in place of ``data``; for tests of disk failures.
        journal: Record every request with its answer in :attr:`journal` from the start.
        journal_file: Write the bytes of all connections to this file in Wireshark's format.
        control: Port on 127.0.0.1 for the control endpoint, 0 for any free one; None for no
            endpoint. See ``docs/testing.md``.
        durability: ``kafka`` answers once the operating system has the data (default), ``group``
            after an fsync that all waiting requests share, ``always`` after an fsync of each
            append. Setting ``onceflow.durability``.

    Attributes:
        faults: Rules that make requests, connections and writes fail.
        disk: Whether and why the broker stopped by itself, because an fsync or a change on the
            disk failed.

    Example:
        >>> from onceflow.broker_lite import Broker
        >>> with Broker() as broker:
        ...     broker.create_topic("orders", partitions=3)
    """

    def __init__(
        self,
        data: str | Path | None = None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        listeners: str | None = None,
        settings: Mapping[str, object] | BrokerConfig | None = None,
        nodes: int = 1,
        racks: Sequence[str | None] = (),
        profile: str | None = None,
        clock: Callable[[], int] | None = None,
        seed: int | None = None,
        storage: Storage | None = None,
        journal: bool = False,
        journal_file: str | Path | None = None,
        control: int | None = None,
        durability: str | None = None,
    ) -> None:
        whole = settings if isinstance(settings, BrokerConfig) else None
        properties: dict[str, object] = {}
        if not isinstance(settings, BrokerConfig):
            properties.update(settings or {})
        if profile is not None:
            properties["onceflow.profile"] = profile
        if listeners is not None:
            properties["listeners"] = listeners
        if durability is not None:
            properties["onceflow.durability"] = durability
        self._config = whole or BrokerConfig.from_properties(properties, IN_PROCESS_DEFAULTS)
        self._listeners = read_listeners(self._config, host, port)
        self._nodes = Nodes(nodes, self._config.node_id, racks)
        self._data = None if data is None else Path(data).absolute()
        self._clock: Callable[[], int] = clock or RunningClock()
        self._random = random.Random(seed)
        self._storage = storage
        self._keeps_storage = storage is not None
        self._journal_file = journal_file
        self._wire = WireWatch(self._clock)
        self.faults: FaultInjector = FaultInjector(self._call_if_running, self._clock, self._wire)
        self.faults.recording = journal
        self._control_port = control
        if control is not None:  # only the endpoint needs uvicorn: report a missing one early
            from onceflow.broker_lite.testing import control_calls

            self._make_control = control_calls.make_server
        self._control: ControlServer | None = None
        self._serving: Serving | None = None
        self.disk: DiskWatch = DiskWatch()
        self._thread: LoopThread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    # --- addresses and state

    @property
    def bootstrap_servers(self) -> str:
        """``HOST:PORT`` of the first listener; several nodes are separated by commas.

        Raises:
            RuntimeError: The broker was not started yet.
        """
        return self.bootstrap_servers_of(self._listeners[0].name)

    def bootstrap_servers_of(self, listener: str) -> str:
        """Return ``HOST:PORT`` of a listener; several nodes are separated by commas.

        Args:
            listener: Name, such as ``SASL_SSL``.

        Raises:
            KeyError: No listener has that name.
            RuntimeError: The broker was not started yet.
        """
        found = {each.name: each for each in self._listeners}[listener.upper()]
        if not found.port:
            raise RuntimeError("the broker has no address yet: start it first")
        ports = {key: port for key, port in self._nodes.ports.items() if key[1] == found.name}
        return ",".join(found.bound(ports[key]).address for key in sorted(ports))

    @property
    def listener_names(self) -> tuple[str, ...]:
        """Names of the listeners, in the order of the settings."""
        return tuple(listener.name for listener in self._listeners)

    @property
    def port(self) -> int:
        """The port of the first listener; 0 if any free one was wanted and none is bound yet."""
        return self._listeners[0].port

    @property
    def state(self) -> BrokerState:
        """The broker's internal state, for tests; use it on its own loop only (:meth:`call`).

        Raises:
            RuntimeError: The broker is not running.
        """
        return self._running().state

    @property
    def running(self) -> bool:
        """Whether the broker is started."""
        return self._serving is not None

    @property
    def journal(self) -> Journal:
        """Recorded requests with their answers; a restart keeps them."""
        return self.faults.journal

    @property
    def control_url(self) -> str:
        """Address of the control endpoint.

        Raises:
            RuntimeError: ``control`` was not given, or the broker was not started yet.
        """
        if self._control is None:
            raise RuntimeError("no control endpoint: make the broker with control=0, and start it")
        return f"http://127.0.0.1:{self._control.port}"

    def now_ms(self) -> int:
        """The broker's time, wall milliseconds."""
        return self._clock()

    def describe(self) -> dict[str, object]:
        """Return addresses, cluster id, connections, nodes and topics as plain values."""
        state = None if self._serving is None else self._serving.state
        return {
            "running": state is not None,
            "bootstrap_servers": self.bootstrap_servers if self.port else None,
            "cluster_id": state.cluster_id if state is not None else None,
            "connections": self.connection_count,
            "nodes": {} if state is None else describe_nodes(state, self._nodes.placement),
            "topics": len(state.topics) if state is not None else None,
        }

    @property
    def connection_count(self) -> int:
        """Open connections of clients."""
        return 0 if self._serving is None else self._serving.server.connection_count

    # --- on the caller's loop

    async def start_async(self) -> None:
        """Start on the running loop.

        Raises:
            OSError: The address cannot be bound.
            StorageLockedError: Another broker uses the same folder.
        """
        if self._serving is not None:
            raise RuntimeError("the broker is running already")
        if self._storage is None:
            self._storage = (
                MemoryStorage()
                if self._data is None
                else RealStorage(
                    self._data,
                    durable=self._config.durable,
                    # A move of a clock that stands still waits for the work that it starts.
                    in_background=not getattr(self._clock, "stands_still", False),
                )
            )
        if self._journal_file is not None and self._wire.capture is None:
            self._wire.capture = Capture(self._journal_file)
        nodes = self._nodes
        hooks = Hooks(nodes.begin(), self._opened, self._wire, nodes.listeners_of)
        serving = await Serving.open(
            with_faults(self._storage, self.faults.check_write),
            self._config,
            self._listeners,
            self._clock,
            self._random,
            hooks,
        )
        try:
            await self._open_control()
        except BaseException:
            await serving.stop(clean=False)
            raise
        nodes.note_ports(serving.server)
        self._listeners = serving.listeners
        self._loop = asyncio.get_running_loop()
        self._serving = serving
        forks.watch(self)
        self.disk.begin(serving, lambda: self._stop_serving(serving))

    def _opened(self, state: BrokerState) -> None:
        """Connect fault rules, nodes and connection taps, before the broker listens."""
        self.faults.router = self._nodes.opened(state)
        state.interceptor = self.faults
        self._wire.use(state.timers)

    async def _stop_serving(self, serving: Serving) -> None:
        if self._serving is serving:
            await self.stop_async(clean=False)

    async def _open_control(self) -> None:
        """Open the control endpoint; a restart of the broker keeps it open."""
        if self._control_port is not None and self._control is None:
            control = self._make_control(self)
            await control.start(self._control_port)
            self._control = control

    async def stop_async(self, *, clean: bool = True) -> None:
        """Stop if running; data in memory and the address are kept.

        Args:
            clean: Flush all data. False stops as a crash of the process would.
        """
        serving, self._serving = self._serving, None
        if serving is None:
            return
        self.faults.forget_held()
        await serving.stop(clean=clean)

    async def close_async(self, *, clean: bool = True) -> None:
        """Stop, and close the control endpoint and the journal file.

        Args:
            clean: As for :meth:`stop_async`. A broker in memory starts empty after a clean stop;
                after a crash it still has the data that it acknowledged.
        """
        await self.stop_async(clean=clean)
        if clean and not self._keeps_storage:
            self._storage = None
        control, self._control = self._control, None
        if control is not None:
            await control.stop()
        capture, self._wire.capture = self._wire.capture, None
        if capture is not None:
            capture.close()

    async def __aenter__(self) -> Self:
        await self.start_async()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close_async()

    # --- in a thread

    def start(self) -> Self:
        """Start in a background thread and return when the broker is ready.

        Raises:
            OSError: The address cannot be bound.
            StorageLockedError: Another broker uses the same folder.
        """
        if self._thread is not None:
            raise RuntimeError("the broker is running already")
        self._thread = LoopThread("onceflow-broker")
        self._loop = self._thread.loop
        try:
            self._in_loop(self.start_async())
        except BaseException:
            self._end_thread()
            raise
        return self

    def stop(self) -> None:
        """Stop cleanly if running."""
        self._stop_thread(clean=True)

    def kill(self) -> None:
        """Stop as a crash of the process would, without a flush.

        The next start finds the data that such a crash leaves; a broker in memory loses none.
        """
        self._stop_thread(clean=False)

    def restart(self, *, kill: bool = False) -> None:
        """Stop and start with the same data and address; raises what :meth:`start` raises.

        If the start fails, the broker is stopped and can be started again.

        Args:
            kill: Stop as a crash of the process would, without a flush.
        """

        async def again() -> None:
            await self.stop_async(clean=not kill)
            await self.start_async()

        check_outside(self._loop)
        try:
            self._in_loop(again())
        except BaseException:
            self._stop_thread(clean=False)
            raise

    def _stop_thread(self, *, clean: bool) -> None:
        if self._serving is not None:
            check_outside(self._loop)
        if self._thread is None:
            return
        try:
            self._in_loop(self.close_async(clean=clean))
        finally:
            self._end_thread()

    def _end_thread(self) -> None:
        thread = self._thread
        self._loop = self._thread = None
        if thread is not None:
            thread.end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _in_loop(self, coroutine: Coroutine[object, object, T]) -> T:
        try:
            check_outside(self._loop)
            if self._loop is None:
                raise RuntimeError("the broker is not running")
        except RuntimeError:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # --- several nodes

    async def stop_node_async(self, node_id: int) -> None:
        """Stop one of several nodes: cut its connections and move its leaders to other nodes.

        Args:
            node_id: Id of the node.

        Raises:
            PlacementError: The node is unknown.
        """
        await self._nodes.stop(self._running().server, node_id)

    async def start_node_async(self, node_id: int) -> None:
        """Start a stopped node under its old address; leaders do not move back.

        Args:
            node_id: Id of the node.

        Raises:
            PlacementError: The node is unknown.
            OSError: Another process has taken its address.
        """
        await self._nodes.start(self._running().server, node_id)

    def stop_node(self, node_id: int) -> None:
        """Do as :meth:`stop_node_async`, for a broker in a thread.

        Args:
            node_id: Id of the node.
        """
        self._in_loop(self.stop_node_async(node_id))

    def start_node(self, node_id: int) -> None:
        """Do as :meth:`start_node_async`, for a broker in a thread.

        Args:
            node_id: Id of the node.
        """
        self._in_loop(self.start_node_async(node_id))

    def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition, -1 for none.

        Args:
            topic: Topic name.
            partition: Partition number.
        """
        return self.call(lambda state, now_ms: state.placement.leader(topic, partition))

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Make another node the leader of a partition, with a new leader epoch.

        Args:
            topic: Topic name.
            partition: Partition number.
            node_id: The new leader.

        Raises:
            PlacementError: The node has no replica or is stopped.
            KeyError: The partition does not exist.
        """
        self.call(
            lambda state, now_ms: state.placement.move_leader(
                known_topic(state, topic, partition), partition, node_id, now_ms
            )
        )

    def move_coordinator(
        self, node_id: int, *, group_id: str | None = None, transactional_id: str | None = None
    ) -> None:
        """Make another node the coordinator of a group or a transactional id.

        All groups or transactional ids of the same partition of the internal topic move with it.
        Requests that wait at the old coordinator get NOT_COORDINATOR.

        Args:
            node_id: The new coordinator.
            group_id: The group; or give transactional_id.
            transactional_id: The transactional id; or give group_id.

        Raises:
            PlacementError: The node is stopped.
            ValueError: Neither or both are given.
        """
        self.call(
            lambda state, now_ms: state.placement.move_leader(
                *coordinator_of(state, group_id, transactional_id, now_ms), node_id, now_ms
            )
        )

    def coordinator(
        self, *, group_id: str | None = None, transactional_id: str | None = None
    ) -> int:
        """Return the node that coordinates a group or a transactional id.

        Args:
            group_id: The group; or give transactional_id.
            transactional_id: The transactional id; or give group_id.
        """

        def ask(state: BrokerState, now_ms: int) -> int:
            topic, partition = coordinator_of(state, group_id, transactional_id, now_ms)
            return state.placement.leader(topic.name, partition)

        return self.call(ask)

    def elect_preferred(self) -> int:
        """Move each partition's leader to its first running replica; return how many moved."""
        return self.call(lambda state, now_ms: state.placement.move_to_preferred(now_ms))

    def _running(self) -> Serving:
        if self._serving is None:
            raise RuntimeError("the broker is not running")
        return self._serving

    # --- internal state

    def call(self, function: Callable[[BrokerState, int], T]) -> T:
        """Run ``function(state, now_ms)`` on the broker's loop and return its result.

        With ``async with`` and from the loop itself, the function runs at once.

        Args:
            function: Called with the state of the broker and the present time in milliseconds.

        Raises:
            BaseException: Any error of the function, ``SystemExit`` too; the broker keeps running.
        """
        serving = self._running()

        def run() -> T:
            result = function(serving.state, self._clock())
            serving.server.after_event()
            return result

        if self._thread is None or self._thread.is_current:
            return run()
        return self._thread.call(run, CALL_TIMEOUT_SECONDS)

    def create_topic(
        self, name: str, *, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create a topic without a client.

        Args:
            name: Name of the topic.
            partitions: Number of partitions.
            configs: Topic settings by Kafka's names.

        Raises:
            TopicError: The name is invalid or taken.
            ConfigError: A setting is invalid.
        """
        overrides = validate_overrides(dict(configs or {}))
        self.call(lambda state, now_ms: state.topics.create(name, partitions, overrides, now_ms))

    def topic_names(self) -> list[str]:
        """Return the names of all topics."""
        return self.call(lambda state, now_ms: [topic.name for topic in state.topics])

    def partition_figures(self, topic: str | None = None) -> list[PartitionFigures]:
        """Return the offsets of each partition, with what open transactions hide from readers.

        Args:
            topic: Only of this topic; None for all.

        Raises:
            KeyError: The topic does not exist.
        """
        return self.call(lambda state, now_ms: partition_figures(state, topic))

    def advance(self, duration_ms: int) -> None:
        """Move the broker's clock, on the broker's loop, and run the timers that became due.

        Args:
            duration_ms: Milliseconds.

        Raises:
            RuntimeError: The clock that was given cannot be moved.
        """
        clock = self._clock
        if not isinstance(clock, MovableTime):
            raise RuntimeError(
                f"clock={clock!r} cannot be moved: omit clock, or give a VirtualClock"
            )
        if self._serving is None:
            clock.advance(duration_ms)
        else:
            self.call(lambda state, now_ms: clock.advance(duration_ms))

    def leave_to_parent(self) -> list[int]:
        """In a forked child, drop the broker, which runs in the parent only; see :mod:`forks`."""
        handles = [] if self._serving is None else self._serving.server.file_handles()
        handles += [] if self._control is None else self._control.file_handles()
        handles += [self._storage.lock_handle] if isinstance(self._storage, RealStorage) else []
        self._serving = self._control = self._thread = self._loop = None
        return handles

    def _call_if_running(self, function: Callable[[BrokerState, int], None]) -> None:
        if self._serving is not None:
            self.call(function)
