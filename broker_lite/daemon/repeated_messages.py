"""Limits the rate of repeated log messages: a full disk fails each request, for hours.

It drops repeated log records, and later logs how many. Every log call in the code has its own
limit, so that one failure does not hide another.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

WINDOW_S = 10.0
"""Length of a window, in seconds."""

ALLOWED = 10
"""Most messages of one log call in a window."""


class _Place:
    """Counts of one log call."""

    __slots__ = ("began_s", "left_out", "passed")

    def __init__(self) -> None:
        self.began_s = float("-inf")
        self.passed = 0
        self.left_out = 0


class RepeatedMessages(logging.Filter):
    """Passes a limited number of records of one log call in each window, and counts the others.

    The call's first record in a later window carries the count. Only warnings and errors
    are limited.

    Args:
        clock_s: A clock in seconds that is never set back.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        self._places: dict[tuple[str, int], _Place] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write a record; called by ``logging``."""
        if record.levelno < logging.WARNING:
            return True
        place = self._places.setdefault((record.pathname, record.lineno), _Place())
        now_s = self._clock_s()
        if now_s - place.began_s >= WINDOW_S:
            if place.left_out:
                record.msg = f"{record.getMessage()} (and {place.left_out} more like this before)"
                record.args = None
            place.began_s, place.passed, place.left_out = now_s, 0, 0
        if place.passed >= ALLOWED:
            place.left_out += 1
            return False
        place.passed += 1
        return True
