"""Work that takes long, done in slices between which the broker serves others.

It decides how much is done at once, and that an answer comes whatever happens. What a step does,
and what holds between two of them, is up to the steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import TypeVar

from onceflow.broker_lite.purgatory import Deferred, Timers

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.slices")

T = TypeVar("T")

SLICE_STEPS = 100
"""Steps done at once. One is a folder of a partition with its files: 0.1 ms and more."""

SEGMENT_STEPS = 20
"""The same where a step sets the files of a segment aside: 0.25 ms, more where the disk is busy. A
slice stays well below the 20 ms for which a client may hear nothing."""

PAUSE_MS = 1
"""Time between two slices; without it they would all run in one round of timers."""


def finished(work: Generator[None, None, T]) -> T:
    """Do all steps at once; returns their result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


def in_slices(
    timers: Timers,
    work: Generator[None, None, T],
    failed: Callable[[], T],
    now_ms: int,
    steps: int = SLICE_STEPS,
) -> T | Deferred[T]:
    """Do steps until there are none, with pauses; goes on when the asker is gone.

    Args:
        timers: The broker's timers.
        work: The steps; what they return is the answer.
        failed: Makes the answer when a step raises an unexpected exception.
        now_ms: Wall milliseconds.
        steps: Steps of one slice.

    Returns:
        The answer, or what it will be given to if the first slice did not finish the work.
    """
    deferred: Deferred[T] = Deferred()

    def go_on(now_ms: int) -> None:
        try:
            for _ in range(steps):
                next(work)
        except StopIteration as done:
            deferred.complete(done.value)
        except Exception:  # A timer has no caller that could answer.
            logger.exception("work in slices failed")
            deferred.complete(failed())
        else:
            timers.schedule(now_ms + PAUSE_MS, go_on)

    try:
        for _ in range(steps):
            next(work)
    except StopIteration as done:
        answer: T = done.value
        return answer
    timers.schedule(now_ms + PAUSE_MS, go_on)
    return deferred
