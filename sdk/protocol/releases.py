"""Requests and versions that each release of Apache Kafka serves.

Facts about brokers, for errors that say what is missing and since when there is something, and for
a broker that stands for one of these releases. Releases up to 3.2 are taken with ZooKeeper, later
ones with KRaft. The tests compare the table with what each release answers when it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

SubjectT = TypeVar("SubjectT", int, str)

RELEASES: Final = (
    *(f"2.{minor}" for minor in range(1, 9)),
    *(f"3.{minor}" for minor in range(10)),
    *(f"4.{minor}" for minor in range(5)),
)
"""Oldest first."""

_VERSIONS: Final[dict[int, str]] = {
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
    18: "2.1:2 2.4:3 3.9:4 4.4:5",
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
    68: "3.7:0 4.0:1",
    69: "3.8:0 4.0:1",
    74: "3.7:0 4.1:1",
    75: "3.8:0",
}
"""By api key: from which release on which versions are announced; "-" for not any more. A single
number is the highest, with 0 as the lowest."""

_SERVED_FROM: Final = {68: "4.0", 69: "4.0"}
"""Announced before, by brokers that refuse them unless they are set up for an early access."""


def versions_at(release: str) -> dict[int, tuple[int, int]]:
    """Lowest and highest version that a release announces, by api key."""
    return ranges_at(release, _VERSIONS)


def first_release(api_key: int, version: int) -> str | None:
    """The release from which on every one serves a request in a version or a later one.

    Some was served with ZooKeeper and came to KRaft only later; then that is the release.
    """
    found = None
    for release in reversed(RELEASES[RELEASES.index(_SERVED_FROM.get(api_key, RELEASES[0])) :]):
        if versions_at(release).get(api_key, (0, -1))[1] < version:
            break
        found = release
    return found


def ranges_at(release: str, table: Mapping[SubjectT, str]) -> dict[SubjectT, tuple[int, int]]:
    """Return what holds in a release, from a table "RELEASE:LOWEST-HIGHEST ..." by subject."""
    number = RELEASES.index(release)
    ranges: dict[SubjectT, tuple[int, int]] = {}
    for subject, history in table.items():
        for step in history.split():
            since, _, versions = step.partition(":")
            if RELEASES.index(since) > number:
                break
            low, dash, high = versions.rpartition("-")
            if versions == "-":
                ranges.pop(subject, None)
            else:
                ranges[subject] = (int(low) if dash else 0, int(high))
    return ranges
