"""Windows of event time, and durations to declare them with.

A window closes when stream time reaches its end plus its grace; until then records may come out of
order. After that it never opens again, and further records for it are late. This module holds
values of declarations and the arithmetic of windows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar

from onceflow.processors.errors import DeclarationError

V = TypeVar("V")

MS: Final = timedelta(milliseconds=1)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NO_TIME: Final = timedelta(0)


def milliseconds(count: float) -> timedelta:
    """A duration of ``count`` milliseconds.

    Args:
        count: How many.
    """
    return timedelta(milliseconds=count)


def seconds(count: float) -> timedelta:
    """A duration of ``count`` seconds.

    Args:
        count: How many.
    """
    return timedelta(seconds=count)


def minutes(count: float) -> timedelta:
    """A duration of ``count`` minutes.

    Args:
        count: How many.
    """
    return timedelta(minutes=count)


def hours(count: float) -> timedelta:
    """A duration of ``count`` hours.

    Args:
        count: How many.
    """
    return timedelta(hours=count)


def days(count: float) -> timedelta:
    """A duration of ``count`` days of 24 hours.

    Args:
        count: How many.
    """
    return timedelta(days=count)


def whole_ms(what: str, duration: object, least_ms: int = 0) -> int:
    """Return the milliseconds of a declared duration.

    Args:
        what: Name of the parameter, for messages.
        duration: The duration.
        least_ms: Smallest allowed value.

    Raises:
        DeclarationError: It is not a duration in whole milliseconds, or too short.
    """
    if not isinstance(duration, timedelta):
        raise DeclarationError(
            f"{what}={duration!r}: must be a timedelta, such as minutes(1) or seconds(10)"
        )
    if duration % MS or duration < least_ms * MS:
        least = f"at least {least_ms} ms" if least_ms else "not negative"
        raise DeclarationError(
            f"{what}={duration!r}: must be a whole number of milliseconds, {least}"
        )
    return duration // MS


@dataclass(frozen=True, slots=True)
class Window:
    """A window of event time, as functions get it.

    Attributes:
        start_ms: Its first millisecond since 1970; of a session, the time of its first record.
        end_ms: The first millisecond after it; of a session, the time of its last record.
    """

    start_ms: int
    end_ms: int

    @property
    def start(self) -> datetime:
        """``start_ms`` as a time in UTC."""
        return EPOCH + self.start_ms * MS

    @property
    def end(self) -> datetime:
        """``end_ms`` as a time in UTC."""
        return EPOCH + self.end_ms * MS


@dataclass(frozen=True, slots=True)
class WindowValue(Generic[V]):
    """What an open window of one key holds, as queries give it.

    Attributes:
        start_ms: As of ``Window``.
        end_ms: As of ``Window``.
        value: The committed result so far.
    """

    start_ms: int
    end_ms: int
    value: V


@dataclass(frozen=True, slots=True)
class Hopping:
    """Overlapping windows of one size, which begin at a fixed interval.

    Args:
        size: Their length.
        every: Time from the start of one to the start of the next, at most ``size``; the starts
            are counted from 1970.
        grace: How long after its end a window still takes records, in stream time.

    Raises:
        DeclarationError: A duration cannot work.
    """

    size: timedelta
    every: timedelta
    grace: timedelta = field(default=_NO_TIME, kw_only=True)

    def __post_init__(self) -> None:
        size_ms = whole_ms("size", self.size, 1)
        if whole_ms("every", self.every, 1) > size_ms:
            raise DeclarationError(
                f"every={self.every!r}: records between the windows would be in none; make it at "
                f"most size={self.size!r}"
            )
        whole_ms("grace", self.grace)


@dataclass(frozen=True, slots=True)
class Tumbling:
    """Windows of one size, one after the other; their starts are counted from 1970.

    Args:
        size: Their length.
        grace: How long after its end a window still takes records, in stream time.

    Raises:
        DeclarationError: A duration cannot work.
    """

    size: timedelta
    grace: timedelta = field(default=_NO_TIME, kw_only=True)

    def __post_init__(self) -> None:
        whole_ms("size", self.size, 1)
        whole_ms("grace", self.grace)


@dataclass(frozen=True, slots=True)
class Session:
    """Windows of activity: records of one key that are at most ``gap`` apart share one.

    A record between two sessions joins them into one, so their accumulators must be merged.

    Args:
        gap: Longest silence within a session.
        grace: How long after its end a session still takes records, in stream time.

    Raises:
        DeclarationError: A duration cannot work.
    """

    gap: timedelta
    grace: timedelta = field(default=_NO_TIME, kw_only=True)

    def __post_init__(self) -> None:
        whole_ms("gap", self.gap, 1)
        whole_ms("grace", self.grace)


AnyWindow = Tumbling | Hopping | Session


@dataclass(frozen=True, slots=True)
class FixedFrames:
    """The arithmetic of tumbling and hopping windows, in milliseconds.

    Attributes:
        size_ms: Length of a window.
        every_ms: From one start to the next.
        grace_ms: How long a window takes records after its end.
    """

    size_ms: int
    every_ms: int
    grace_ms: int

    @property
    def shape(self) -> str:
        """Text that identifies the windows, to notice stored ones of another declaration."""
        return f"windows of {self.size_ms} every {self.every_ms} grace {self.grace_ms}"

    @property
    def life_ms(self) -> int:
        """Longest time in which a window takes records."""
        return self.size_ms + self.grace_ms

    def starts(self, time_ms: int) -> range:
        """Return the starts of the windows that hold a time, the earliest first."""
        into_ms = time_ms % self.every_ms
        last = time_ms - into_ms
        first = last - (self.size_ms - 1 - into_ms) // self.every_ms * self.every_ms
        return range(max(first, 0), last + 1, self.every_ms)

    def closes_ms(self, end_ms: int) -> int:
        """Return the stream time at which a window closes."""
        return end_ms + self.grace_ms


@dataclass(frozen=True, slots=True)
class SessionFrames:
    """The arithmetic of sessions, in milliseconds.

    Attributes:
        gap_ms: Longest silence within a session.
        grace_ms: How long a session takes records after its end.
    """

    gap_ms: int
    grace_ms: int

    @property
    def shape(self) -> str:
        """Text that identifies the windows, to notice stored ones of another declaration."""
        return f"sessions of {self.gap_ms} grace {self.grace_ms}"

    @property
    def life_ms(self) -> int:
        """Time after its last record in which a session takes records."""
        return self.gap_ms + self.grace_ms + 1

    def closes_ms(self, last_ms: int) -> int:
        """Return the stream time at which a session closes.

        A record exactly ``gap_ms`` after the last one still belongs to it, so the session closes a
        millisecond later.
        """
        return last_ms + self.life_ms


Frames = FixedFrames | SessionFrames


def frames_of(window: AnyWindow) -> Frames:
    """Return the arithmetic of declared windows."""
    grace_ms = whole_ms("grace", window.grace)
    if isinstance(window, Session):
        return SessionFrames(whole_ms("gap", window.gap), grace_ms)
    size_ms = whole_ms("size", window.size)
    every_ms = size_ms if isinstance(window, Tumbling) else whole_ms("every", window.every)
    return FixedFrames(size_ms, every_ms, grace_ms)
