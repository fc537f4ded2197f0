"""Features of the cluster: which levels this broker knows, and which are in force (KIP-584).

It decides which changes of a level are allowed. ``on_change`` calls the code that depends on a
level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from onceflow.broker_lite.log import DataFolderError
from onceflow.broker_lite.profiles import PROFILES
from onceflow.sdk.model.special_values import TRANSACTION_VERSION

if TYPE_CHECKING:
    from onceflow.broker_lite.cluster_metadata import ClusterMetadata
    from onceflow.broker_lite.settings.broker_config import BrokerConfig

SECTION = "features"


class SupportedFeature(NamedTuple):
    """One feature.

    Attributes:
        name: Kafka's name.
        min_level: Lowest level; 0 means that the feature is off.
        max_level: Highest level.
        initial_level: Level of a new cluster.
    """

    name: str
    min_level: int
    max_level: int
    initial_level: int


ELIGIBLE_LEADER_REPLICAS = "eligible.leader.replicas.version"
"""From level 1, ``min.insync.replicas`` is a setting of the cluster and of topics (KIP-966)."""

GROUP_VERSION = "group.version"
"""Level 1 has the consumer group protocol (KIP-848)."""


def known_features(config: BrokerConfig) -> tuple[SupportedFeature, ...]:
    """Return the known features. ``metadata.version`` is missing, as there is no metadata log."""
    consumers = "consumer" in config.group_coordinator_rebalance_protocols
    return (
        SupportedFeature(ELIGIBLE_LEADER_REPLICAS, 0, 1, int(_has_replicas_to_elect(config))),
        SupportedFeature(GROUP_VERSION, 0, 1, int(consumers)),
        SupportedFeature(TRANSACTION_VERSION, 0, 2, config.onceflow_transaction_version),
    )


def _has_replicas_to_elect(config: BrokerConfig) -> bool:
    """Whether a new cluster of the release has the feature on; 4.0 knows it and has it off."""
    profile = config.onceflow_profile
    return not profile or PROFILES.index(profile) >= PROFILES.index("4.1")


class FeatureUpdate(NamedTuple):
    """A request to change a level.

    Attributes:
        name: The feature.
        level: The new level.
        upgrade_type: The allowed direction, by its number in the request.
    """

    name: str
    level: int
    upgrade_type: int


class Features:
    """Levels of the features, stored in the cluster metadata.

    Args:
        metadata: Stores changes.
        supported: The known features.

    Attributes:
        epoch: Raised by each change, so that clients know which answer is newer.
        on_change: Called with name and level after a change.

    Raises:
        DataFolderError: This broker does not know a stored level.
    """

    __slots__ = ("_changed", "_metadata", "_supported", "epoch", "on_change")

    def __init__(self, metadata: ClusterMetadata, supported: tuple[SupportedFeature, ...]) -> None:
        self._metadata = metadata
        self._supported = {feature.name: feature for feature in supported}
        self.on_change: list[Callable[[str, int], None]] = []
        kept = metadata.section(SECTION)
        epoch, levels = kept.get("epoch", 1), kept.get("levels", {})
        if not isinstance(epoch, int) or not isinstance(levels, dict):
            raise DataFolderError("section features of the cluster metadata holds no levels")
        self.epoch = epoch
        self._changed: dict[str, int] = {}
        for name, level in levels.items():
            feature = self._supported.get(name)
            if (
                feature is None
                or not isinstance(level, int)
                or not feature.min_level <= level <= feature.max_level
            ):
                raise DataFolderError(
                    f"the cluster runs feature {name} at level {level}, which this broker does not "
                    "know: start it with the later broker that set it"
                )
            self._changed[name] = level

    def supported(self) -> list[SupportedFeature]:
        """Every known feature."""
        return list(self._supported.values())

    def level(self, name: str) -> int:
        """Return the level of a known feature."""
        return self._changed.get(name, self._supported[name].initial_level)

    def refusal(self, update: FeatureUpdate) -> str | None:
        """Return why a level cannot be set, or None."""
        from onceflow.sdk.protocol.api.admin_cluster import UpgradeType

        feature = self._supported.get(update.name)
        about = f"Feature {update.name} cannot have level {update.level}"
        if feature is None:
            known = ", ".join(self._supported)
            return f"{about}: there is no such feature here; there are {known}."
        if update.upgrade_type not in tuple(UpgradeType):
            return f"{about}: there is no upgrade of type {update.upgrade_type}."
        if not feature.min_level <= update.level <= feature.max_level:
            return f"{about}: levels {feature.min_level} to {feature.max_level} are known."
        if update.level < self.level(update.name) and update.upgrade_type == UpgradeType.UPGRADE:
            return f"{about}: it is lower than now, so ask for a safe or unsafe downgrade."
        return None

    def update(self, updates: Mapping[str, int]) -> None:
        """Set levels that `refusal` allows.

        Raises:
            OSError: They cannot be stored; nothing changes.
        """
        news = {name: level for name, level in updates.items() if level != self.level(name)}
        if not news:
            return
        changed = {**self._changed, **news}
        self._metadata.save(SECTION, {"epoch": self.epoch + 1, "levels": {**changed}})
        self._changed = changed
        self.epoch += 1
        for name, level in news.items():
            for callback in self.on_change:
                callback(name, level)
