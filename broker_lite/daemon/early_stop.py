"""Remembers SIGTERM and SIGINT received during start-up, until the daemon can stop.

By default SIGTERM ends a process at once, with status 143. :func:`watch` is called before anything
large is imported. From then until the daemon has its own handlers, the first signal is only noted;
a second one ends the process.
"""

from __future__ import annotations

import signal
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_noted: list[int] = []


def watch() -> None:
    """Note signals from now on; only for a process whose only task is the daemon."""
    for number in SIGNALS:
        signal.signal(number, _note)


def _note(number: int, frame: FrameType | None) -> None:
    _noted.append(number)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def asked() -> bool:
    """Whether a signal was noted."""
    return bool(_noted)
