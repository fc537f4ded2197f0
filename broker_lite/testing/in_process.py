"""A broker inside of the current process: for tests, notebooks and demos.

``with Broker() as broker`` runs it on an event loop of its own in one background thread;
``async with Broker() as broker`` runs it on the caller's loop. It decides where data is kept and
which settings differ from a daemon's; everything else is the same broker.
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

    It answers on a real socket, so any Kafka client can use it. Data lives in memory unless
    ``data`` names a folder; what is left out of Kafka is listed in ``docs/kafka-differences.md``.

    Args:
        data: Folder for the data, created when missing; None keeps everything in memory.
        host: Address to listen on.
        port: Port to listen on, 0 for any free one. Kept over a stop and a new start.
        listeners: Several listeners, or one that is secured, in place of host and port: as Kafka's
            ``listeners``, for example ``"PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0"``.
        settings: Broker settings by Kafka's property names. Against a daemon,
            ``group.initial.rebalance.delay.ms`` is 0 and the coordinators' topics have 4
            partitions by default. A whole ``BrokerConfig`` is taken as it is.
        nodes: How many nodes answer, with ids from ``node.id`` (1) on, each on its own listeners.
            They share one log; partition leaders and coordinators are spread over them. With a
            fixed ``port`` the others take the ports behind it.
        racks: The nodes' racks, in order.
        profile: A release of Kafka, as ``"2.8"`` or ``"4.0"``: of what this broker can do it serves
            and announces only what that release has. Setting ``onceflow.profile``.
        clock: Returns wall milliseconds; by default it runs with the system's and can be moved
            forward. A ``VirtualClock`` stands still until it is moved.
        seed: Makes ids repeatable; None takes the system's randomness.
        storage: Where data is kept, in place of ``data``; for tests of failures.
        journal: Note every request with its answer in :attr:`journal` from the start.
        journal_file: Write what goes over the connections to this file, which Wireshark opens.
        control: Port of 127.0.0.1 for the control endpoint, 0 for any free one; None for no
            endpoint. See ``docs/testing.md``.
        durability: ``kafka`` answers once the system has the data (default), ``group`` after a
            flush to the disk that the waiting requests share, ``always`` after a flush of each
            append (setting ``onceflow.durability``).

    Attributes:
        faults: Rules that make requests, connections and writes fail.
        disk: Whether and why the broker stopped by itself: the disk failed a flush, or a change
            that cannot be undone.

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
        if control is not None:  # Only this needs uvicorn; a missing one is told here.
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
        """``HOST:PORT`` for clients, of the first listener; of several nodes all, with commas.

        Raises:
            RuntimeError: The broker was not started yet.
        """
        return self.bootstrap_servers_of(self._listeners[0].name)

    def bootstrap_servers_of(self, listener: str) -> str:
        """``HOST:PORT`` for clients, of a listener.

        Args:
            listener: Its name, such as ``SASL_SSL``.

        Raises:
            KeyError: No listener has that name.
            RuntimeError: The broker was not started yet.
        """
        found = {each.name: each for each in self._listeners}[listener.upper()]
        if not found.port:
            raise RuntimeError("the broker has no address before it is started")
        ports = {key: port for key, port in self._nodes.ports.items() if key[1] == found.name}
        return ",".join(found.bound(ports[key]).address for key in sorted(ports))

    @property
    def listener_names(self) -> tuple[str, ...]:
        """Names of the listeners, in the order of the settings."""
        return tuple(listener.name for listener in self._listeners)

    @property
    def port(self) -> int:
        """The port of the first listener, 0 before the first start with a free one."""
        return self._listeners[0].port

    @property
    def state(self) -> BrokerState:
        """The broker's inside, for tests; touch it on its own loop only (see :meth:`call`).

        Raises:
            RuntimeError: The broker is not running.
        """
        return self._running().state

    @property
    def running(self) -> bool:
        """Whether the broker answers."""
        return self._serving is not None

    @property
    def journal(self) -> Journal:
        """Requests with their answers, when they are noted; kept over stops and starts."""
        return self.faults.journal

    @property
    def control_url(self) -> str:
        """Address of the control endpoint.

        Raises:
            RuntimeError: There is none, or the broker was not started yet.
        """
        if self._control is None:
            raise RuntimeError("start the broker with control=0 (or a port) to have an endpoint")
        return f"http://127.0.0.1:{self._control.port}"

    def now_ms(self) -> int:
        """The broker's time, wall milliseconds."""
        return self._clock()

    def describe(self) -> dict[str, object]:
        """What runs, and where, in plain values."""
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
            StorageLockedError: Another broker works on the same folder.
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
                    # With a clock that is moved by hand, a move waits for what it begins.
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
        """Stand before the handlers of a broker that is about to listen."""
        self.faults.router = self._nodes.opened(state)
        state.interceptor = self.faults
        self._wire.use(state.timers)

    async def _stop_serving(self, serving: Serving) -> None:
        if self._serving is serving:
            await self.stop_async(clean=False)

    async def _open_control(self) -> None:
        """Open the control endpoint, which outlives a restart of the broker."""
        if self._control_port is not None and self._control is None:
            control = self._make_control(self)
            await control.start(self._control_port)
            self._control = control

    async def stop_async(self, *, clean: bool = True) -> None:
        """Stop; without effect when not running. Data in memory and the address are kept.

        Args:
            clean: Write everything out. False drops the broker as a crash of the process would.
        """
        serving, self._serving = self._serving, None
        if serving is None:
            return
        self.faults.forget_held()
        await serving.stop(clean=clean)

    async def close_async(self, *, clean: bool = True) -> None:
        """Stop, and close the control endpoint and the journal file.

        Args:
            clean: As for :meth:`stop_async`. A broker in memory that was stopped cleanly begins
                empty when it is started again; after a crash it has what it acknowledged.
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
        """Start in a background thread and return when it is ready.

        Raises:
            OSError: The address cannot be bound.
            StorageLockedError: Another broker works on the same folder.
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
        """Stop cleanly; without effect when not running."""
        self._stop_thread(clean=True)

    def kill(self) -> None:
        """Drop connections and logs as a crash of the process would, without writing out.

        A new start finds what such a crash leaves; of a broker in memory that is everything.
        """
        self._stop_thread(clean=False)

    def restart(self, *, kill: bool = False) -> None:
        """Stop and start with the same data and address; raises what :meth:`start` does.

        After a start that fails the broker is stopped, and may be started.

        Args:
            kill: Stop as a crash of the process would, without writing out.
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
        """Let one of several nodes go away: connections are cut, leaders move to the others.

        Args:
            node_id: Which one.

        Raises:
            PlacementError: The node is unknown.
        """
        await self._nodes.stop(self._running().server, node_id)

    async def start_node_async(self, node_id: int) -> None:
        """Let a node come back under its old address; leaders stay where they are.

        Args:
            node_id: Which node.

        Raises:
            PlacementError: The node is unknown.
            OSError: Another process has taken its address.
        """
        await self._nodes.start(self._running().server, node_id)

    def stop_node(self, node_id: int) -> None:
        """As :meth:`stop_node_async`, for a broker in a thread.

        Args:
            node_id: Which node.
        """
        self._in_loop(self.stop_node_async(node_id))

    def start_node(self, node_id: int) -> None:
        """As :meth:`start_node_async`, for a broker in a thread.

        Args:
            node_id: Which node.
        """
        self._in_loop(self.start_node_async(node_id))

    def leader(self, topic: str, partition: int) -> int:
        """The node that leads a partition, -1 when none does.

        Args:
            topic: Topic name.
            partition: Partition number.
        """
        return self.call(lambda state, now_ms: state.placement.leader(topic, partition))

    def move_leader(self, topic: str, partition: int, node_id: int) -> None:
        """Let another node lead a partition, under a new leader epoch.

        Args:
            topic: Topic name.
            partition: Partition number.
            node_id: The new leader.

        Raises:
            PlacementError: The node has no replica, or does not run.
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
        """Let another node coordinate a group or a transactional id.

        Everything whose state is in the same partition of the internal topic moves with it. What
        waits at the old coordinator is told NOT_COORDINATOR.

        Args:
            node_id: The new coordinator.
            group_id: The group, or else:
            transactional_id: The transactional id.

        Raises:
            PlacementError: The node does not run.
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
        """The node that coordinates a group or a transactional id.

        Args:
            group_id: The group, or else:
            transactional_id: The transactional id.
        """

        def ask(state: BrokerState, now_ms: int) -> int:
            topic, partition = coordinator_of(state, group_id, transactional_id, now_ms)
            return state.placement.leader(topic.name, partition)

        return self.call(ask)

    def elect_preferred(self) -> int:
        """Let every partition be led by its preferred node that runs; returns how many moved."""
        return self.call(lambda state, now_ms: state.placement.move_to_preferred(now_ms))

    def _running(self) -> Serving:
        if self._serving is None:
            raise RuntimeError("the broker is not running")
        return self._serving

    # --- reaching in

    def call(self, function: Callable[[BrokerState, int], T]) -> T:
        """Run ``function(state, now_ms)`` on the broker's loop and return its result.

        From the loop itself, as with ``async with``, it runs at once.

        Args:
            function: Called with the state of the broker and the present time in milliseconds.

        Raises:
            BaseException: What the function raises, a ``SystemExit`` too; the broker goes on.
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
            partitions: How many partitions.
            configs: Topic settings by Kafka's names.

        Raises:
            TopicError: The name is refused or taken.
            ConfigError: A setting is refused.
        """
        overrides = validate_overrides(dict(configs or {}))
        self.call(lambda state, now_ms: state.topics.create(name, partitions, overrides, now_ms))

    def topic_names(self) -> list[str]:
        """Names of the topics that there are."""
        return self.call(lambda state, now_ms: [topic.name for topic in state.topics])

    def partition_figures(self, topic: str | None = None) -> list[PartitionFigures]:
        """Positions of every partition, with what open transactions hide from readers.

        Args:
            topic: Of this topic only.

        Raises:
            KeyError: The topic does not exist.
        """
        return self.call(lambda state, now_ms: partition_figures(state, topic))

    def advance(self, duration_ms: int) -> None:
        """Move the broker's clock, on the broker's loop, and run what became due.

        Args:
            duration_ms: Milliseconds.

        Raises:
            RuntimeError: The broker was given a clock that cannot be moved.
        """
        clock = self._clock
        if not isinstance(clock, MovableTime):
            raise RuntimeError("the broker's clock cannot be moved: leave it out, or give a "
                               "VirtualClock")  # fmt: skip
        if self._serving is None:
            clock.advance(duration_ms)
        else:
            self.call(lambda state, now_ms: clock.advance(duration_ms))

    def leave_to_parent(self) -> list[int]:
        """In a forked child: the broker runs in the parent only; see :mod:`forks`."""
        handles = [] if self._serving is None else self._serving.server.file_handles()
        handles += [] if self._control is None else self._control.file_handles()
        handles += [self._storage.lock_handle] if isinstance(self._storage, RealStorage) else []
        self._serving = self._control = self._thread = self._loop = None
        return handles

    def _call_if_running(self, function: Callable[[BrokerState, int], None]) -> None:
        if self._serving is not None:
            self.call(function)
