"""The engine of both producer faces: connections, queues, and the timer that sends batches.

It decides when the sender looks at the queues, and wakes the callers that wait. The sender decides
which batch is sent and what an answer means. All methods must be called in the loop's thread unless
they say otherwise.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Generic, TypeVar, cast

from onceflow.sdk.aio import forks
from onceflow.sdk.aio.connection.pool import ConnectionPool
from onceflow.sdk.aio.connection.transport import AnswerCallback, loop_ms
from onceflow.sdk.aio.produce.gate import Gate, closed_error
from onceflow.sdk.aio.produce.topics import ProducerTopics
from onceflow.sdk.core.arguments import limit_of
from onceflow.sdk.core.produce.accumulator import NEVER_MS, Accumulator, TopicState
from onceflow.sdk.core.produce.appending import choose_partition
from onceflow.sdk.core.produce.batch import DeliveryHandle, HandleMaker, ProducerBatch
from onceflow.sdk.core.produce.encoding import EncodedBatch, to_producer_batch
from onceflow.sdk.core.produce.messages import ProduceJob, with_named_leaders
from onceflow.sdk.core.produce.sender import Plan, Sender
from onceflow.sdk.core.produce.transaction_flows import add_partitions, init_producer_id
from onceflow.sdk.core.produce.transaction_manager import TransactionManager, TransactionState
from onceflow.sdk.errors import (
    BrokerConnectionError,
    BufferExhaustedError,
    ClientClosedError,
    KafkaError,
    RequestTimedOutError,
)
from onceflow.sdk.model.partitions import ProducerIdentity, TopicPartition
from onceflow.sdk.model.record_checks import check_topic_name
from onceflow.sdk.protocol.api.produce import ProduceResponse
from onceflow.sdk.protocol.compression import CODEC_NAMES, require_codec
from onceflow.sdk.protocol.schema import Response
from onceflow.sdk.settings.config import ProducerConfig

log: logging.Logger = logging.getLogger("onceflow.producer")

D = TypeVar("D", bound=DeliveryHandle)
PRODUCE = "produce"

MUTED_LOOK_MS = 1_000
"""Longest wait for a throttled connection before it is checked again; it may have been replaced."""


class ProducerEngine(Generic[D]):
    """The part of a producer that runs in its event loop.

    Attributes:
        config: The settings.
        pool: Connections and metadata.
        accumulator: The queues; appending is allowed from any thread.
        sender: Decides which batch is sent when.
        transactions: Identity and transaction state.
        gate: Whether records are taken, and why not.
        loop: The loop that ``start`` was awaited in.
    """

    def __init__(
        self,
        config: ProducerConfig,
        handles: HandleMaker[D],
        wake: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        """Make the producer's parts; nothing runs before ``start``.

        Args:
            config: The settings.
            handles: Makes the handles of records.
            wake: Runs a callback in the loop from another thread; None if records are appended in
                the loop's own thread.
        """
        self.config = config
        self.pool: ConnectionPool = ConnectionPool(config)
        codec = CODEC_NAMES[config.compression_type or "none"]
        require_codec(codec)
        owner = config.resumed_identity or config.joined_identity
        transactional_id = config.transactional_id if owner is None else owner.transactional_id
        self.transactions: TransactionManager = TransactionManager(
            transactional_id, is_joined=config.joined_identity is not None
        )
        self.accumulator: Accumulator[D] = Accumulator(
            lock=threading.Lock(),
            clock_ms=self._clock_ms,
            random=random.random,
            handles=handles,
            on_ready=self._on_ready,
            batch_size=config.batch_size,
            linger_ms=config.linger_ms,
            max_request_size=config.max_request_size,
            buffer_memory=config.buffer_memory,
            codec=codec,
            level=config.compression_level,
        )
        self.sender: Sender = Sender(
            cast("Accumulator[DeliveryHandle]", self.accumulator),
            self.transactions,
            self.pool.backoff,
            acks=config.wire_acks,
            idempotent=config.enable_idempotence,
            request_timeout_ms=config.request_timeout_ms,
            delivery_timeout_ms=config.delivery_timeout_ms,
            max_request_size=config.max_request_size,
            max_in_flight=config.max_in_flight_requests_per_connection,
        )
        self.loop: asyncio.AbstractEventLoop | None = None
        self._wake = wake
        self._wake_pending = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._told: set[str] = set()
        self._memory_waiters: list[asyncio.Future[None]] = []
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._next_refresh_ms = 0
        self._is_over = False
        self.gate: Gate = Gate(self.accumulator, self.sender, self.transactions)
        self._topics = ProducerTopics(cast("ProducerEngine[DeliveryHandle]", self))

    # life

    async def start(self) -> None:
        """Connect. Calling it again does nothing.

        Raises:
            NoBrokersAvailableError: No broker could be reached within ``max_block_ms``.
        """
        if self.gate.is_closing:
            raise closed_error()
        if self.loop is not None:
            self.pool.check_usable()
            return
        await self.pool.start(timeout_ms=self.config.max_block_ms)
        self.loop = asyncio.get_running_loop()
        self.gate.is_started = True
        forks.watch(self)
        self.pool.metadata_listeners.append(self._topics.on_metadata)
        if not self.transactions.is_transactional:
            self.gate.update()
            if self.config.enable_idempotence:
                self._begin("identity", self._get_identity)
            else:
                self.transactions.move(TransactionState.INITIALIZING)
                self.transactions.move(TransactionState.READY)

    async def close(self, deadline_ms: int) -> None:
        """Send waiting records until the deadline, then fail the rest and close the connections.

        Args:
            deadline_ms: On the pool's clock.
        """
        if self.loop is None:
            self.gate.is_closing = True
            return
        self.gate.is_closing = True
        self.gate.update()
        try:
            if not self.transactions.is_transactional:
                try:
                    await self.wait_complete(deadline_ms)
                except RequestTimedOutError:
                    log.warning("closing with %d batches unsent", len(self.accumulator.incomplete))
        finally:
            if self._timer is not None:
                self._timer.cancel()
            self.fail_everything(
                ClientClosedError("the producer was closed before the record was acknowledged")
            )
            self._is_over = True
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:  # Even if the caller is cancelled meanwhile.
                await self.pool.close()
                self._wake_memory_waiters()

    def after_fork(self) -> None:
        """Refuse records in a forked child, and end waits for records of the parent."""
        self.accumulator.lock = threading.Lock()  # A thread of the parent may hold the old one.
        self.gate.is_foreign = True
        self.gate.update()
        for batch in list(self.accumulator.incomplete):
            batch.leave_to_parent(forks.forked_error("producer"))

    def fail_everything(self, error: KafkaError) -> None:
        """Fail every record that has no outcome yet."""
        self.sender.purge(error, count_as_failure=True)
        for batch in list(self.sender.in_flight_batches()):
            if not batch.done:
                batch.fail(error)
                self.sender.failures.append(batch)
        for waiter in self._idle_waiters:
            if not waiter.done():
                waiter.set_result(None)

    def now_ms(self) -> int:
        """The loop's clock."""
        assert self.loop is not None
        return loop_ms(self.loop)

    def check_usable(self) -> None:
        """Raise unless started, open, and used from the right loop."""
        if self.gate.is_closing:
            raise closed_error()
        self.pool.check_usable()

    # the timer

    def _clock_ms(self) -> int:
        # The loop's clock is time.monotonic; the loop itself may not exist yet.
        return int(time.monotonic() * 1000)

    def _on_ready(self) -> None:
        """React to a batch that is ready to be sent; called in the thread that appended it."""
        if self._wake_pending:
            return
        self._wake_pending = True
        try:
            if self._wake is not None:
                self._wake(self._step)
            elif self.loop is not None:
                self.loop.call_soon(self._step)
        except BaseException:
            # A signal handler raised. Without this no later wake-up would reach the loop.
            self._wake_pending = False
            raise

    def poke(self) -> None:
        """Have the sender look at the queues soon."""
        if not self._wake_pending and self.loop is not None:
            self._wake_pending = True
            self.loop.call_soon(self._step)

    def _step(self) -> None:
        self._wake_pending = False
        if self.loop is None or self.loop.is_closed() or not self.pool.is_started:
            return
        now_ms = self.now_ms()
        # A record that is appended during `plan` must wake the loop: `plan` may have looked at its
        # queue already.
        self.accumulator.next_wake_ms = NEVER_MS
        plan = self.sender.plan(self.pool.metadata, self._is_connected, now_ms)
        for job in plan.jobs:
            self._send(job)
        self._serve(plan, now_ms)
        self.accumulator.next_wake_ms = plan.wake_at_ms
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if plan.wake_at_ms <= now_ms:
            self.poke()
        elif plan.wake_at_ms < NEVER_MS:
            self._timer = self.loop.call_later((plan.wake_at_ms - now_ms) / 1000, self._step)
        self.after_settling()

    def _serve(self, plan: Plan, now_ms: int) -> None:
        """Start the work that batches wait for."""
        for node_id in plan.connect:
            self._begin(f"connect-{node_id}", functools.partial(self._connect, node_id))
        if plan.identity_needed and not self.transactions.is_transactional:
            self._begin("identity", self._get_identity)
        if plan.register:
            self._begin("register", functools.partial(self._register, plan.register))
        if plan.metadata_topics or self.sender.metadata_stale:
            if now_ms >= self._next_refresh_ms:
                self._begin("metadata", self._refresh)
            else:
                plan.wake_at(self._next_refresh_ms)

    def _send(self, job: ProduceJob) -> None:
        channel = self.pool.open_connection(job.node_id, PRODUCE)
        answered = self.config.wire_acks != 0
        try:
            if channel is None:
                raise BrokerConnectionError(f"the connection to node {job.node_id} is gone")
            then = functools.partial(self._on_answer, job, self.now_ms())
            channel.ask(
                job.request,
                AnswerCallback(then),
                max_version=job.max_version,
                expects_answer=answered,
            )
        except KafkaError as error:
            self.sender.failed(job, error, self.now_ms())
            self.poke()
            return
        if not answered:
            self.sender.sent_without_answer(job)

    def _on_answer(
        self, job: ProduceJob, sent_ms: int, reply: Response | None, error: KafkaError | None
    ) -> None:
        now_ms = self.now_ms()
        if error is not None:
            self.sender.failed(job, error, now_ms)
        else:
            assert isinstance(reply, ProduceResponse)
            self.sender.counters.latency_ms.add(now_ms - sent_ms, now_ms)
            self.sender.counters.throttle_ms.add(reply.throttle_time_ms, now_ms)
            self.pool.apply_metadata(with_named_leaders(self.pool.metadata, job, reply))
            self.sender.answered(job, reply, now_ms)
        self.after_settling()
        self.poke()

    def after_settling(self) -> None:
        """Wake waiters after a batch got its outcome."""
        manager = self.transactions
        if self.sender.failures or manager.is_broken:
            self.gate.update()
            if manager.error is not None and self.accumulator.active:
                self.sender.purge(manager.error)
        if self._memory_waiters and self.accumulator.memory_used < self.config.buffer_memory:
            self._wake_memory_waiters()
        if self._idle_waiters and not any(True for _ in self.sender.in_flight_batches()):
            for waiter in self._idle_waiters:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle_waiters.clear()

    def _is_connected(self, node_id: int) -> bool:
        return self.pool.open_connection(node_id, PRODUCE) is not None

    # background work, one task per name

    def _begin(self, name: str, work: Callable[[], Coroutine[object, object, None]]) -> None:
        if name in self._tasks or self.loop is None or self._is_over:
            return
        if self.pool.is_cancelled and not self.gate.is_closing and not self.accumulator.flush_count:
            return  # The loop ends without close(): no one would await the task.
        task = self.loop.create_task(work(), name=f"onceflow-producer-{name}")
        self._tasks[name] = task
        task.add_done_callback(functools.partial(self._ended, name))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._tasks.pop(name, None)
        if not task.cancelled() and task.exception() is not None:
            self._failed(name, task.exception())
            return
        if not self.gate.is_closing or self.accumulator.incomplete:
            self.poke()

    def _failed(self, name: str, error: BaseException | None) -> None:
        """Log an unexpected error once, and wait before the next try."""
        if repr(error) not in self._told:
            self._told.add(repr(error))
            log.error("producer task %s failed", name, exc_info=error)
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_later(self.config.reconnect_backoff_max_ms / 1000, self.poke)

    async def _connect(self, node_id: int) -> None:
        try:
            connection = await self.pool.connect(node_id, PRODUCE)
            self.sender.connection_error = None
            # A throttled connection (KIP-219) is open but cannot be used. Asking for it again at
            # once would keep the loop busy.
            wait_ms = connection.muted_until_ms - self.now_ms()
            if wait_ms > 0:
                await asyncio.sleep(min(wait_ms, MUTED_LOOK_MS) / 1000)
        except KafkaError as error:
            log.debug("no connection to node %d: %s", node_id, error)
            self.sender.connection_error = error
            self.sender.metadata_stale = True
            await asyncio.sleep(self.config.reconnect_backoff_ms / 1000)

    async def _refresh(self) -> None:
        self.sender.metadata_stale = False
        self._next_refresh_ms = self.now_ms() + self.config.retry_backoff_ms
        try:
            await self.pool.refresh_metadata(timeout_ms=self.config.request_timeout_ms)
            missing = self._topics.missing_of(self.accumulator.waiting_topics())
            if missing:
                # The topic was deleted, or unused for some time: make it as at its first use.
                await self.pool.refresh_metadata(
                    missing,
                    allow_auto_topic_creation=True,
                    timeout_ms=self.config.request_timeout_ms,
                )
        except KafkaError as error:
            log.info("metadata could not be refreshed: %s", error)

    async def _get_identity(self) -> None:
        """Get a producer id for the idempotent producer, trying until it works."""
        manager = self.transactions
        if manager.has_identity and not manager.bump_required:
            return
        failures = 0
        while not self.gate.is_closing or self.accumulator.incomplete:
            try:
                if manager.state is not TransactionState.INITIALIZING:
                    manager.move(TransactionState.INITIALIZING)
                flow = init_producer_id(None, self.config.transaction_timeout_ms, self.pool.backoff)
                producer_id, producer_epoch = await self.pool.run(
                    flow, timeout_ms=self.config.request_timeout_ms
                )
            except KafkaError as error:
                if not error.retriable:
                    manager.fatal(error)
                    self.sender.purge(error, count_as_failure=True)
                    self.gate.update()
                    return
                failures += 1
                log.info("no producer id yet: %s", error)
                await asyncio.sleep(self.pool.backoff.delay_ms(failures) / 1000)
                continue
            manager.initialized(producer_id, producer_epoch, 1)
            return

    async def _register(self, partitions: set[TopicPartition]) -> None:
        """Add partitions to the transaction before records are sent there (version 1)."""
        manager = self.transactions
        identity = manager.identity
        if identity is None or not manager.may_send:
            return
        number = manager.number
        # From now on the coordinator may know the transaction, even if its answer is lost.
        manager.has_content = True
        try:
            await self.pool.run(
                add_partitions(identity, partitions, self.pool.backoff),
                timeout_ms=self.config.delivery_timeout_ms,
            )
        except KafkaError as error:
            if manager.number == number:
                manager.fail(error)
                self.after_settling()
            return
        if manager.number == number:
            manager.registered |= partitions
            manager.is_acknowledged = True

    # waiting callers

    async def flush(self, timeout_ms: int | None = None) -> None:
        """Wait for the outcome of everything appended so far.

        Args:
            timeout_ms: Limit, default ``delivery_timeout_ms``.

        Raises:
            KafkaError: A record failed and its delivery was not awaited, or the time is over.
        """
        self.check_usable()
        limit_ms = limit_of(timeout_ms, self.config.delivery_timeout_ms)
        await self.wait_complete(self.now_ms() + limit_ms)
        self.gate.raise_failure()

    async def topic(self, name: str, timeout_ms: int | None = None) -> TopicState:
        """Return the state of a topic; see ``ProducerTopics.find``."""
        return await self._topics.find(name, timeout_ms)

    async def send_batch(self, topic: str, batch: EncodedBatch) -> ProducerBatch:
        """Append a finished batch; waits for memory.

        Args:
            topic: Topic name.
            batch: The batch.

        Raises:
            ConfigError: There is no such partition, or the bytes are not a batch.
            KafkaError: The producer cannot take records.
        """
        self.check_usable()
        check_topic_name(topic)
        made = to_producer_batch(topic, batch, self.config)
        state = await self.topic(topic)
        choose_partition(state, None, batch.partition, None)
        while not self.accumulator.append_batch(state, made):
            await self.wait_memory()
        return made

    async def wait_memory(self, timeout_ms: int | None = None) -> None:
        """Wait until ``buffer_memory`` has room.

        Args:
            timeout_ms: Limit, default ``max_block_ms``.

        Raises:
            BufferExhaustedError: It stayed full; or it is full and ``buffer_full`` is "raise".
        """
        limit_ms = limit_of(timeout_ms, self.config.max_block_ms)
        accumulator = self.accumulator
        if accumulator.memory_used < self.config.buffer_memory or self.gate.is_closing:
            return
        self.sender.counters.buffer_waits += 1
        if self.config.buffer_full == "raise":
            self.poke()
            raise BufferExhaustedError(
                f"buffer_memory ({self.config.buffer_memory} bytes) is full, and buffer_full is "
                '"raise": try again later'
            )
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._memory_waiters.append(waiter)
        accumulator.memory_waiters += 1
        self.poke()
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await waiter
        except TimeoutError:
            raise BufferExhaustedError(
                f"buffer_memory ({self.config.buffer_memory} bytes) stayed full for {limit_ms} "
                "ms: brokers accept records more slowly than they are sent"
            ) from None
        finally:
            accumulator.memory_waiters -= 1
            if waiter in self._memory_waiters:
                self._memory_waiters.remove(waiter)

    def _wake_memory_waiters(self) -> None:
        waiters, self._memory_waiters = self._memory_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_complete(self, deadline_ms: int) -> None:
        """Send everything that was appended so far without lingering, and wait for its outcome.

        Args:
            deadline_ms: On the pool's clock.

        Raises:
            RequestTimedOutError: The deadline passed; the records are still being sent.
        """
        accumulator = self.accumulator
        with accumulator.lock:
            batches = [batch for batch in accumulator.incomplete if not batch.done]
        if not batches:
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        open_count = len(batches)

        def one_done() -> None:
            nonlocal open_count
            open_count -= 1
            if not open_count and not done.done():
                done.set_result(None)

        accumulator.flush_count += 1
        for batch in batches:
            batch.add_done_callback(one_done)
        self.poke()
        left_ms = max(0, deadline_ms - self.now_ms())
        try:
            async with asyncio.timeout(left_ms / 1000):
                await done
        except TimeoutError:
            raise RequestTimedOutError(
                f"{open_count} batches were not acknowledged within {left_ms} ms"
            ) from None
        finally:
            accumulator.flush_count -= 1

    async def wait_idle(self, deadline_ms: int) -> None:
        """Wait until no request is in flight.

        Raises:
            RequestTimedOutError: The deadline passed.
        """
        if not any(True for _ in self.sender.in_flight_batches()):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle_waiters.append(waiter)
        left_ms = max(0, deadline_ms - self.now_ms())
        try:
            async with asyncio.timeout(left_ms / 1000):
                await waiter
        except TimeoutError:
            raise RequestTimedOutError(f"requests were not answered within {left_ms} ms") from None
        finally:
            if waiter in self._idle_waiters:
                self._idle_waiters.remove(waiter)

    async def stop_registering(self) -> None:
        """Stop adding partitions to the transaction."""
        task = self._tasks.get("register")
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @property
    def identity(self) -> ProducerIdentity | None:
        """Identity of a transactional producer."""
        return self.transactions.identity
