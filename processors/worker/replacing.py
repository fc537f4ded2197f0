"""Replaces a worker that ended with an error by a new one (``uncaught_error="replace"``)."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Iterator

from onceflow.processors.errors import (
    DeclarationError,
    SlotInUseError,
    StateMismatchError,
    StateTypeError,
    TooManyDeadLettersError,
    TopicSetupError,
)
from onceflow.processors.policies import brief
from onceflow.processors.report import RunReport, merged
from onceflow.processors.settings import AppSettings
from onceflow.processors.worker.loop import Worker
from onceflow.sdk.errors import ConfigError

logger: logging.Logger = logging.getLogger("onceflow.processors")

_NEVER = (
    ConfigError,
    DeclarationError,
    SlotInUseError,
    StateMismatchError,
    StateTypeError,
    TooManyDeadLettersError,
    TopicSetupError,
)
"""A new worker would get the same error, or would fence the live worker that has the slot."""


class Replacements:
    """Limits the number of replacements in a time window.

    Args:
        settings: Of the application.
        clock: Monotonic seconds.
    """

    def __init__(self, settings: AppSettings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._made_s: deque[float] = deque()

    def allow(self, error: Exception) -> bool:
        """Whether a new worker may follow an error; it is counted if so."""
        settings = self._settings
        if settings.uncaught_error != "replace" or isinstance(error, _NEVER):
            return False
        now_s = self._clock()
        while self._made_s and now_s - self._made_s[0] > settings.replacement_window_ms / 1000:
            self._made_s.popleft()
        if len(self._made_s) >= settings.replacements_max:
            logger.error(
                "%d workers were replaced within %d ms; not this one",
                len(self._made_s),
                settings.replacement_window_ms,
            )
            return False
        self._made_s.append(now_s)
        logger.warning(
            "worker replaced (%d of %d within %d ms) after: %s",
            len(self._made_s),
            settings.replacements_max,
            settings.replacement_window_ms,
            brief(error),
        )
        return True


class Runs:
    """The workers of one run, one after the other.

    Args:
        make: Makes the next one.
        gone: Called when a worker has ended.
        replacements: Decides whether another worker follows an error.
        is_stopped: Whether the application was asked to stop.
    """

    def __init__(
        self,
        make: Callable[[], Worker],
        gone: Callable[[], None],
        replacements: Replacements,
        is_stopped: Callable[[], bool],
    ) -> None:
        self._make = make
        self._gone = gone
        self._replacements = replacements
        self._is_stopped = is_stopped
        self._reports: list[RunReport] = []
        self._done = False

    def next(self) -> Worker | None:
        """Make the next worker; None when the run is over."""
        return None if self._done else self._make()

    @contextlib.contextmanager
    def of(self, worker: Worker) -> Iterator[None]:
        """Run a worker within this context, which keeps its report and may suppress its error."""
        try:
            yield
            self._done = True
        except Exception as error:
            if self._is_stopped() or not self._replacements.allow(error):
                raise
        finally:
            self._gone()
            self._reports.append(worker.report())

    def report(self) -> RunReport:
        """Return the report of all workers together."""
        return merged(self._reports)
