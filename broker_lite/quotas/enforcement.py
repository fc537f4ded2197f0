"""Measures clients against their quotas (KIP-13, KIP-124, KIP-219, KIP-599, KIP-612).

It computes how long a client above its quota must wait. The connection sends this time in its
answer and handles no further request meanwhile. All connections of an entity share its quota.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onceflow.broker_lite.quotas.client_quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    ClientQuotas,
    Limit,
)
from onceflow.broker_lite.quotas.rates import SECOND_MS, TokenBucket, WindowedRate

if TYPE_CHECKING:
    from onceflow.broker_lite.request_context import RequestContext
    from onceflow.broker_lite.settings.broker_config import BrokerConfig

PRODUCE_KEY = 0

MEASURES_MAX = 10_000
"""Most measures of one kind; beyond it idle ones are dropped, or else the oldest."""

PERCENT_PER_NS = 100 / 1_000_000_000

Sharers = tuple[str, str]


class QuotaEnforcement:
    """Measures of all clients with a quota.

    Args:
        quotas: What is set.
        config: Windows (``quota.window.num`` ...).

    Attributes:
        quotas: What is set.
        active: Whether any quota of requests is set; otherwise nothing is measured.
    """

    __slots__ = ("_addresses", "_buckets", "_controller_windows", "_rates", "_windows", "active",
                 "measures_requests", "quotas")  # fmt: skip

    def __init__(self, quotas: ClientQuotas, config: BrokerConfig) -> None:
        self.quotas: ClientQuotas = quotas
        self._windows = (config.quota_window_num, config.quota_window_size_seconds * SECOND_MS)
        self._controller_windows = (
            config.controller_quota_window_num,
            config.controller_quota_window_size_seconds * SECOND_MS,
        )
        self._rates: dict[tuple[str, Sharers], WindowedRate] = {}
        self._buckets: dict[Sharers, TokenBucket] = {}
        self._addresses: dict[str, WindowedRate] = {}
        self.active: bool = False
        self.measures_requests: bool = False
        quotas.on_change.append(self._note_what_is_set)
        self._note_what_is_set()

    def _note_what_is_set(self) -> None:
        self.measures_requests = self.quotas.is_set(REQUEST_PERCENTAGE)
        self.active = self.measures_requests or any(
            self.quotas.is_set(key)
            for key in (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONTROLLER_MUTATION_RATE)
        )

    def _limit(self, key: str, context: RequestContext) -> Limit | None:
        _, _, user = context.principal.partition(":")
        return self.quotas.limit(key, user, context.client_id or "")

    def _rate(self, key: str, limit: Limit, now_ms: int) -> WindowedRate:
        name = (key, limit.shared_by)
        rate = self._rates.get(name)
        if rate is None:
            if len(self._rates) >= MEASURES_MAX:
                for idle in [kept for kept, r in self._rates.items() if r.is_idle(now_ms)]:
                    del self._rates[idle]
                if len(self._rates) >= MEASURES_MAX:
                    del self._rates[next(iter(self._rates))]
            rate = self._rates[name] = WindowedRate(*self._windows)
        return rate

    def charge(
        self, context: RequestContext, api_key: int, size: int, duration_ns: int, now_ms: int
    ) -> int:
        """Count a request; return the milliseconds to wait.

        Args:
            context: Context of the request.
            api_key: Kind of request.
            size: Its bytes.
            duration_ns: Time that was spent on it.
            now_ms: Wall milliseconds.
        """
        throttle_ms = self.worked(context, duration_ns, now_ms) if self.measures_requests else 0
        if api_key == PRODUCE_KEY:
            throttle_ms = max(throttle_ms, self.produced(context, size, now_ms))
        return throttle_ms

    # --- bytes

    def produced(self, context: RequestContext, size: int, now_ms: int) -> int:
        """Count a Produce request; return the milliseconds to wait."""
        limit = self._limit(PRODUCER_BYTE_RATE, context)
        if limit is None:
            return 0
        rate = self._rate(PRODUCER_BYTE_RATE, limit, now_ms)
        rate.record(size, now_ms)
        return rate.throttle_ms(limit.value, now_ms)

    def fetch_room(self, context: RequestContext) -> int | None:
        """Return the most bytes of one Fetch, so that it does not exceed a small quota by far."""
        limit = self._limit(CONSUMER_BYTE_RATE, context)
        if limit is None:
            return None
        windows, window_ms = self._windows
        return int(limit.value * max(1, windows - 1) * window_ms / SECOND_MS)

    def fetched(self, context: RequestContext, size: int, now_ms: int) -> tuple[int, bool]:
        """Count a Fetch answer.

        Returns:
            Milliseconds to wait, and whether to send the answer nevertheless. An answer that is not
            sent is not counted, as the client asks again. A first batch that is larger than the
            quota is sent; otherwise the client would never get it.
        """
        limit = self._limit(CONSUMER_BYTE_RATE, context)
        if limit is None:
            return 0, True
        rate = self._rate(CONSUMER_BYTE_RATE, limit, now_ms)
        is_first = rate.per_second(now_ms) == 0
        rate.record(size, now_ms)
        throttle_ms = rate.throttle_ms(limit.value, now_ms)
        if throttle_ms and not is_first:
            rate.record(-size, now_ms)
        return throttle_ms, is_first or not throttle_ms

    # --- time

    def worked(self, context: RequestContext, duration_ns: int, now_ms: int) -> int:
        """Count the time of a request; return the milliseconds to wait, at most one window."""
        limit = self._limit(REQUEST_PERCENTAGE, context)
        if limit is None:
            return 0
        rate = self._rate(REQUEST_PERCENTAGE, limit, now_ms)
        rate.record(duration_ns * PERCENT_PER_NS, now_ms)
        return min(rate.throttle_ms(limit.value, now_ms), self._windows[1])

    # --- the controller

    def mutations(self, context: RequestContext, strict: bool, now_ms: int) -> MutationQuota:
        """Return how many partitions a request may still change.

        Args:
            context: Context of the request.
            strict: Whether to refuse it beyond the quota, as in versions that know the error;
                others only wait.
            now_ms: Wall milliseconds.
        """
        limit = self._limit(CONTROLLER_MUTATION_RATE, context)
        if limit is None:
            return MutationQuota(None, 0.0, strict, now_ms)
        bucket = self._buckets.get(limit.shared_by)
        if bucket is None:
            if len(self._buckets) >= MEASURES_MAX:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[limit.shared_by] = TokenBucket(*self._controller_windows)
        return MutationQuota(bucket, limit.value, strict, now_ms)

    # --- connections

    def connected(self, address: str, now_ms: int) -> int:
        """Count a new connection; return the milliseconds after which to close it."""
        if not self.quotas.is_set(CONNECTION_CREATION_RATE):
            return 0
        limit = self.quotas.connection_rate(address)
        if limit is None:
            return 0
        rate = self._addresses.get(address)
        if rate is None:
            if len(self._addresses) >= MEASURES_MAX:
                del self._addresses[next(iter(self._addresses))]
            rate = self._addresses[address] = WindowedRate(*self._windows)
        rate.record(1, now_ms)
        throttle_ms = min(rate.throttle_ms(limit, now_ms), self._windows[1])
        if throttle_ms:
            rate.record(-1, now_ms)
        return throttle_ms


class MutationQuota:
    """The quota of one request that creates or deletes partitions (KIP-599).

    Attributes:
        throttle_ms: How long the client must wait.
    """

    __slots__ = ("_bucket", "_limit", "_now_ms", "_strict", "throttle_ms")

    def __init__(self, bucket: TokenBucket | None, limit: float, strict: bool, now_ms: int) -> None:
        self._bucket = bucket
        self._limit = limit
        self._strict = strict
        self._now_ms = now_ms
        self.throttle_ms: int = 0

    def take(self, partitions: int) -> bool:
        """Count created or deleted partitions; return False if the quota forbids them."""
        bucket = self._bucket
        if bucket is None:
            return True
        if self._strict:
            self.throttle_ms = bucket.throttle_ms(self._limit, self._now_ms)
            if self.throttle_ms:
                return False
            bucket.take(partitions, self._limit, self._now_ms)
        else:
            bucket.take(partitions, self._limit, self._now_ms)
            self.throttle_ms = bucket.throttle_ms(self._limit, self._now_ms)
        return True
