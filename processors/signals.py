"""Turns termination signals into an orderly stop, and a second one into a forced end.

After the first SIGINT or SIGTERM the worker finishes the current record, commits and ends. A second
signal, or the end of the shutdown time, raises ``ForcedShutdown`` in the main thread, so that the
transaction is aborted instead.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

from onceflow.processors.errors import ForcedShutdown

logger: logging.Logger = logging.getLogger("onceflow.processors")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXIT_FORCED = 130
"""Exit status after a forced shutdown, as after an interrupt in a shell."""


class ShutdownSignals:
    """Installs signal handlers within a ``with`` block; outside of the main thread it does nothing,
    since Python allows no handlers there.

    Args:
        stop: Called within the signal handler, with the signal, to ask for an orderly stop.
        timeout_ms: Time for the orderly stop.
    """

    def __init__(self, stop: Callable[[signal.Signals], None], timeout_ms: int) -> None:
        self._stop = stop
        self._timeout_s = timeout_ms / 1000
        self._received = 0
        self._former: dict[signal.Signals, object] = {}
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                self._former[number] = signal.getsignal(number)
                signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._received += 1
        if self._received == 1:
            logger.info("%s: stopping", signal.Signals(number).name)
            self._stop(signal.Signals(number))
            self._timer = threading.Timer(self._timeout_s, os.kill, (os.getpid(), number))
            self._timer.daemon = True
            self._timer.start()
        elif self._received == 2:
            raise ForcedShutdown(f"{signal.Signals(number).name} during shutdown")
        # Ignore further signals: the rest of the shutdown has time limits.

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number, former in self._former.items():
            signal.signal(number, former)  # type: ignore[arg-type]
