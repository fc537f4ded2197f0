"""Arguments of commands: names with values, partitions, times; and consent to what destroys."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import click

from onceflow.cli.base import Failure

if TYPE_CHECKING:
    from onceflow.sdk import TopicPartition

_AGO: Final = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def pairs(given: Iterable[str], option: str) -> dict[str, str]:
    """Return names and values of ``NAME=VALUE`` texts.

    Args:
        given: The texts.
        option: The option that has them, for the message.

    Raises:
        BadParameter: A text has no ``=``, or its name is empty.
    """
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise click.BadParameter(f"{option} {text!r}: must be NAME=VALUE")
        found[name.strip()] = value
    return found


def partition_of(text: str) -> TopicPartition:
    """Return the partition that ``TOPIC:NUMBER`` names.

    Args:
        text: What was given.

    Raises:
        BadParameter: It is something else.
    """
    from onceflow.sdk import TopicPartition

    topic, _, number = text.rpartition(":")
    if not topic or not (number.isascii() and number.isdigit()):
        raise click.BadParameter(f"{text!r}: must be TOPIC:PARTITION, such as orders:0")
    return TopicPartition(topic, int(number))


def duration_ms(text: str) -> int:
    """Return a length of time in milliseconds.

    Args:
        text: Such as ``500ms``, ``90s``, ``15m``, ``2h`` or ``7d``.

    Raises:
        BadParameter: It is something else.
    """
    found = _AGO.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"{text!r}: must be a number with a unit, such as 90s or 15m")
    return int(found[1]) * _UNIT_MS[found[2]]


def time_ms(text: str) -> int:
    """Return a point in time in milliseconds since 1970.

    Args:
        text: An ISO 8601 time (UTC where it has no zone), milliseconds since 1970, or how long ago,
            such as ``90s``, ``15m``, ``2h`` or ``7d``.

    Raises:
        BadParameter: It is something else.
    """
    import time
    from datetime import UTC, datetime

    if ago := _AGO.fullmatch(text):
        return int(time.time() * 1000) - int(ago[1]) * _UNIT_MS[ago[2]]
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r}: must be a time such as 2026-01-31T12:00:00Z, milliseconds since 1970, "
            "or how long ago, such as 15m"
        ) from None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def require_consent(question: str, agreed: bool) -> None:
    """Ask before something is destroyed.

    Args:
        question: What is about to be done.
        agreed: Whether ``--yes`` was given.

    Raises:
        Failure: The answer is no, or nobody can be asked because the input is not a terminal.
    """
    if agreed:
        return
    if not sys.stdin.isatty():
        raise Failure(f"{question}\nNext: add --yes to agree", 6)
    if not click.confirm(question):
        raise Failure("nothing was changed", 6)
