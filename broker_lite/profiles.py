"""What released Kafka brokers serve, so that a client can be tested against each of them.

With ``onceflow.profile`` the broker serves and announces, of everything that it knows, only what
that release has: kinds of requests, their versions, and levels of features. It stays the same
broker otherwise. Releases up to 3.2 are taken with ZooKeeper, later ones with KRaft. The tests
compare it with what each of these releases answers.
"""

from __future__ import annotations

from typing import NamedTuple

from onceflow.sdk.protocol.releases import RELEASES, ranges_at, versions_at

PROFILES = RELEASES
"""Releases that can be asked for, oldest first."""

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
    return Profile(name, versions_at(name), ranges_at(name, _FEATURES))
