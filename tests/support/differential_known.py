"""Differences that are meant, each with its line in docs/kafka-differences.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Plain = Any
Step = dict[str, Plain]


class Known(NamedTuple):
    """One difference that is meant.

    Attributes:
        key: The request.
        line: Words of its line in docs/kafka-differences.md.
        holds: Whether these answers (Kafka's, ours) to this step are that difference.
    """

    key: int
    line: str
    holds: Callable[[Step, Plain, Plain], bool]


KNOWN: list[Known] = []


def is_known(step: Step, theirs: Plain, ours: Plain) -> bool:
    """Whether a difference is one of those that are meant."""
    return any(
        known.key == step.get("key") and known.holds(step, theirs, ours) for known in KNOWN
    )
