"""Connections to the brokers of one cluster, by node and purpose, and the cluster's metadata.

The pool decides which socket a request takes, when to reconnect, and when to refresh the metadata;
it goes back to the bootstrap list when no known broker answers (KIP-899). Its users decide what
requests mean and whether to repeat one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from onceflow.sdk.aio import forks
from onceflow.sdk.aio.connection.connector import DEFAULT, Connector
from onceflow.sdk.aio.connection.transport import BrokerConnection, loop_ms
from onceflow.sdk.core.arguments import limit_of, wait_ms
from onceflow.sdk.core.connection.coordinator_search import coordinator_request, read_coordinator
from onceflow.sdk.core.connection.handshake import BrokerVersions
from onceflow.sdk.core.connection.metadata import ClusterMetadata, Node
from onceflow.sdk.core.flow import Coordinator, Flow, Forget, Send, Sleep
from onceflow.sdk.core.retry import Backoff, Recovery, recovery_for
from onceflow.sdk.errors import (
    BrokerConnectionError,
    ClientClosedError,
    IllegalStateError,
    KafkaError,
    NoBrokersAvailableError,
    RequestTimedOutError,
)
from onceflow.sdk.protocol.api.cluster import (
    CoordinatorType,
    MetadataRequest,
    MetadataResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.schema import Request, Response
from onceflow.sdk.settings.config import ClientConfig

if TYPE_CHECKING:
    from onceflow.sdk.observe.metrics import ConnectionMetrics

log: logging.Logger = logging.getLogger("onceflow.pool")

T = TypeVar("T")

COORDINATOR: Final = "coordinator"
"""Name of the connection for requests to coordinators that are answered soon."""


class ConnectionPool:
    """Every connection of one client.

    All methods belong to the event loop in which ``start`` was awaited; using the pool from
    another loop raises IllegalStateError.

    Args:
        config: The client's configuration.
        random_source: Numbers from 0 to 1 for the jitter of waits.
        topics_idle_ms: Topics that were not asked for in this time are no longer refreshed; None
            if the caller uses ``forget_topics``.

    Attributes:
        config: The client's configuration.
        metadata: The newest view of the cluster; replaced, never changed.
        metadata_listeners: Called with the new view after each change.
        is_foreign: Whether this process is a fork of the one that started the pool.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        random_source: Callable[[], float] = random.random,
        topics_idle_ms: int | None = None,
    ) -> None:
        self.config = config
        self.metadata: ClusterMetadata = ClusterMetadata()
        self.metadata_listeners: list[Callable[[ClusterMetadata], None]] = []
        self.backoff: Backoff = Backoff(
            config.retry_backoff_ms, config.retry_backoff_max_ms, random_source
        )
        self._random = random_source
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self.is_foreign: bool = False
        self._connector = Connector(config, random_source)
        self._topics: dict[str, int] = {}
        self._topics_idle_ms = topics_idle_ms
        self._coordinators: dict[tuple[str, CoordinatorType], int] = {}
        self._shared: dict[object, asyncio.Task[object]] = {}
        self._maintenance: asyncio.Task[None] | None = None

    # life

    async def start(self, *, timeout_ms: int | None = None) -> None:
        """Connect to a broker and get the metadata. Calling it again does nothing.

        Args:
            timeout_ms: Limit; default ``default_api_timeout_ms``.

        Raises:
            NoBrokersAvailableError: No bootstrap server answered; lists the addresses tried.
            ClientClosedError: The pool was closed before.
        """
        loop = asyncio.get_running_loop()
        if self._closed:
            raise ClientClosedError("this client was closed; make a new one")
        if self._loop is not None:
            self.check_loop()
            return
        self._loop = loop
        try:
            await self.refresh_metadata((), timeout_ms=timeout_ms)
        except BaseException:
            self._loop = None
            await self._connector.close()
            raise
        self._maintenance = loop.create_task(self._maintain(), name="onceflow-pool")
        forks.watch(self)

    def after_fork(self) -> None:
        """Refuse every call from now on; called in a forked child."""
        self.is_foreign = True

    async def close(self) -> None:
        """Close every connection; requests that wait fail. Calling it again does nothing."""
        if self._closed:
            return
        if self.is_foreign:  # The sockets are the parent's.
            self._closed = True
            return
        self.check_loop()
        self._closed = True
        if self._loop is None:
            return
        tasks = [t for t in (self._maintenance, *self._shared.values()) if t is not None]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:  # Even if the caller is cancelled meanwhile.
            await self._connector.close()

    @property
    def is_started(self) -> bool:
        """Whether ``start`` succeeded and ``close`` was not called."""
        return self._loop is not None and not self._closed

    @property
    def is_cancelled(self) -> bool:
        """Whether the pool's task was cancelled from outside, as at the end of a loop."""
        task = self._maintenance
        return task is not None and not self._closed and (task.done() or task.cancelling() > 0)

    def now_ms(self) -> int:
        """The pool's clock: the loop's, in milliseconds."""
        return loop_ms(self._running_loop())

    def deadline_ms(self, timeout_ms: int) -> int:
        """Return when a time limit of the user ends, on the pool's clock."""
        return self.now_ms() + wait_ms(timeout_ms)

    def check_usable(self) -> None:
        """Raise unless the pool is started, open, and used from its own loop."""
        if self._closed:
            raise ClientClosedError("this client is closed; make a new one")
        if self._loop is None:
            raise IllegalStateError("this client is not started; await start() first")
        self.check_loop()

    def check_open(self) -> None:
        """Raise if the pool is closed, or started and used outside of its own loop."""
        if self._closed:
            raise ClientClosedError("this client is closed; make a new one")
        self.check_loop()

    def check_loop(self) -> None:
        """Raise if the pool is started and this is not its own loop, or a forked child."""
        if self.is_foreign:
            raise forks.forked_error("client")
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if self._loop is not None and running is not self._loop:
            raise IllegalStateError(
                "this client was started in another event loop or thread; an asyncio client "
                "belongs to the loop that started it: use it there, or make and start one here"
            )

    def run_from_anywhere(self, callback: Callable[[], object]) -> None:
        """Run a callback now if this is the pool's loop, else soon in it.

        Args:
            callback: The function; this may be called from other threads and from signal handlers.
        """
        loop = self._loop
        if loop is None or loop.is_closed():
            callback()
            return
        if asyncio._get_running_loop() is loop:
            callback()
            callback = _nothing  # A signal handler may run while the loop sleeps: wake it.
        with contextlib.suppress(RuntimeError):  # Closed meanwhile.
            loop.call_soon_threadsafe(callback)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise IllegalStateError("this client is not started; await start() first")
        return self._loop

    # requests

    async def request(
        self,
        node_id: int | None,
        request: Request,
        *,
        timeout_ms: int | None = None,
        max_version: int | None = None,
        connection: str = DEFAULT,
    ) -> Response:
        """Send a request to one broker and wait for its answer; nothing is repeated.

        Args:
            node_id: The broker; None takes any that answers.
            request: The request; sent in the highest version that client and broker have.
            timeout_ms: Limit for the answer, default ``request_timeout_ms``. A broker that does
                not answer in time loses the connection (it may be half-open).
            max_version: Highest version to use.
            connection: Name of the socket: a broker answers in order, so a long poll needs its
                own.

        Returns:
            The response.

        Raises:
            BrokerConnectionError: The broker cannot be reached, or the connection broke.
            RequestTimedOutError: No answer came in time.
            UnsupportedVersionError: There is no common version.
        """
        channel = await self.ready(node_id, connection)
        return await channel.send(request, timeout_ms=timeout_ms, max_version=max_version)

    async def ready(self, node_id: int | None, connection: str = DEFAULT) -> BrokerConnection:
        """Return a connection on which a request may be written at once.

        Args:
            node_id: The broker; None takes any that answers.
            connection: Name of the socket.

        Raises:
            BrokerConnectionError: The broker cannot be reached.
        """
        self.check_usable()
        while True:
            if node_id is None:
                channel = await self._ask_any(_itself)
            else:
                channel = await self.connect(node_id, connection)
            wait_ms = channel.muted_until_ms - self.now_ms()
            if wait_ms <= 0:
                return channel
            await asyncio.sleep(wait_ms / 1000)

    async def connect(self, node_id: int, connection: str = DEFAULT) -> BrokerConnection:
        """Return the open connection to a node; open it if needed.

        Args:
            node_id: The broker.
            connection: Name of the socket.

        Raises:
            BrokerConnectionError: The node is unknown or cannot be reached.
        """
        self.check_usable()
        node = self._node(node_id)
        if node is None:
            raise BrokerConnectionError(f"node {node_id} is not part of the known cluster")
        return await self._connector.connect(node, connection)

    def open_connection(self, node_id: int, connection: str) -> BrokerConnection | None:
        """Return the connection to a node if it is open and may be used now, without waiting.

        Args:
            node_id: The broker.
            connection: Name of the socket.
        """
        found = self._connector.find(self._node(node_id), connection)
        if found is None or found.muted_until_ms > self.now_ms():
            return None
        return found

    async def run(self, flow: Flow[T], *, timeout_ms: int | None = None) -> T:
        """Run a flow to its end.

        Args:
            flow: The flow.
            timeout_ms: Limit for the whole flow, default ``default_api_timeout_ms``; a wait that
                would pass it raises RequestTimedOutError inside the flow.

        Returns:
            The flow's result.

        Raises:
            KafkaError: The flow's error.
        """
        self.check_usable()
        limit_ms = limit_of(timeout_ms, self.config.default_api_timeout_ms)
        deadline_ms = self.now_ms() + limit_ms
        try:
            step = next(flow)
            while True:
                reply: Response | None = None
                error: KafkaError | None = None
                left_ms = deadline_ms - self.now_ms()
                if isinstance(step, Forget):
                    self.forget_coordinator(step.coordinator.key, step.coordinator.key_type)
                elif isinstance(step, Sleep):
                    if step.delay_ms > left_ms:
                        error = self._out_of_time(limit_ms)
                    else:
                        await asyncio.sleep(step.delay_ms / 1000)
                elif left_ms <= 0:
                    error = self._out_of_time(limit_ms)
                else:
                    try:
                        reply = await self._perform(step, left_ms)
                    except KafkaError as raised:
                        error = raised
                step = flow.send(reply) if error is None else flow.throw(error)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _out_of_time(self, limit_ms: int) -> RequestTimedOutError:
        return RequestTimedOutError(f"gave up after {limit_ms} ms{self.troubles()}")

    async def _perform(self, step: Send, left_ms: int) -> Response:
        limit_ms = self.config.request_timeout_ms if step.timeout_ms is None else step.timeout_ms
        target = step.target
        if isinstance(target, Coordinator):
            node_id: int | None = await self.find_coordinator(
                target.key, target.key_type, timeout_ms=left_ms
            )
            purpose = COORDINATOR
        else:
            node_id, purpose = target, DEFAULT
        # The request keeps its own limit on the connection: the broker is not dead because this
        # caller's time is over, and others may wait on the same connection.
        try:
            async with asyncio.timeout(left_ms / 1000):
                return await self.request(
                    node_id,
                    step.request,
                    timeout_ms=limit_ms,
                    max_version=step.max_version,
                    connection=purpose,
                )
        except TimeoutError:
            raise RequestTimedOutError(
                f"no answer within the last {left_ms} ms{self.troubles()}"
            ) from None

    def versions(self, node_id: int) -> BrokerVersions | None:
        """Return the versions that a node offers; None before the first connection to it."""
        return self._connector.versions.get(node_id)

    def api_version(self, node_id: int, request_type: type[Request]) -> int | None:
        """Return the version that a request to a node would use.

        Args:
            node_id: The broker.
            request_type: The request.

        Returns:
            The version; None if there is no common one, or no connection was made yet.
        """
        versions = self.versions(node_id)
        return None if versions is None else versions.pick(request_type)

    # metadata

    async def refresh_metadata(
        self,
        topics: Iterable[str] | None = None,
        *,
        all_topics: bool = False,
        allow_auto_topic_creation: bool = False,
        remember: bool = True,
        timeout_ms: int | None = None,
    ) -> ClusterMetadata:
        """Request the metadata of brokers and topics now.

        Args:
            topics: Topics to ask for, also from now on; None asks for those asked for before.
            remember: False asks for these topics only once: they are in the returned view, and in
                `metadata` only if another call asks for them.
            all_topics: Ask for every topic of the cluster instead.
            allow_auto_topic_creation: Let the broker create missing topics if it is set up so.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Returns:
            The new view. Topics that do not exist are in it with their error code.

        Raises:
            NoBrokersAvailableError: No broker could be reached within the limit.
        """
        wanted = None if topics is None else tuple(topics)
        if wanted is not None and remember:
            self.remember_topics(wanted)
        key = ("metadata", wanted, all_topics, allow_auto_topic_creation)
        view = await self._once(
            key,
            lambda: self._refresh(wanted, all_topics, allow_auto_topic_creation, timeout_ms),
        )
        # Not `self.metadata`: another caller may have called forget_topics() meanwhile.
        assert isinstance(view, ClusterMetadata)
        return view

    def clock_ms(self) -> int:
        """The pool's clock, 0 before the start; from any thread, also after the end."""
        return 0 if self._loop is None else loop_ms(self._loop)

    def connection_metrics(self) -> ConnectionMetrics:
        """Return the metrics of the connections; from any thread."""
        from onceflow.sdk.observe.metrics import ConnectionMetrics  # Late: most programs never ask.

        now_ms = self.clock_ms()
        updated_ms = self.metadata.updated_at_ms
        return ConnectionMetrics.of(self._connector.traffic, now_ms - updated_ms, now_ms)

    def remember_topics(self, topics: Iterable[str]) -> None:
        """Refresh the metadata of these topics from now on, whether they exist or not."""
        self._topics.update(dict.fromkeys(topics, self.clock_ms()))

    def _leave_idle_topics(self) -> None:
        """Forget topics that were not asked for lately; a long-lived client would keep them all."""
        if self._topics_idle_ms is not None:
            since_ms = self.now_ms() - self._topics_idle_ms
            self.forget_topics([name for name, at_ms in self._topics.items() if at_ms < since_ms])

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Stop refreshing the metadata of these topics."""
        names = list(topics)
        for topic in names:
            self._topics.pop(topic, None)
        self.metadata = self.metadata.without_topics(names)

    def apply_metadata(self, metadata: ClusterMetadata) -> None:
        """Replace the metadata by a newer view, such as with a leader from an error (KIP-951)."""
        if metadata is not self.metadata:
            self.metadata = metadata
            for listener in tuple(self.metadata_listeners):
                listener(metadata)

    async def _refresh(
        self,
        wanted: tuple[str, ...] | None,
        all_topics: bool,
        allow_auto_topic_creation: bool,
        timeout_ms: int | None,
    ) -> ClusterMetadata:
        limit_ms = limit_of(timeout_ms, self.config.default_api_timeout_ms)
        names = tuple(self._topics) if wanted is None else wanted
        listed = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(
            topics=None if all_topics else listed,
            allow_auto_topic_creation=allow_auto_topic_creation,
        )
        began_ms = self.now_ms()
        failures = 0
        reason: KafkaError | None = None
        while True:
            left_ms = max(1, began_ms + limit_ms - self.now_ms())
            try:
                async with asyncio.timeout(left_ms / 1000):
                    reply = await self._ask_any(lambda channel: _answer(channel, request))
                if not isinstance(reply, MetadataResponse):
                    raise BrokerConnectionError("the broker sent a response of another kind")
                if reply.error_code == ErrorCode.REBOOTSTRAP_REQUIRED:
                    self._connector.forget_nodes()
                    self.metadata = ClusterMetadata()
                    raise BrokerConnectionError("the broker asked the client to bootstrap again")
                break
            except (KafkaError, TimeoutError) as error:
                failures += 1
                delay_ms = self.backoff.delay_ms(failures)
                if isinstance(error, KafkaError):
                    if not error.retriable:
                        raise
                    reason = error  # It says more than the timeout of the last try.
                waits_ms, setting = self._patience(limit_ms)
                if self.now_ms() + delay_ms >= began_ms + waits_ms:
                    tried = self._connector.tried(reason or error)
                    # Not chained: the message has the cause for each address.
                    raise NoBrokersAvailableError(
                        f"no broker answered within {waits_ms} ms{setting}; {tried}"
                    ) from None
                await asyncio.sleep(delay_ms / 1000)
        metadata = self.metadata.with_response(reply, self.now_ms(), all_topics=all_topics)
        self._connector.retire_bootstrap()
        shared = metadata
        if not all_topics:  # Some are asked for only once, or may have been forgotten meanwhile.
            kept = self._topics if wanted is None else {*self._topics, *self.metadata.topics}
            shared = metadata.without_topics([name for name in names if name not in kept])
        self.apply_metadata(shared)
        return shared if wanted is None else metadata

    def _patience(self, limit_ms: int) -> tuple[int, str]:
        """Return how long to look for a broker within a limit, and the setting that shortens it,
        for messages."""
        never_reached = self.metadata.updated_at_ms < 0
        shorter_ms = self.config.bootstrap_timeout_ms
        if shorter_ms < limit_ms and never_reached and self._connector.is_hopeless:
            return shorter_ms, " (bootstrap_timeout_ms)"
        return limit_ms, ""

    def troubles(self) -> str:
        """Return the addresses that could not be reached lately, as the end of a message."""
        return self._connector.troubles()

    async def _ask_any(self, ask: Callable[[BrokerConnection], Coroutine[object, object, T]]) -> T:
        """Ask any broker: known nodes first, then the bootstrap list."""
        return await self._connector.use_any(list(self.metadata.nodes.values()), ask)

    async def _maintain(self) -> None:
        """Refresh the metadata when it is old, and close idle connections."""
        age_ms = self.config.metadata_max_age_ms
        while True:
            due_ms = self.metadata.updated_at_ms + age_ms
            wait_ms = max(due_ms - self.now_ms(), min(1_000, age_ms))
            await asyncio.sleep(wait_ms / 1000)
            self._connector.close_idle()
            if self.now_ms() < self.metadata.updated_at_ms + age_ms:
                continue
            self._leave_idle_topics()
            try:
                await self.refresh_metadata()
            except KafkaError as error:
                log.warning("the cluster's metadata could not be refreshed: %s", error)
            except Exception:  # A bug in this library: without the task, metadata is not refreshed.
                log.exception("the cluster's metadata could not be refreshed")

    # coordinators

    async def find_coordinator(
        self, key: str, key_type: CoordinatorType | int, *, timeout_ms: int | None = None
    ) -> int:
        """Return the coordinator of a group or transactional id; kept until ``forget_coordinator``.

        Args:
            key: Group name or transactional id.
            key_type: 0 for groups, 1 for transactions.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Returns:
            Its node id.

        Raises:
            KafkaError: It could not be found in time, or the broker refuses.
        """
        self.check_usable()
        kind = CoordinatorType(key_type)
        if (key, kind) not in self._coordinators:
            limit_ms = limit_of(timeout_ms, self.config.default_api_timeout_ms)
            try:
                # The search is shared and may wait for a reconnect; this caller has its own limit.
                async with asyncio.timeout(limit_ms / 1000):
                    # Another task may have called forget_coordinator() before this one ran.
                    while (key, kind) not in self._coordinators:
                        await self._once(
                            ("coordinator", key, kind),
                            lambda: self._find_coordinator(key, kind, limit_ms),
                        )
            except TimeoutError:
                raise RequestTimedOutError(
                    f"the coordinator of {key!r} was not found within {limit_ms} ms; "
                    f"{self._connector.tried()}"
                ) from None
        return self._coordinators[key, kind]

    def forget_coordinator(self, key: str, key_type: CoordinatorType | int) -> None:
        """Forget a coordinator that moved or ended; the next use looks for it again."""
        self._coordinators.pop((key, CoordinatorType(key_type)), None)

    async def _find_coordinator(self, key: str, kind: CoordinatorType, limit_ms: int) -> None:
        deadline_ms = self.now_ms() + limit_ms
        failures = 0
        while True:
            left_ms = max(1, deadline_ms - self.now_ms())
            try:
                async with asyncio.timeout(left_ms / 1000):
                    node = await self._ask_for_coordinator(key, kind)
                break
            except TimeoutError:
                raise RequestTimedOutError(
                    f"the coordinator of {key!r} was not found within {limit_ms} ms"
                ) from None
            except KafkaError as error:
                failures += 1
                delay_ms = self.backoff.delay_ms(failures)
                if recovery_for(error) is Recovery.NONE or self.now_ms() + delay_ms >= deadline_ms:
                    raise
                await asyncio.sleep(delay_ms / 1000)
        if node.node_id not in self.metadata.nodes:
            self._connector.extra_nodes[node.node_id] = node
        self._coordinators[key, kind] = node.node_id

    async def _ask_for_coordinator(self, key: str, kind: CoordinatorType) -> Node:
        async def ask(channel: BrokerConnection) -> Response:
            return await channel.send(coordinator_request(channel.versions, key, kind))

        return read_coordinator(await self._ask_any(ask))

    # shared work

    async def _once(
        self, key: object, work: Callable[[], Coroutine[object, object, object]]
    ) -> object:
        """Run work once for all concurrent callers, which share one task and its result.

        A cancelled caller does not cancel the task of the others.
        """
        task = self._shared.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(work())
            self._shared[key] = task
            task.add_done_callback(lambda done: self._forget_shared(key, done))
        return await asyncio.shield(task)

    def _forget_shared(self, key: object, task: asyncio.Task[object]) -> None:
        self._shared.pop(key, None)
        if not task.cancelled():
            task.exception()

    def _node(self, node_id: int) -> Node | None:
        return self.metadata.nodes.get(node_id) or self._connector.extra_nodes.get(node_id)


async def _itself(channel: BrokerConnection) -> BrokerConnection:
    return channel


async def _answer(channel: BrokerConnection, request: Request) -> Response:
    return await channel.send(request)


def _nothing() -> None:
    pass
