"""Failure policies: how often a record is tried, and what follows the last attempt.

This module only decides. The task makes the attempts; the worker waits between them (without
leaving the group).
"""

from __future__ import annotations

import enum
import os
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

import tenacity

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.settings.declare import FUNCTION, Settings, instance, number, whole

TRACEBACK_BYTES_MAX = 8_192
"""Longest traceback, and longest message, that a dead letter carries."""

BRIEF_CHARS_MAX = 500
"""Longest description of an error in a log line or in another error's message."""

HEADER_PREFIX = "onceflow.error."
"""Dead letters carry the original headers and then these: topic, partition, offset, class,
message, traceback, attempts, processor."""

_OWN_CODE: Final = (f"{Path(__file__).parents[1]}{os.sep}", "sdk/", "processors/", "transactions/")
"""Paths of onceflow's own stack frames; compiled modules have the names of their sources."""
_INSTALLED: Final = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
_PYTHON: Final = (sysconfig.get_path("stdlib"), "<frozen")

Wait = Callable[[tenacity.RetryCallState], float]


class OnError(enum.Enum):
    """What follows the last failed attempt."""

    STOP = "stop"
    SKIP = "skip"
    DEAD_LETTER = "dead-letter"


def exponential(backoff_ms: int, backoff_max_ms: int) -> Wait:
    """Return a tenacity wait that doubles with each attempt."""
    return tenacity.wait_exponential(
        multiplier=backoff_ms / 1000, min=backoff_ms / 1000, max=backoff_max_ms / 1000
    )


class Retries(Settings, kw_only=False, in_kafka=False):
    """How a failing record is tried again.

    The partition waits meanwhile, so that order is kept; the consumer stays in its group.
    """

    count_max: int = whole(0, "Further attempts after the first one.")
    backoff_ms: int = whole(100, "Wait before the first of them; doubles each time.")
    backoff_max_ms: int = whole(10_000, "Longest wait.")
    only: tuple[type[Exception], ...] = instance(
        (Exception,), "Exceptions worth another attempt; others go to the policy at once.", type
    )
    wait: Wait | None = instance(
        None, "A tenacity wait strategy that replaces the exponential one.", FUNCTION
    )

    def _check(self) -> None:
        if self.backoff_ms > self.backoff_max_ms:
            raise ConfigError(
                "backoff_ms",
                self.backoff_ms,
                f"must be at most backoff_max_ms ({self.backoff_max_ms})",
            )
        if not all(issubclass(kind, Exception) for kind in self.only):
            raise ConfigError("only", self.only, "must be a tuple of exception classes")

    def delay_ms(self, attempt: int) -> int:
        """Return the milliseconds to wait after an attempt.

        Args:
            attempt: The attempt that failed, 1 for the first.
        """
        state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
        state.attempt_number = attempt
        wait = self.wait or exponential(self.backoff_ms, self.backoff_max_ms)
        return int(wait(state) * 1000)


class Parking(Settings, kw_only=False, in_kafka=False):
    """Bounds of records that are parked until their retry (``park=``)."""

    records_max: int = whole(
        1_000,
        "Parked records of one key. One more makes the partition wait for the first of them.",
        1,
    )
    age_max_ms: int = whole(
        86_400_000,
        "How long a record is tried again; after that its policy is followed (`dead_letter`, "
        "`on_error`), whatever attempts are left.",
        1,
    )


class DeadLetterLimits(Settings, kw_only=False, in_kafka=False):
    """When the application stops because there are too many dead letters."""

    consecutive_max: int = whole(100, "Dead letters of one partition in a row.")
    ratio_max: float = number(
        0.5, "Share of dead letters among the latest `ratio_window` records.", 0, 1
    )
    ratio_window: int = whole(
        1_000, "Records over which the share is measured; before that it is not checked.", 1
    )
    run_max: int | None = whole(
        None, "Dead letters in one run of a worker, of all partitions together; None for any."
    )


class DeadLetterMeter:
    """Counts dead letters of one processor against the limits.

    Records of a unit that is aborted come again, so they are counted with the commit alone.
    """

    __slots__ = ("_bad", "_consecutive", "_kept", "_limits", "_run", "_seen")

    def __init__(self, limits: DeadLetterLimits) -> None:
        self._limits = limits
        self._consecutive: dict[int, int] = {}
        self._bad = 0
        self._seen = 0
        self._run = 0
        self._kept: tuple[dict[int, int], int, int, int] = ({}, 0, 0, 0)

    def committed(self) -> None:
        """What was counted is committed."""
        self._kept = (dict(self._consecutive), self._bad, self._seen, self._run)

    def dropped(self) -> None:
        """What was counted since the last commit comes again."""
        consecutive, self._bad, self._seen, self._run = self._kept
        self._consecutive = dict(consecutive)

    def good(self, partition: int, count: int = 1) -> None:
        """Count successful records."""
        self._consecutive.pop(partition, None)
        self._seen += count
        self._age()

    def bad(self, partition: int) -> str | None:
        """Count a dead letter.

        Returns:
            The limit that it exceeds, as text, or None.
        """
        row = self._consecutive[partition] = self._consecutive.get(partition, 0) + 1
        self._bad += 1
        self._seen += 1
        self._run += 1
        limits = self._limits
        if row > limits.consecutive_max:
            return f"{row} dead letters in a row, the limit is {limits.consecutive_max}"
        if limits.run_max is not None and self._run > limits.run_max:
            return f"{self._run} dead letters in this run, the limit is {limits.run_max}"
        if self._seen >= limits.ratio_window and self._bad > limits.ratio_max * self._seen:
            return (
                f"{self._bad} of the latest {self._seen} records are dead letters, "
                f"the limit is {limits.ratio_max:.0%}"
            )
        self._age()
        return None

    def _age(self) -> None:
        # Halving gives a moving share without a list of results.
        if self._seen >= 2 * self._limits.ratio_window:
            self._seen //= 2
            self._bad //= 2


class ThrottledWarnings:
    """Warns of the first failure of each kind at once, and of the rest in summaries.

    Args:
        warn: Takes a line.
        clock: Monotonic seconds.
        interval_s: Shortest time between summaries of a kind.
    """

    __slots__ = ("_clock", "_held", "_interval_s", "_told_s", "_warn")

    def __init__(
        self, warn: Callable[[str], None], clock: Callable[[], float], interval_s: float = 10.0
    ) -> None:
        self._warn = warn
        self._clock = clock
        self._interval_s = interval_s
        self._told_s: dict[type[Exception], float] = {}
        self._held: dict[type[Exception], int] = {}

    def note(self, error: Exception, line: str) -> None:
        """Log the line of a failure, or count it for the next summary."""
        kind, now = type(error), self._clock()
        told = self._told_s.get(kind)
        if told is not None and now - told < self._interval_s:
            self._held[kind] = self._held.get(kind, 0) + 1
            return
        held = self._held.pop(kind, 0)
        self._told_s[kind] = now
        self._warn(line if not held else f"{line} (and {held} more like it before)")


def brief(error: BaseException) -> str:
    """Return an error as one line; its ``repr`` may raise or be megabytes long."""
    try:
        text = repr(error)
    except Exception as broken:  # noqa: BLE001 - a handler's error class is not ours
        return f"{type(error).__qualname__} (its repr raised {type(broken).__name__})"
    return text if len(text) <= BRIEF_CHARS_MAX else f"{text[:BRIEF_CHARS_MAX]}..."


def place_in_code(error: BaseException) -> str:
    """Return where in the user's code an error was raised, as a clause; empty if nowhere.

    That is the innermost stack frame of the program, or else of an installed package, without
    frames of onceflow and of Python itself.
    """
    program = installed = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        code = frame.f_code
        file = code.co_filename
        if file.startswith(_OWN_CODE):
            continue
        place = f" at {file}:{line} in {code.co_qualname}"
        if file.startswith(_INSTALLED):
            installed = place
        elif not file.startswith(_PYTHON):
            program = place
    return program or installed


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a handler's error class is not ours
        return brief(error)


def _header_bytes(text: str) -> bytes:
    """Encode any text as UTF-8; surrogates are escaped."""
    return text.encode(errors="backslashreplace")


def dead_letter_headers(
    record: ConsumerRecord, error: Exception, attempts: int, processor: str
) -> list[tuple[str, bytes | None]]:
    """Return the original headers, followed by the record's origin and its error.

    This must not fail: a record whose dead letter cannot be written would stop its partition.
    """
    kind = type(error)
    trace = _header_bytes("".join(traceback.format_exception(error)))
    described = {
        "topic": record.topic.encode(),
        "partition": b"%d" % record.partition,
        "offset": b"%d" % record.offset,
        "class": _header_bytes(f"{kind.__module__}.{kind.__qualname__}"),
        "message": _header_bytes(_message(error)[:TRACEBACK_BYTES_MAX])[:TRACEBACK_BYTES_MAX],
        "traceback": trace[-TRACEBACK_BYTES_MAX:],
        "attempts": b"%d" % attempts,
        "processor": processor.encode(),
    }
    return [*record.headers, *((HEADER_PREFIX + name, text) for name, text in described.items())]
