"""Whether settings and topics are what administrators were told.

A setting is a register: at the end it has the value of a change that no acknowledged change came
after. A topic that was deleted and made again holds nothing of what it held before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sim_history import History

NEVER = 1 << 60

ATTEMPT_US = 2_000_000
"""After so long a client tries again; what it sent first may then still arrive, at any time."""


@dataclass
class _Change:
    asked: int
    asked_us: int
    value: str | None
    told: int = NEVER


@dataclass
class _Incarnation:
    sent: set[bytes] = field(default_factory=set)
    acked: set[bytes] = field(default_factory=set)


def check(
    history: History, settings: Mapping[tuple[str, str], str], last_loss: int = -1
) -> list[str]:
    """Every violation, in words.

    Args:
        history: What happened.
        settings: What is set at the end, by topic and name.
        last_loss: Place of the last power loss, which may take back creations and deletions.
    """
    return _check_settings(history, settings) + _check_topics(history, last_loss)


def _check_settings(history: History, settings: Mapping[tuple[str, str], str]) -> list[str]:
    changes: dict[str, _Change] = {}
    of_setting: dict[tuple[str, str], list[_Change]] = {}
    for place, event in history.of("alter", "altered"):
        details: Any = event.details
        if event.what == "alter":
            change, topic, name, value = details
            changes[change] = _Change(place, event.time_us, value)
            of_setting.setdefault((topic, name), []).append(changes[change])
        elif event.time_us - changes[details[0]].asked_us < ATTEMPT_US:
            changes[details[0]].told = place
    problems = []
    for place_of, made in of_setting.items():
        last = max((change.asked for change in made if change.told != NEVER), default=-1)
        if last < 0:
            continue  # Nobody was told of any, so that none may be in force.
        possible = {change.value for change in made if change.told > last}
        if settings.get(place_of) not in possible:
            problems.append(
                f"setting: {place_of} is {settings.get(place_of)!r}, and was told to be one of "
                f"{sorted(map(str, possible))}"
            )
    return problems


def _check_topics(history: History, last_loss: int) -> list[str]:
    problems: list[str] = []
    incarnations: dict[tuple[str, int], _Incarnation] = {}
    for place, event in history.of("own begin", "own send", "own acked", "own read"):
        details: Any = event.details
        topic, number = details[0], details[1]
        if event.what == "own begin" and place > last_loss:
            incarnations[topic, number] = _Incarnation()
        if (topic, number) not in incarnations:
            continue
        current = incarnations[topic, number]
        if event.what == "own send":
            current.sent.add(details[2])
        elif event.what == "own acked":
            current.acked.add(details[2])
        elif event.what == "own read":
            found = details[2]
            for value in sorted(current.acked - set(found)):
                problems.append(f"own topic: {topic} ({number}) lost {value!r}")
            for value in sorted(set(found) - current.sent):
                problems.append(f"came back: {topic} ({number}) holds {value!r} of an earlier one")
            if len(set(found)) < len(found):
                problems.append(f"own topic: {topic} ({number}) holds something twice: {found}")
    return problems
