"""What clients count, once for each batch, request or event and never for each record.

A `Meter` keeps totals for ever and remembers one or two windows of half a minute, of which rates,
averages and greatest values are made (Kafka's ``metrics.sample.window.ms`` and
``metrics.num.samples``, at their defaults). Written by one thread, the loop's; reading from another
may see a count that is one event old, never a wrong one. ``onceflow.sdk.observe.metrics`` names the
figures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

WINDOW_MS: Final = 30_000

TOPICS_MAX: Final = 1_000
"""Topics whose figures a client keeps apart; those beyond are in its totals only."""


class Meter:
    """Counts events that have a value, such as batches with their bytes.

    Attributes:
        count: Events so far.
        total: Sum of their values.
    """

    __slots__ = (
        "_before",
        "_before_max",
        "_max",
        "_start",
        "_started",
        "count",
        "total",
    )

    def __init__(self) -> None:
        self.count: int = 0
        self.total: float = 0.0
        self._started = False
        self._start = self._before = (0, 0, 0.0)
        self._max = self._before_max = 0.0

    def add(self, value: float, now_ms: int) -> None:
        """Count one event.

        Args:
            value: Its value.
            now_ms: The present time.
        """
        if now_ms - self._start[0] >= WINDOW_MS:
            self._roll(now_ms)
        self.count += 1
        self.total += value
        self._max = max(self._max, value)

    def _roll(self, now_ms: int) -> None:
        mark = (now_ms, self.count, self.total)
        stale = not self._started or now_ms - self._start[0] >= 2 * WINDOW_MS
        self._before = mark if stale else self._start
        self._before_max = 0.0 if stale else self._max
        self._start = mark
        self._max = 0.0
        self._started = True

    def _window(self, now_ms: int) -> tuple[int, int, float]:
        """What was counted lately: milliseconds, events, sum of their values."""
        if not self._started or now_ms - self._start[0] >= 2 * WINDOW_MS:
            return 1, 0, 0.0
        since = self._before
        return max(1, now_ms - since[0]), self.count - since[1], self.total - since[2]

    def rate(self, now_ms: int) -> float:
        """Sum of values in a second, over the last windows."""
        elapsed_ms, _, total = self._window(now_ms)
        return total * 1000 / max(elapsed_ms, 1000)

    def event_rate(self, now_ms: int) -> float:
        """Events in a second, over the last windows."""
        elapsed_ms, count, _ = self._window(now_ms)
        return count * 1000 / max(elapsed_ms, 1000)

    def average(self, now_ms: int) -> float:
        """Average value over the last windows; 0 without events."""
        _, count, total = self._window(now_ms)
        return total / count if count else 0.0

    def greatest(self, now_ms: int) -> float:
        """Greatest value of the last windows; 0 without events."""
        if not self._started or now_ms - self._start[0] >= 2 * WINDOW_MS:
            return 0.0
        return max(self._max, self._before_max)


class Traffic:
    """What a client's connections carried.

    Attributes:
        received: Bytes, by arrivals.
        sent: Bytes, by requests.
        opened: Connections made.
        closed: Connections gone.
        failed: Connections that could not be made.
    """

    __slots__ = ("closed", "failed", "opened", "received", "sent")

    def __init__(self) -> None:
        self.received: Meter = Meter()
        self.sent: Meter = Meter()
        self.opened: int = 0
        self.closed: int = 0
        self.failed: int = 0


T = TypeVar("T")


class ByTopic(Generic[T]):
    """Counters of single topics, of a bounded number of them.

    Attributes:
        found: Counters by topic.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self.found: dict[str, T] = {}
        self._make = make
        self._rest = make()

    def of(self, topic: str) -> T:
        """The counters of a topic.

        Args:
            topic: Topic name.
        """
        found = self.found.get(topic)
        if found is None:
            if len(self.found) >= TOPICS_MAX:
                return self._rest
            found = self.found[topic] = self._make()
        return found


class TopicSent:
    """What a producer counts of one topic; see ``ProducerCounters``."""

    __slots__ = ("batch_bytes", "compression", "errors", "records", "retries")

    def __init__(self) -> None:
        self.records: Meter = Meter()
        self.batch_bytes: Meter = Meter()
        self.compression: Meter = Meter()
        self.retries: Meter = Meter()
        self.errors: Meter = Meter()


class TopicRead:
    """What a consumer counts of one topic; see ``ConsumerCounters``."""

    __slots__ = ("fetch_bytes", "records")

    def __init__(self) -> None:
        self.records: Meter = Meter()
        self.fetch_bytes: Meter = Meter()


class ProducerCounters:
    """What a producer counts.

    Attributes:
        records: Records acknowledged, by batches.
        batch_bytes: Bytes of batches sent, by first sendings.
        compression: Compressed size by uncompressed size of each batch.
        queue_ms: How long each batch waited to be sent for the first time.
        request_records: Records of each Produce request.
        latency_ms: Milliseconds from request to answer.
        throttle_ms: Throttle time of each answer.
        retries: Records sent again, by batches.
        errors: Records given up, by batches.
        topics: The same by topic, as far as it concerns single topics.
        splits: Batches that were too large and were sent in two.
        buffer_waits: Times that sending had to wait for memory.
        transactions_committed: Transactions committed.
        transactions_aborted: Transactions aborted.
        interceptor_errors: Interceptors that raised.
    """

    def __init__(self) -> None:
        self.records: Meter = Meter()
        self.batch_bytes: Meter = Meter()
        self.compression: Meter = Meter()
        self.queue_ms: Meter = Meter()
        self.request_records: Meter = Meter()
        self.latency_ms: Meter = Meter()
        self.throttle_ms: Meter = Meter()
        self.retries: Meter = Meter()
        self.errors: Meter = Meter()
        self.topics: ByTopic[TopicSent] = ByTopic(TopicSent)
        self.splits = 0
        self.buffer_waits = 0
        self.transactions_committed = 0
        self.transactions_aborted = 0
        self.interceptor_errors = 0

    def built(self, topic: str, size: int, plain_size: int, waited_ms: int, now_ms: int) -> None:
        """A batch is about to be sent for the first time.

        Args:
            topic: Its topic.
            size: Its bytes.
            plain_size: The same before compression, 0 for none.
            waited_ms: Since it was begun.
            now_ms: The present time.
        """
        mine = self.topics.of(topic)
        self.batch_bytes.add(size, now_ms)
        mine.batch_bytes.add(size, now_ms)
        self.queue_ms.add(waited_ms, now_ms)
        if plain_size:
            self.compression.add(size / plain_size, now_ms)
            mine.compression.add(size / plain_size, now_ms)

    def stored(self, topic: str, records_count: int, now_ms: int) -> None:
        """Records of a topic were acknowledged."""
        self.records.add(records_count, now_ms)
        self.topics.of(topic).records.add(records_count, now_ms)

    def retried(self, topic: str, records_count: int, now_ms: int) -> None:
        """Records of a topic are sent again."""
        self.retries.add(records_count, now_ms)
        self.topics.of(topic).retries.add(records_count, now_ms)

    def given_up(self, topic: str, records_count: int, now_ms: int) -> None:
        """Records of a topic are given up."""
        self.errors.add(records_count, now_ms)
        self.topics.of(topic).errors.add(records_count, now_ms)


class ConsumerCounters:
    """What a consumer counts.

    Attributes:
        records: Records decoded for the application, by polls.
        fetch_bytes: Bytes of batches of each Fetch answer.
        topics: Records and bytes by topic.
        latency_ms: Milliseconds from Fetch to answer.
        throttle_ms: Throttle time of each answer.
        fetch_errors: Fetches without an answer.
        commit_ms: Milliseconds of each commit that succeeded.
        commit_errors: Commits that failed.
        rebalances: Assignments received.
        partitions_revoked: Partitions given up in order.
        partitions_lost: Partitions lost without warning.
        rebalanced_ms: When the last assignment came, 0 if none has.
        interceptor_errors: Interceptors that raised.
    """

    def __init__(self) -> None:
        self.records: Meter = Meter()
        self.fetch_bytes: Meter = Meter()
        self.topics: ByTopic[TopicRead] = ByTopic(TopicRead)
        self.latency_ms: Meter = Meter()
        self.throttle_ms: Meter = Meter()
        self.fetch_errors = 0
        self.commit_ms: Meter = Meter()
        self.commit_errors = 0
        self.rebalances = 0
        self.partitions_revoked = 0
        self.partitions_lost = 0
        self.rebalanced_ms = 0
        self.interceptor_errors = 0
