"""What released Kafka brokers serve, so that a client can be tested against each of them.

With ``onceflow.profile`` the broker serves and announces, of everything that it knows, only what
that release has: kinds of requests, their versions, and levels of features. It stays the same
broker otherwise. Releases up to 3.2 are taken with ZooKeeper, later ones with KRaft.

Source of the numbers: the message declarations (``validVersions``) and feature levels at the tags
of Apache Kafka; minimum versions are those of KIP-896.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

SubjectT = TypeVar("SubjectT", int, str)

PROFILES = (
    *(f"2.{minor}" for minor in range(1, 9)),
    *(f"3.{minor}" for minor in range(10)),
    *(f"4.{minor}" for minor in range(5)),
)
"""Releases that can be asked for, oldest first."""

_VERSIONS: dict[int, str] = {
    0: "2.1:7 2.4:8 2.8:9 3.7:10 3.8:11 4.0:12 4.1:13",
    1: "2.1:10 2.3:11 2.7:12 3.1:13 3.5:15 3.7:16 3.9:17 4.0:4-17 4.1:4-18",
    2: "2.1:4 2.2:5 2.8:6 3.0:7 3.5:8 3.9:9 4.0:1-10 4.2:1-11",
    3: "2.1:7 2.3:8 2.4:9 2.8:11 3.1:12 4.0:13",
    8: "2.1:6 2.3:7 2.4:8 3.7:9 4.0:2-9 4.2:2-10",
    9: "2.1:5 2.4:6 2.5:7 3.0:8 3.7:9 4.0:1-9 4.2:1-10",
    10: "2.1:2 2.4:3 3.0:4 3.8:5 3.9:6",
    11: "2.1:3 2.2:4 2.3:5 2.4:6 2.5:7 3.2:9 4.0:2-9 4.1:9",
    12: "2.1:2 2.3:3 2.4:4",
    13: "2.1:2 2.4:4 3.2:5",
    14: "2.1:2 2.3:3 2.4:4 2.5:5",
    15: "2.1:2 2.3:3 2.4:5 4.0:6",
    16: "2.1:2 2.4:3 2.6:4 3.8:5",
    17: "2.1:1",
    18: "2.1:2 2.4:3 3.9:4",
    19: "2.1:3 2.4:5 2.7:6 2.8:7 4.0:2-7",
    20: "2.1:3 2.4:4 2.7:5 2.8:6 4.0:1-6",
    21: "2.1:1 2.6:2",
    22: "2.1:1 2.4:2 2.5:3 2.7:4 3.8:5",
    23: "2.1:2 2.3:3 2.8:4 4.0:2-4",
    24: "2.1:1 2.7:2 2.8:3 3.6:4 3.8:5",
    25: "2.1:1 2.7:2 2.8:3 3.8:4",
    26: "2.1:1 2.7:2 2.8:3 3.8:4 4.0:5",
    27: "2.1:0 2.8:1 4.0:1-1 4.2:1-2",
    28: "2.1:2 2.5:3 3.8:4 4.0:5 4.4:6",
    29: "2.1:1 2.5:2 3.3:3 4.0:1-3",
    30: "2.1:1 2.5:2 3.3:3 4.0:1-3",
    31: "2.1:1 2.5:2 3.3:3 4.0:1-3",
    32: "2.1:2 2.6:3 2.8:4 4.0:1-4",
    33: "2.1:1 2.8:2",
    34: "2.1:1 2.8:2 4.0:1-2",
    35: "2.1:1 2.6:2 3.2:3 3.3:4 4.0:1-4 4.3:1-5",
    36: "2.1:0 2.2:1 2.5:2",
    37: "2.1:1 2.5:2 2.7:3",
    42: "2.1:1 2.4:2 4.4:3",
    43: "2.2:0 2.4:2",
    44: "2.3:0 2.4:1",
    45: "2.4:0 4.1:1",
    46: "2.4:0",
    47: "2.4:0",
    48: "2.6:0 2.8:1",
    49: "2.6:0 2.8:1",
    50: "2.7:0 3.3:- 3.5:0",
    51: "2.7:0 3.3:- 3.5:0",
    55: "3.3:1 3.9:2",
    57: "2.7:0 3.3:1 4.0:2",
    60: "2.8:0 3.7:1 4.0:2",
    61: "2.8:0",
    64: "3.3:0",
    65: "3.0:0",
    66: "3.0:0 3.8:1 4.1:2",
    68: "4.0:1",
    69: "4.0:1",
    74: "3.7:0 4.1:1",
    75: "3.8:0",
}
"""By api key: from which release on which versions are served; "-" for not any more. A single
number is the highest, with 0 as the lowest. ConsumerGroupHeartbeat and -Describe, which 3.7 to 3.9
announce without serving them by default, begin with 4.0."""

_FEATURES: dict[str, str] = {
    "group.version": "4.0:1",
    "transaction.version": "4.0:2",
    "metadata.version": (
        "3.3:1-7 3.4:1-8 3.5:1-11 3.6:1-14 3.7:1-19 3.8:1-20 3.9:1-21 4.0:7-25 4.1:7-27 4.2:7-29 "
        "4.3:7-30 4.4:7-33"
    ),
    "kraft.version": "3.9:1",
    "eligible.leader.replicas.version": "4.0:1",
    "share.version": "4.1:1 4.4:2",
    "streams.version": "4.2:1",
}
"""By feature: from which release on which levels are supported."""


class Profile(NamedTuple):
    """What one release serves.

    Attributes:
        name: The release.
        versions: Lowest and highest version by api key.
        features: Lowest and highest level by feature.
    """

    name: str
    versions: dict[int, tuple[int, int]]
    features: dict[str, tuple[int, int]]

    def level(self, feature: str, level: int) -> int:
        """A level of a feature, as far as this release has it."""
        return min(level, self.features.get(feature, (0, 0))[1])


def profile_of(name: str) -> Profile | None:
    """The profile of a release; None for the empty name, which limits nothing.

    Raises:
        KeyError: There is no such profile; the setting's check comes first.
    """
    if not name:
        return None
    if name not in PROFILES:
        raise KeyError(name)
    return Profile(name, _at(name, _VERSIONS), _at(name, _FEATURES))


def _at(name: str, table: dict[SubjectT, str]) -> dict[SubjectT, tuple[int, int]]:
    number = PROFILES.index(name)
    ranges: dict[SubjectT, tuple[int, int]] = {}
    for subject, history in table.items():
        for step in history.split():
            release, _, versions = step.partition(":")
            if PROFILES.index(release) > number:
                break
            low, dash, high = versions.rpartition("-")
            if versions == "-":
                ranges.pop(subject, None)
            else:
                ranges[subject] = (int(low) if dash else 0, int(high))
    return ranges
