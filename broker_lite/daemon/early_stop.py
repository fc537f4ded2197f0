"""Remembers SIGTERM and SIGINT received during start-up, until the daemon can stop.

A fresh process ends without a word by SIGTERM, with status 143. From :func:`watch` on, which is
called before anything large is imported, until the daemon has its own handlers, a first signal is
only noted; a second one ends the process as it always did.
"""

from __future__ import annotations

import signal
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_noted: list[int] = []


def watch() -> None:
    """Note signals from now on. For a process that does nothing but run the daemon."""
    for number in SIGNALS:
        signal.signal(number, _note)


def _note(number: int, frame: FrameType | None) -> None:
    _noted.append(number)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def asked() -> bool:
    """Whether a signal came meanwhile."""
    return bool(_noted)
