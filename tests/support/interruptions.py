"""Interrupts a call where CPython lets signal handlers run: at the entry of a function, and after a
call of a built-in one. Compiled modules have no such points."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")

POINTS_MAX = 1_000
"""No call that is tried has so many."""


class Interruption(BaseException):
    """As KeyboardInterrupt, from the handler of a signal."""


class InterruptAt:
    """A signal at one point of a call.

    Args:
        point: Which point, from 0; those of tests and of most other libraries do not count.

    Attributes:
        happened: Whether the call got that far.
    """

    def __init__(self, point: int) -> None:
        self._left = point
        self.happened: bool = False

    def _look(self, frame: FrameType, event: str, argument: object) -> None:
        if self.happened or event not in ("call", "c_return") or argument is sys.setprofile:
            return
        path = frame.f_code.co_filename
        if "/tests/" in path or not ("/onceflow/" in path or path.endswith("/typing.py")):
            return
        self._left -= 1
        if self._left < 0:
            self.happened = True
            raise Interruption

    def run(self, function: Callable[[], T]) -> T | None:
        """Call a function; None when it was interrupted."""
        before = sys.getprofile()
        sys.setprofile(self._look)
        # No context manager: its functions would have points of their own.
        try:
            return function()
        except Interruption:
            return None
        finally:
            sys.setprofile(before)
