"""Closes a broker's sockets and lock in a forked child (``multiprocessing`` forks on Linux).

The child has copies of the parent's sockets and lock, but no thread that serves. While it lives,
the parent's address would stay taken, its folder locked, and its clients would not notice that it
closed their connections. So the child closes its copies.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Protocol


class Inherited(Protocol):
    """An object whose files a forked child must close."""

    def leave_to_parent(self) -> Iterable[int]:
        """In the child, become as if stopped; return the file handles to close."""
        ...


_watched: weakref.WeakSet[Inherited] = weakref.WeakSet()


def watch(inherited: Inherited) -> None:
    """Close an object's files in each child that this process forks.

    Args:
        inherited: The object; only a weak reference is kept.
    """
    _watched.add(inherited)


def _leave_all() -> None:
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for each in list(_watched):
        for handle in each.leave_to_parent():
            if handle >= 0:
                # Replaced, not closed: code with the old number would later close another file.
                os.dup2(nothing, handle, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_leave_all)
