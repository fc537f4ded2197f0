"""Detects two live processes that share one transactional id.

One fence is normal: the group replaced a process that still lives, or the coordinator raised the
epoch. Two fences within a short time mean that another process initialises the same id repeatedly,
and fencing it back would never end. This module counts; the session raises the error.
"""

from __future__ import annotations

from collections import deque


class FenceWatch:
    """Counts fences in a sliding window.

    Args:
        window_s: Seconds in which ``limit`` fences mean a shared id.
        limit: How many fences within the window are too many.
    """

    __slots__ = ("_limit", "_times", "_window_s")

    def __init__(self, window_s: float, limit: int = 2) -> None:
        self._window_s = window_s
        self._limit = limit
        self._times: deque[float] = deque(maxlen=limit)

    def fenced(self, now_s: float) -> bool:
        """Note a fence.

        Args:
            now_s: Seconds on a monotonic clock.

        Returns:
            Whether the id must be shared by another live process.
        """
        self._times.append(now_s)
        return len(self._times) == self._limit and now_s - self._times[0] <= self._window_s
