"""Profiles of Kafka's releases, so that a client can be tested with each of them.

With ``onceflow.profile`` the broker serves and announces only the requests, versions and features
that the release has too. Nothing else changes. Releases up to 3.2 are those with ZooKeeper, later
ones with KRaft. The tests compare the profiles with recorded answers of the releases.
"""

from __future__ import annotations

from typing import NamedTuple

from onceflow.sdk.protocol.releases import RELEASES, ranges_at, versions_at

PROFILES = RELEASES
"""Releases with a profile, oldest first."""

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
"""By feature: the first release with each range of levels."""


class Profile(NamedTuple):
    """Requests and features of one release.

    Attributes:
        name: The release.
        versions: Lowest and highest version by api key.
        features: Lowest and highest level by feature.
    """

    name: str
    versions: dict[int, tuple[int, int]]
    features: dict[str, tuple[int, int]]

    def level(self, feature: str, level: int) -> int:
        """Return a level of a feature, limited to what this release has."""
        return min(level, self.features.get(feature, (0, 0))[1])


def profile_of(name: str) -> Profile | None:
    """Return the profile of a release; None for the empty name, which limits nothing.

    Raises:
        KeyError: There is no such profile; the setting's check comes first.
    """
    if not name:
        return None
    if name not in PROFILES:
        raise KeyError(name)
    return Profile(name, versions_at(name), ranges_at(name, _FEATURES))
