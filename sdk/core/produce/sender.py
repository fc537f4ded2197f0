"""Decides which batches to send to which broker, and what an answer means for them.

The sender keeps the order of a partition under retries. A batch gets its sequence when it is first
sent. A retried batch keeps content and sequence, and later batches wait for its outcome (KIP-98,
KAFKA-5494). A batch that may be stored is always retried with its old producer id, epoch and
sequence. Only a batch that a broker has certainly refused gets a new sequence under a higher epoch
(KIP-360), so that renumbering neither loses nor duplicates records. No sockets, no clock, no
waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from onceflow.sdk.core.connection.metadata import ClusterMetadata
from onceflow.sdk.core.produce.accumulator import NEVER_MS, Accumulator, PartitionQueue
from onceflow.sdk.core.produce.batch import DeliveryHandle, ProducerBatch
from onceflow.sdk.core.produce.batch_split import split_batch
from onceflow.sdk.core.produce.errors import delivery_timeout, explain_refusal, topic_made_anew
from onceflow.sdk.core.produce.messages import (
    PartitionResult,
    ProduceJob,
    make_request,
    read_response,
)
from onceflow.sdk.core.produce.transaction_manager import TransactionManager
from onceflow.sdk.core.retry import (
    CONCURRENT_FIRST_MS,
    CONCURRENT_LONGEST_MS,
    Backoff,
    Recovery,
    recovery_for_code,
)
from onceflow.sdk.errors import (
    KafkaError,
    TransactionAbortedError,
)
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.observe.meters import ProducerCounters
from onceflow.sdk.protocol.api.produce import ProduceResponse
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for
from onceflow.sdk.protocol.records import increment_sequence, set_producer_state

EPOCH_MAX = 32_767
PARTITION_IN_FLIGHT_MAX = 5
"""Batches of one producer that a broker remembers per partition."""
KNOWN_FOR_MS = 600_000
"""How long after an acknowledgement a broker certainly knows the producer (its own limit is
``producer.id.expiration.ms``, a day by default)."""
_LOST_SEQUENCE = (
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.INVALID_PRODUCER_EPOCH,
)


@dataclass(slots=True)
class Plan:
    """What the driver must do after `Sender.plan`.

    Attributes:
        jobs: Requests to send, in this order.
        wake_at_ms: When to call `Sender.plan` again at the latest.
        connect: Nodes to connect to, as batches wait for them.
        metadata_topics: Topics whose leader is unknown.
        register: Partitions to add to the transaction first.
        identity_needed: Whether a producer id must be requested first.
    """

    jobs: list[ProduceJob] = field(default_factory=list)
    wake_at_ms: int = NEVER_MS
    connect: set[int] = field(default_factory=set)
    metadata_topics: set[str] = field(default_factory=set)
    register: set[TopicPartition] = field(default_factory=set)
    identity_needed: bool = False

    def wake_at(self, at_ms: int) -> None:
        """Make `wake_at_ms` this time, unless it is earlier."""
        self.wake_at_ms = min(self.wake_at_ms, at_ms)


class Sender:
    """Sends batches of the accumulator to brokers and sets their outcomes.

    Attributes:
        in_flight_count: Unanswered requests by node.
        metadata_stale: Whether an answer showed that leaders have moved.
        connection_error: The last failure to connect to a node, None if all succeeded.
        failures: Failed batches outside of transactions, whose errors the next call raises if
            their deliveries were not looked at. That call empties the list.
        counters: Counts for metrics.
    """

    def __init__(
        self,
        accumulator: Accumulator[DeliveryHandle],
        transactions: TransactionManager,
        backoff: Backoff,
        *,
        acks: int,
        idempotent: bool,
        request_timeout_ms: int,
        delivery_timeout_ms: int,
        max_request_size: int,
        max_in_flight: int,
    ) -> None:
        self.in_flight_count: dict[int, int] = {}
        self.metadata_stale: bool = False
        self.connection_error: KafkaError | None = None
        self.failures: list[ProducerBatch] = []
        self._accumulator = accumulator
        self._transactions = transactions
        self._backoff = backoff
        self._concurrent = Backoff(CONCURRENT_FIRST_MS, CONCURRENT_LONGEST_MS, backoff.random)
        self._acks = acks
        self._idempotent = idempotent
        self._request_timeout_ms = request_timeout_ms
        self._delivery_timeout_ms = delivery_timeout_ms
        self._max_request_size = max_request_size
        self._max_in_flight = max_in_flight
        self._in_flight_queues: dict[PartitionQueue, None] = {}
        self.counters: ProducerCounters = ProducerCounters()
        self._now_ms = 0

    # choosing what to send

    def plan(
        self, metadata: ClusterMetadata, is_connected: Callable[[int], bool], now_ms: int
    ) -> Plan:
        """Look at every queue that has something to send.

        Args:
            metadata: Where the leaders are.
            is_connected: Whether a node can take a request now.
            now_ms: The present time.

        Returns:
            The plan. Batches in its jobs count as in flight from now on.
        """
        self._now_ms = now_ms
        plan = Plan()
        expired: list[ProducerBatch] = []
        chosen: dict[int, list[tuple[PartitionQueue, ProducerBatch]]] = {}
        sizes: dict[int, int] = {}
        accumulator = self._accumulator
        with accumulator.lock:
            for queue in list(accumulator.active):
                self._expire(queue, now_ms, expired)
                if queue.is_empty:
                    del accumulator.active[queue]
                    continue
                node_id = self._ready_node(queue, metadata, is_connected, plan, now_ms)
                if node_id is None:
                    continue
                self._take(queue, node_id, chosen, sizes, plan, now_ms)
            accumulator.batch_sealed = False
            for queue in list(self._in_flight_queues):
                self._expire_in_flight(queue, now_ms, expired, plan)
        for batch in expired:
            queue = accumulator.topics[batch.topic].queues[batch.partition]
            trouble = queue.last_error or self.connection_error
            self._give_up(batch, delivery_timeout(batch, self._delivery_timeout_ms, trouble))
        for node_id, items in chosen.items():
            plan.jobs.append(self._make_job(node_id, items, metadata))
        return plan

    def _ready_node(
        self,
        queue: PartitionQueue,
        metadata: ClusterMetadata,
        is_connected: Callable[[int], bool],
        plan: Plan,
        now_ms: int,
    ) -> int | None:
        """Return the node for the queue's first batch; None if the batch has to wait."""
        head = queue.sealed[0] if queue.sealed else queue.open
        assert head is not None
        plan.wake_at(head.created_ms + self._delivery_timeout_ms)
        if not queue.sealed and not self._is_due(head, plan, now_ms):
            return None
        if self._idempotent and not self._transactions.has_identity:
            plan.identity_needed = True
            return None
        if not self._transactions.may_send and self._transactions.is_transactional:
            return None
        if queue.retry_at_ms > now_ms:
            plan.wake_at(queue.retry_at_ms)
            return None
        if self._idempotent and not self._order_allows(queue, head, plan, now_ms):
            return None
        partition = TopicPartition(queue.topic, queue.partition)
        if self._transactions.is_transactional and self._transactions.needs_registration(partition):
            plan.register.add(partition)
            return None
        node_id = metadata.leader(partition)
        if node_id is None:
            plan.metadata_topics.add(queue.topic)
            return None
        if self.in_flight_count.get(node_id, 0) >= self._max_in_flight:
            return None
        if not is_connected(node_id):
            plan.connect.add(node_id)
            return None
        return node_id

    def _is_due(self, batch: ProducerBatch, plan: Plan, now_ms: int) -> bool:
        accumulator = self._accumulator
        if accumulator.flush_count or accumulator.memory_waiters:
            return True
        due_ms = batch.created_ms + accumulator.linger_ms
        if due_ms <= now_ms:
            return True
        plan.wake_at(due_ms)
        return False

    def _order_allows(
        self, queue: PartitionQueue, head: ProducerBatch, plan: Plan, now_ms: int
    ) -> bool:
        if queue.in_flight and queue.known_until_ms <= now_ms:
            # A broker accepts any first sequence from a producer that it does not know
            # (KAFKA-15591). If it refused the first batch and accepted the second, their order
            # would be wrong. So only one batch is in flight until it is acknowledged.
            return False
        if len(queue.in_flight) >= PARTITION_IN_FLIGHT_MAX:
            return False
        if queue.in_flight and (head.base_sequence >= 0 or queue.bump_needed):
            return False  # A retry, or the first batch of an epoch, is alone in flight.
        manager = self._transactions
        if queue.producer_id != manager.producer_id or (
            manager.is_transactional and queue.producer_epoch != manager.producer_epoch
        ):
            # A new producer id or epoch: sequences begin at 0 when no batch of the old one is open.
            if any(True for _ in queue.unsettled()) and not head.rejected:
                return queue.producer_id >= 0 and not queue.in_flight
            if queue.in_flight:
                return False
            epoch = manager.producer_epoch
            if not manager.is_transactional:
                epoch = self._accumulator.first_epoch(manager.producer_id, epoch)
                if epoch > EPOCH_MAX:
                    manager.bump_required = plan.identity_needed = True
                    return False
            self._renumber(queue, manager.producer_id, epoch)
        elif manager.is_transactional:
            pass  # Only the coordinator raises a transactional producer's epoch.
        elif queue.bump_needed and (head.base_sequence < 0 or head.rejected or not head.attempts):
            if queue.producer_epoch >= EPOCH_MAX:
                manager.bump_required = True
                plan.identity_needed = True
                return False
            self._renumber(queue, queue.producer_id, queue.producer_epoch + 1)
        return True

    def _renumber(self, queue: PartitionQueue, producer_id: int, producer_epoch: int) -> None:
        if queue.producer_id != producer_id:
            queue.known_until_ms = 0
        queue.producer_id, queue.producer_epoch = producer_id, producer_epoch
        queue.next_sequence = 0
        queue.bump_needed = False
        for batch in queue.sealed:
            batch.base_sequence = -1
            batch.rejected = False

    def _take(
        self,
        queue: PartitionQueue,
        node_id: int,
        chosen: dict[int, list[tuple[PartitionQueue, ProducerBatch]]],
        sizes: dict[int, int],
        plan: Plan,
        now_ms: int,
    ) -> None:
        if not queue.sealed:
            self._accumulator.seal(queue)
        batch = queue.sealed[0]
        size = sizes.get(node_id, 0)
        if size and size + batch.reserved > self._max_request_size:
            plan.wake_at(now_ms)  # The next request, which follows at once, takes it.
            return
        queue.sealed.popleft()
        if queue.is_empty:
            del self._accumulator.active[queue]
        else:
            # Move the queue to the end, so that a full one does not starve the others.
            del self._accumulator.active[queue]
            self._accumulator.active[queue] = None
            plan.wake_at(now_ms if queue.sealed else plan.wake_at_ms)
        sizes[node_id] = size + batch.reserved
        chosen.setdefault(node_id, []).append((queue, batch))
        queue.in_flight.append(batch)
        self._in_flight_queues[queue] = None

    def _make_job(
        self,
        node_id: int,
        items: list[tuple[PartitionQueue, ProducerBatch]],
        metadata: ClusterMetadata,
    ) -> ProduceJob:
        records_count = 0
        for queue, batch in items:
            self._build(queue, batch)
            records_count += batch.count
            batch.attempts += 1
            batch.rejected = batch.topic_gone = False
        self.counters.request_records.add(records_count, self._now_ms)
        self.in_flight_count[node_id] = self.in_flight_count.get(node_id, 0) + 1
        if self._transactions.is_transactional:
            self._transactions.has_content = True
        return make_request(
            node_id,
            items,
            metadata,
            acks=self._acks,
            timeout_ms=self._request_timeout_ms,
            transactional_id=self._transactions.transactional_id,
            protocol_version=self._transactions.protocol_version,
        )

    def _build(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Build the batch's bytes; give it a sequence if it has none."""
        transactional = self._transactions.is_transactional
        numbered = not self._idempotent or batch.base_sequence >= 0
        if not numbered:
            batch.base_sequence = queue.next_sequence
            batch.producer_id, batch.producer_epoch = queue.producer_id, queue.producer_epoch
            queue.next_sequence = increment_sequence(queue.next_sequence, batch.count)
        if batch.data is None:
            self._count_built(batch, batch.build(transactional))
            return
        if not batch.attempts:
            self._count_built(batch, len(batch.data))  # It was encoded elsewhere.
        if not numbered:
            set_producer_state(
                batch.data,
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                transactional,
            )

    def _count_built(self, batch: ProducerBatch, plain_bytes: int) -> None:
        now_ms = self._now_ms
        plain_size = max(1, plain_bytes) if self._accumulator.codec else 0
        size, waited_ms = len(batch.data or b""), now_ms - batch.created_ms
        self.counters.built(batch.topic, size, plain_size, waited_ms, now_ms)

    # time

    def _expire(self, queue: PartitionQueue, now_ms: int, expired: list[ProducerBatch]) -> None:
        limit_ms = now_ms - self._delivery_timeout_ms
        if queue.open is not None and queue.open.created_ms <= limit_ms:
            self._accumulator.seal(queue)
        while queue.sealed and queue.sealed[0].created_ms <= limit_ms:
            batch = queue.sealed.popleft()
            if batch.base_sequence >= 0:
                queue.bump_needed = True
            expired.append(batch)

    def _expire_in_flight(
        self, queue: PartitionQueue, now_ms: int, expired: list[ProducerBatch], plan: Plan
    ) -> None:
        for batch in queue.in_flight:
            if batch.done:
                continue
            due_ms = batch.created_ms + self._delivery_timeout_ms
            if due_ms <= now_ms:
                # It stays in flight until its answer or the end of its connection: a new epoch
                # must not begin before.
                queue.bump_needed = True
                expired.append(batch)
            else:
                plan.wake_at(due_ms)

    # answers

    def answered(self, job: ProduceJob, response: ProduceResponse, now_ms: int) -> None:
        """Handle a broker's answer to a request.

        Args:
            job: The request.
            response: The answer.
            now_ms: The present time.
        """
        self._now_ms = now_ms
        self._request_done(job)
        results = read_response(job, response)
        for queue, batch in job.items:
            queue.in_flight.remove(batch)
            self._settle_queue(queue)
            result = results.get((queue.topic, queue.partition))
            if batch.done:
                self._accumulator.settle(batch)
            elif result is None:
                self._retry(queue, batch, ErrorCode.UNKNOWN_SERVER_ERROR, now_ms)
            elif result.error_code in (
                ErrorCode.NONE,
                ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
            ):
                queue.failures = 0
                queue.last_error = None
                queue.known_until_ms = now_ms + KNOWN_FOR_MS
                queue.transaction = batch.transaction
                if batch.transaction == self._transactions.number:
                    self._transactions.is_acknowledged = True
                self.counters.stored(batch.topic, batch.count, now_ms)
                batch.complete(result.base_offset, result.log_append_time_ms)
                self._accumulator.settle(batch)
                if batch.topic_gone:
                    self._stored_in_a_former_topic(batch)
            else:
                self._refused(queue, batch, result, now_ms)

    def _stored_in_a_former_topic(self, batch: ProducerBatch) -> None:
        manager = self._transactions
        if batch.transaction and batch.transaction == manager.number and manager.may_send:
            manager.fail(topic_made_anew(batch.topic))

    def sent_without_answer(self, job: ProduceJob) -> None:
        """Complete a request with ``acks=0`` after it was written; it gets no answer."""
        self._request_done(job)
        for queue, batch in job.items:
            queue.in_flight.remove(batch)
            self._settle_queue(queue)
            self.counters.stored(batch.topic, batch.count, self._now_ms)
            batch.complete(-1)
            self._accumulator.settle(batch)

    def failed(self, job: ProduceJob, error: KafkaError, now_ms: int) -> None:
        """Handle a request without an answer: its batches may be stored or not.

        Args:
            job: The request.
            error: What happened instead.
            now_ms: The present time.
        """
        self._now_ms = now_ms
        self._request_done(job)
        self.metadata_stale = True
        for queue, batch in job.items:
            queue.in_flight.remove(batch)
            self._settle_queue(queue)
            if batch.done:
                self._accumulator.settle(batch)
            elif error.retriable:
                queue.last_error = error
                self._back_off(queue, self._backoff, now_ms)
                self._requeue(queue, batch)
            else:
                if self._idempotent:
                    queue.bump_needed = True
                self._give_up(batch, error)

    def _request_done(self, job: ProduceJob) -> None:
        self.in_flight_count[job.node_id] -= 1

    def _settle_queue(self, queue: PartitionQueue) -> None:
        if not queue.in_flight:
            self._in_flight_queues.pop(queue, None)

    def _refused(
        self, queue: PartitionQueue, batch: ProducerBatch, result: PartitionResult, now_ms: int
    ) -> None:
        code = result.error_code
        if code == ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1:
            self._split(queue, batch)
        elif code in _LOST_SEQUENCE and self._idempotent:
            self._lost_sequence(queue, batch, result, now_ms)
        elif recovery_for_code(code) is not Recovery.NONE:
            self._retry(queue, batch, code, now_ms)
        else:
            if self._idempotent:
                queue.bump_needed = True
            self._give_up(
                batch, *explain_refusal(batch, result, self._transactions.transactional_id)
            )

    def _retry(self, queue: PartitionQueue, batch: ProducerBatch, code: int, now_ms: int) -> None:
        if recovery_for_code(code) is Recovery.REFRESH_METADATA:
            self.metadata_stale = True
        queue.last_error = error_for(code)
        concurrent = code == ErrorCode.CONCURRENT_TRANSACTIONS
        self._back_off(queue, self._concurrent if concurrent else self._backoff, now_ms)
        self._requeue(queue, batch)

    def _lost_sequence(
        self, queue: PartitionQueue, batch: ProducerBatch, result: PartitionResult, now_ms: int
    ) -> None:
        """Handle a batch that the broker certainly did not store under its sequence and epoch."""
        batch.rejected = True
        is_sequence = result.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        earlier = any(other.order < batch.order for other in queue.unsettled())
        if is_sequence and earlier:
            # An earlier batch did not arrive: both are sent again, in order.
            self._requeue(queue, batch)
            return
        if self._transactions.is_transactional:
            self._give_up(
                batch, *explain_refusal(batch, result, self._transactions.transactional_id)
            )
            return
        if result.error_code == ErrorCode.INVALID_PRODUCER_EPOCH:
            self._transactions.bump_required = True  # Epochs are used up: get a new producer id.
            queue.producer_epoch = EPOCH_MAX
        queue.bump_needed = True
        self._back_off(queue, self._backoff, now_ms)
        self._requeue(queue, batch)

    def _back_off(self, queue: PartitionQueue, backoff: Backoff, now_ms: int) -> None:
        queue.failures += 1
        queue.retry_at_ms = max(queue.retry_at_ms, now_ms + backoff.delay_ms(queue.failures))

    def _requeue(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        if self._transactions.is_transactional and not self._transactions.may_send:
            # The transaction has failed: do not send its batches again.
            self._give_up(batch, self._transactions.error or TransactionAbortedError())
            return
        self.counters.retried(batch.topic, batch.count, self._now_ms)
        with self._accumulator.lock:
            queue.requeue(batch)
            self._accumulator.active[queue] = None

    def _split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Replace a batch that was too large by two smaller ones (KIP-126)."""
        self.counters.splits += 1
        children = split_batch(batch, self._accumulator.codec, self._accumulator.level)
        with self._accumulator.lock:
            sequence = batch.base_sequence
            for _, child in children:
                if sequence >= 0:
                    child.base_sequence = sequence
                    sequence = increment_sequence(sequence, child.count)
                self._accumulator.memory_used += child.reserved
                self._accumulator.incomplete[child] = None
                queue.requeue(child)
            self._accumulator.active[queue] = None
        batch.split_into(children)
        self._accumulator.settle(batch)

    def _give_up(
        self,
        batch: ProducerBatch,
        error: KafkaError,
        record_errors: dict[int, KafkaError] | None = None,
    ) -> None:
        if batch.transaction and batch.transaction == self._transactions.number:
            if batch.base_sequence >= 0:
                self._transactions.bump_required = True
            self._transactions.fail(error)
        if not batch.transaction:
            self.failures.append(batch)
        self.counters.given_up(batch.topic, batch.count, self._now_ms)
        batch.fail(error, record_errors)
        if not self._is_in_flight(batch):
            self._accumulator.settle(batch)

    def _is_in_flight(self, batch: ProducerBatch) -> bool:
        queue = self._accumulator.topics[batch.topic].queues[batch.partition]
        return batch in queue.in_flight

    # purging

    def purge(self, error: KafkaError, *, count_as_failure: bool = False) -> None:
        """Fail all batches that wait to be sent.

        Args:
            error: Why.
            count_as_failure: Whether a later call raises the error if no delivery is looked at.
        """
        for batch in self._accumulator.remove_open_and_sealed():
            if batch.base_sequence >= 0:
                queue = self._accumulator.topics[batch.topic].queues[batch.partition]
                queue.bump_needed = True
                if batch.transaction:
                    self._transactions.bump_required = True
            if count_as_failure and not batch.transaction:
                self.failures.append(batch)
            self.counters.given_up(batch.topic, batch.count, self._now_ms)
            batch.fail(error)
            self._accumulator.settle(batch)

    def in_flight_batches(self) -> Iterable[ProducerBatch]:
        """Yield the batches whose request is not answered yet."""
        for queue in self._in_flight_queues:
            yield from queue.in_flight
