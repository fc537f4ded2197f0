"""Rates over windows and token buckets, computed as Kafka computes them.

Time is an argument in wall milliseconds.
"""

from __future__ import annotations

from collections import deque

SECOND_MS = 1000


class WindowedRate:
    """A rate over the last windows, of which the newest is still being filled.

    As in Kafka's ``Rate``, a window begins with the first event after the end of the last window.
    The time of the rate is never less than all windows but one, so that a first burst counts
    little.

    Args:
        windows: How many windows are kept (``quota.window.num``).
        window_ms: Length of one (``quota.window.size.seconds``).
    """

    __slots__ = ("_samples", "_window_ms", "_windows")

    def __init__(self, windows: int, window_ms: int) -> None:
        self._windows = windows
        self._window_ms = window_ms
        self._samples: deque[list[float]] = deque()

    def record(self, amount: float, now_ms: int) -> None:
        """Count an amount; a negative one takes it back."""
        samples = self._samples
        if samples and now_ms - samples[-1][0] < self._window_ms:
            samples[-1][1] += amount
            return
        samples.append([now_ms, amount])
        self._purge(now_ms)

    def _purge(self, now_ms: int) -> None:
        samples = self._samples
        kept_ms = self._windows * self._window_ms
        while samples and (now_ms - samples[0][0] >= kept_ms or len(samples) > self._windows):
            samples.popleft()

    def measured_ms(self, now_ms: int) -> int:
        """Return the time over which the rate is computed."""
        self._purge(now_ms)
        elapsed_ms = int(now_ms - self._samples[0][0]) if self._samples else 0
        missing = self._windows - 1 - elapsed_ms // self._window_ms
        return max(1, elapsed_ms + max(0, missing) * self._window_ms)

    def per_second(self, now_ms: int) -> float:
        """Return the amount per second."""
        measured_ms = self.measured_ms(now_ms)
        return sum(amount for _, amount in self._samples) * SECOND_MS / measured_ms

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Return how long to wait until the rate is at its limit again; 0 if it is not above."""
        rate = self.per_second(now_ms)
        if rate <= limit:
            return 0
        return round((rate - limit) / limit * self.measured_ms(now_ms))

    def is_idle(self, now_ms: int) -> bool:
        """Whether all amounts are forgotten, as in a new one."""
        self._purge(now_ms)
        return not self._samples


class TokenBucket:
    """A bucket that is refilled at a rate, up to the tokens of all windows (KIP-599).

    Args:
        windows: How many windows (``controller.quota.window.num``).
        window_ms: Length of one (``controller.quota.window.size.seconds``).
    """

    __slots__ = ("_last_ms", "_span_s", "_tokens")

    def __init__(self, windows: int, window_ms: int) -> None:
        self._span_s = windows * window_ms / SECOND_MS
        self._tokens: float | None = None
        self._last_ms = 0

    def _refill(self, limit: float, now_ms: int) -> float:
        burst = limit * self._span_s
        if self._tokens is None:
            tokens = burst
        else:
            tokens = self._tokens + (now_ms - self._last_ms) * limit / SECOND_MS
        self._tokens = min(burst, tokens)
        self._last_ms = now_ms
        return self._tokens

    def throttle_ms(self, limit: float, now_ms: int) -> int:
        """Return how long to wait until the bucket is not overdrawn; 0 if it is not."""
        tokens = self._refill(limit, now_ms)
        return round(-tokens / limit * SECOND_MS) if tokens < 0 else 0

    def take(self, count: float, limit: float, now_ms: int) -> None:
        """Take tokens, possibly more than there are."""
        self._tokens = self._refill(limit, now_ms) - count

    def is_idle(self, limit: float, now_ms: int) -> bool:
        """Whether it is full, like a new one."""
        return self._refill(limit, now_ms) >= limit * self._span_s
