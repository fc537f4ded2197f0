"""Asyncio producers that were started and never closed: what they took and did not send is told.

An event loop that ends takes their tasks along, and nobody is left to raise an error to. They are
kept until then, so that the figure is the last one, and named once: at the start of the next
producer, or at the end of the program.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Iterator
from typing import Protocol

log: logging.Logger = logging.getLogger("onceflow.producer")


class Loop(Protocol):
    """What is asked of an event loop."""

    def is_closed(self) -> bool: ...


_open: dict[object, tuple[Loop, Callable[[], int]]] = {}


def opened(owner: object, loop: Loop, waiting: Callable[[], int]) -> None:
    """Remember a producer that was started.

    Args:
        owner: What ``closed`` is told later.
        loop: Its event loop.
        waiting: Counts its records without an outcome.
    """
    for message in _take(only_ended=True):
        log.warning(message)
    _open[owner] = (loop, waiting)


def closed(owner: object) -> None:
    """Forget a producer that is being closed.

    Args:
        owner: As given to ``opened``; others are passed over.
    """
    _open.pop(owner, None)


def _take(*, only_ended: bool) -> Iterator[str]:
    """What is to be said of those whose loop is over, or of all."""
    for owner, (loop, waiting) in list(_open.items()):
        if only_ended and not loop.is_closed():
            continue
        del _open[owner]
        count = waiting()
        lost = "no record" if not count else f"{count} record{'s' if count > 1 else ''}"
        yield (
            f"an AsyncProducer was not closed, and {lost} of it had no acknowledgement: await its "
            "close() or use async with"
        )


def _at_exit() -> None:
    for message in _take(only_ended=False):
        log.warning(message)


atexit.register(_at_exit)
