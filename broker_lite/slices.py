"""Runs long work in slices, between which the broker serves other requests.

It decides how much is done at once, and makes sure that there is an answer even if a step fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import TypeVar

from onceflow.broker_lite.purgatory import Deferred, Timers

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.slices")

T = TypeVar("T")

SLICE_STEPS = 100
"""Steps of one slice. A step is the folder of a partition with its files: 0.1 ms and more."""

SEGMENT_STEPS = 20
"""Steps of one slice, if a step renames the files of a segment: 0.25 ms, more if the disk is busy.
A slice takes much less than 20 ms, the longest time without answers to other clients."""

PAUSE_MS = 1
"""Time between two slices; without it all would run in one round of timers."""


def finished(work: Generator[None, None, T]) -> T:
    """Do all steps at once; return their result."""
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
    """Do all steps with pauses in between, also if the client disconnects meanwhile.

    Args:
        timers: The broker's timers.
        work: The steps; their result is the answer.
        failed: Makes the answer when a step raises an unexpected exception.
        now_ms: Wall milliseconds.
        steps: Steps of one slice.

    Returns:
        The answer; a deferred one if the first slice does not finish the work.
    """
    deferred: Deferred[T] = Deferred()

    def go_on(now_ms: int) -> None:
        try:
            for _ in range(steps):
                next(work)
        except StopIteration as done:
            deferred.complete(done.value)
        except Exception:  # A timer has no caller that could handle it.
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
