"""Clients in a forked child process: their loops, threads and sockets are the parent's.

A child that used them would write its own bytes between those of the parent, or wait for answers
that the parent reads. So a client that was started before the fork refuses calls in the child. One
that was made and not started can be started there.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol

from onceflow.sdk.errors import IllegalStateError


class Inherited(Protocol):
    """A part of a client that must be told of a fork."""

    def after_fork(self) -> None:
        """Refuse every call from now on; called in a forked child."""


_STARTED: weakref.WeakSet[Inherited] = weakref.WeakSet()


def watch(part: Inherited) -> None:
    """Call ``after_fork`` of a part in every child that is forked from now on."""
    _STARTED.add(part)


def forked_error(what: str) -> IllegalStateError:
    """Return the error of a client that was started before a fork.

    Args:
        what: The client, such as "producer".
    """
    return IllegalStateError(
        f"this {what} was started before a fork; its thread, loop and sockets belong to the "
        "parent process: make a new one in this process"
    )


def _after_fork() -> None:
    for part in list(_STARTED):
        part.after_fork()
    _STARTED.clear()


os.register_at_fork(after_in_child=_after_fork)
