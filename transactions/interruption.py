"""Remembers that a cancellation or a signal ended a call of a session before its end.

How far the call got is not known then. The session that remembers it ends the open work before
anything else. This module decides nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class Interruption:
    """Whether a call was interrupted.

    Attributes:
        happened: A call was interrupted, and the session has not acted on it yet.
        had_work: Work was open when that call began.
    """

    def __init__(self) -> None:
        self.happened: bool = False
        self.had_work: bool = False

    @contextlib.contextmanager
    def noted(self, *, has_work: bool) -> Iterator[None]:
        """Note that a cancellation or a signal ended the block early.

        Args:
            has_work: Whether work is open now, which the block may end.
        """
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self.happened = True
            self.had_work |= has_work
            raise

    def clear(self) -> None:
        """Forget it: the open work is ended."""
        self.happened = self.had_work = False
