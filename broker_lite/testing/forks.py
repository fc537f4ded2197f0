"""A process that forks while a broker runs in it, as ``multiprocessing`` does on Linux by default.

The child has no thread that serves, and still holds copies of the parent's sockets and lock: while
it lives, the parent's address would stay taken, its folder locked, and its clients would not learn
that it closed their connections. So the child lets go of them. It decides nothing else.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable
from typing import Protocol


class Inherited(Protocol):
    """Something that a forked child is not to go on with."""

    def leave_to_parent(self) -> Iterable[int]:
        """In the child: be as one that does not run; gives the file handles of what is served."""
        ...


_watched: weakref.WeakSet[Inherited] = weakref.WeakSet()


def watch(inherited: Inherited) -> None:
    """Leave it to the parent whenever this process forks.

    Args:
        inherited: Kept by a weak reference.
    """
    _watched.add(inherited)


def _leave_all() -> None:
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for each in list(_watched):
        for handle in each.leave_to_parent():
            if handle >= 0:
                # Not closed: code that still has the number would later close another file by it.
                os.dup2(nothing, handle, inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_leave_all)
