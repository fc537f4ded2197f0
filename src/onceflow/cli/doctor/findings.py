"""What a check is, what it finds, and how all checks are carried out.

A check that cannot look, because the brokers are too old or do not allow it, is named with the
reason; it never counts as passed in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from onceflow.cli.doctor.facts import Facts
from onceflow.cli.failures import NOT_AUTHORIZED
from onceflow.sdk.errors import SecurityDisabledError, UnsupportedVersionError


class Fault(NamedTuple):
    """One fault at one place.

    Attributes:
        where: The topic, partition, group, transactional id, setting or file.
        what: What is the case, with the values that were found.
        remedy: What to do.
    """

    where: str
    what: str
    remedy: str


class Check(NamedTuple):
    """A kind of fault.

    Attributes:
        name: Names it, also for scripts.
        why: Why it matters.
        look: Looks for it.
    """

    name: str
    why: str
    look: Callable[[Facts], Iterable[Fault]]


class Finding(NamedTuple):
    """A fault with the check that found it."""

    check: str
    where: str
    what: str
    why: str
    remedy: str


class Skipped(NamedTuple):
    """A check that could not look."""

    check: str
    reason: str


def examine(checks: Sequence[Check], facts: Facts) -> tuple[list[Finding], list[Skipped]]:
    """Carry checks out, one after the other.

    Args:
        checks: Which ones.
        facts: What they look at.

    Returns:
        What was found, and the checks that could not look.

    Raises:
        KafkaError: The brokers cannot be reached.
    """
    found: list[Finding] = []
    skipped: list[Skipped] = []
    for check in checks:
        try:
            faults = list(check.look(facts))
        except NOT_AUTHORIZED as error:
            skipped.append(Skipped(check.name, f"not authorized: {error}"))
        except (UnsupportedVersionError, SecurityDisabledError) as error:
            skipped.append(Skipped(check.name, f"the brokers do not tell: {error}"))
        else:
            found += [
                Finding(check.name, fault.where, fault.what, check.why, fault.remedy)
                for fault in faults
            ]
    return found, skipped
