"""Refuses calls of a session from a second thread while another thread is within one.

A commit beside a poll would take the offsets of records that nobody has processed. It only finds
mistakes: a session belongs to one thread at a time, and this locks nothing that is used rightly.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from onceflow.sdk.errors import IllegalStateError


class OneThread:
    """The thread that is within a call of a session; tasks of one event loop count as one.

    Args:
        name: What the session is called, for errors.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.RLock()  # Calls within a callback of a call are the same thread's.

    def check(self, call: str) -> None:
        """Raise if another thread is within a call.

        Args:
            call: The call that is about to begin, for errors.

        Raises:
            IllegalStateError: Another thread is within a call.
        """
        if not self._lock.acquire(blocking=False):
            raise self._refused(call)
        self._lock.release()

    def _refused(self, call: str) -> IllegalStateError:
        return IllegalStateError(
            f"session {self._name}: {call}() while another thread is within a call of it; let "
            "one thread at a time poll, commit and abort, and only send from others"
        )

    @contextlib.contextmanager
    def within(self, call: str) -> Iterator[None]:
        """Hold the session for a call.

        Args:
            call: The call, for errors.

        Raises:
            IllegalStateError: Another thread is within a call.
        """
        if not self._lock.acquire(blocking=False):
            raise self._refused(call)
        try:
            yield
        finally:
            self._lock.release()
