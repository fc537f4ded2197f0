"""Resources that have settings (topics, brokers, groups, client metrics), one class for each type.

The handlers are the same for every type. A class here knows the names of its type, their settings,
where these are kept, and the error code for a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from onceflow.broker_lite.settings.broker_config import BROKER_SETTINGS
from onceflow.broker_lite.settings.dynamic_config import (
    CLIENT_METRICS_SELECTORS,
    CLIENT_METRICS_SETTINGS,
    CLUSTER_DEFAULT,
    GROUP_SYNONYMS,
    MIN_INSYNC_REPLICAS,
    Overrides,
    dynamic_setting,
    group_settings,
)
from onceflow.broker_lite.settings.idle_dynamic import IDLE_DYNAMIC_SETTINGS
from onceflow.broker_lite.settings.topic_config import (
    TOPIC_SETTINGS,
    ConfigSynonym,
    broker_synonyms,
    effective_value,
    synonyms,
    validate_overrides,
)
from onceflow.broker_lite.topics import Topic, TopicError, check_topic_name
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.admin import ResourceType
from onceflow.sdk.model.special_values import ConfigSource
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.settings.declare import Setting
from onceflow.sdk.settings.names import unknown_setting

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services


class ShownConfig(NamedTuple):
    """One setting of a resource as DescribeConfigs shows it.

    Attributes:
        setting: Its declaration.
        value: Text in force, None when unset.
        source: Where it comes from.
        places: Possible sources, the one in force first.
        read_only: True when it cannot change at run time.
    """

    setting: Setting
    value: str | None
    source: ConfigSource
    places: Sequence[ConfigSynonym]
    read_only: bool = False


class ConfigResources(Protocol):
    """One type of resource."""

    bad_setting_code: ErrorCode
    """Error code for a wrong name or value."""

    def check(self, state: Services, name: str) -> None:
        """Refuse a resource that does not exist.

        Raises:
            TopicError: With the code and the reason.
        """
        ...

    def check_name(self, state: Services, name: str) -> None:
        """Refuse a name that no resource of this type can have, before its settings change.

        Raises:
            TopicError: With the code and the reason.
        """
        ...

    def names(self, state: Services) -> list[str]:
        """Names of the resources of this type that ListConfigResources shows."""
        ...

    def overrides(self, state: Services, name: str) -> Overrides:
        """Settings of a resource that were changed; none for one that does not exist."""
        ...

    def declared(self, state: Services, setting: str) -> Setting | None:
        """Return the declaration of a setting; None if there is no such setting."""
        ...

    def in_force(self, state: Services, name: str, setting: str) -> str:
        """Return the text that APPEND and SUBTRACT change."""
        ...

    def validated(self, state: Services, name: str, overrides: Mapping[str, str]) -> Overrides:
        """Check the settings before they are stored.

        Raises:
            ConfigError: A name or value that is not allowed.
        """
        ...

    def store(self, state: Services, name: str, overrides: Overrides) -> None:
        """Store checked settings, and put them in force.

        Raises:
            TopicError: KAFKA_STORAGE_ERROR.
            OSError: They cannot be stored.
        """
        ...

    def describe(self, state: Services, name: str) -> list[ShownConfig]:
        """Every setting of a resource."""
        ...


def shown_topic_config(
    state: Services, setting_name: str, overrides: Mapping[str, str]
) -> ShownConfig:
    """Return a topic's setting with its value and sources."""
    dynamic = state.dynamic_config
    places = synonyms(setting_name, overrides, dynamic.static, dynamic.layers())
    setting = TOPIC_SETTINGS[setting_name]
    source = places[0].source if places else ConfigSource.DEFAULT_CONFIG
    value = setting.render(effective_value(setting_name, overrides, state.config))
    return ShownConfig(setting, value, source, places)


class _Topics:
    bad_setting_code = ErrorCode.INVALID_CONFIG

    def check(self, state: Services, name: str) -> None:
        self._topic(state, name)

    def check_name(self, state: Services, name: str) -> None:
        if not name:
            raise TopicError(ErrorCode.INVALID_REQUEST, "Topics have no common settings.")
        check_topic_name(name)

    def _topic(self, state: Services, name: str) -> Topic:
        check_topic_name(name)
        topic = state.topics.get(name)
        if topic is None:
            raise TopicError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{name}' does not exist."
            )
        return topic

    def names(self, state: Services) -> list[str]:
        return [topic.name for topic in state.topics]

    def overrides(self, state: Services, name: str) -> Overrides:
        topic = state.topics.get(name)
        return {} if topic is None else dict(topic.overrides)

    def declared(self, state: Services, setting: str) -> Setting | None:
        return TOPIC_SETTINGS.get(setting)

    def in_force(self, state: Services, name: str, setting: str) -> str:
        return shown_topic_config(state, setting, self.overrides(state, name)).value or ""

    def validated(self, state: Services, name: str, overrides: Mapping[str, str]) -> Overrides:
        return validate_overrides(overrides)

    def store(self, state: Services, name: str, overrides: Overrides) -> None:
        state.topics.set_overrides(self._topic(state, name), overrides)

    def describe(self, state: Services, name: str) -> list[ShownConfig]:
        overrides = self.overrides(state, name)
        return [shown_topic_config(state, setting, overrides) for setting in TOPIC_SETTINGS]


class _Brokers:
    bad_setting_code = ErrorCode.INVALID_REQUEST

    def check(self, state: Services, name: str) -> None:
        nodes = list(map(str, state.placement.nodes))
        if name not in (CLUSTER_DEFAULT, *nodes):
            raise TopicError(
                ErrorCode.INVALID_REQUEST,
                f"Unknown broker {name!r}; the brokers are {', '.join(nodes)}.",
            )

    check_name = check

    def names(self, state: Services) -> list[str]:
        return list(map(str, state.placement.nodes))

    def overrides(self, state: Services, name: str) -> Overrides:
        return state.dynamic_config.broker(name)

    def declared(self, state: Services, setting: str) -> Setting | None:
        return BROKER_SETTINGS.get(setting) or IDLE_DYNAMIC_SETTINGS.get(setting)

    def in_force(self, state: Services, name: str, setting: str) -> str:
        declared = BROKER_SETTINGS[setting]
        return self.overrides(state, name).get(setting) or declared.render(declared.default) or ""

    def validated(self, state: Services, name: str, overrides: Mapping[str, str]) -> Overrides:
        dynamic = state.dynamic_config
        if dynamic.has_cluster_min_insync:
            is_cluster, is_set = name == CLUSTER_DEFAULT, MIN_INSYNC_REPLICAS in overrides
            if is_cluster and not is_set:
                raise TopicError(
                    ErrorCode.INVALID_CONFIG,
                    "Cluster-level min.insync.replicas cannot be removed while "
                    "eligible.leader.replicas.version is in force; set it to another value.",
                )
            if is_set and not is_cluster:
                raise TopicError(
                    ErrorCode.INVALID_CONFIG,
                    "Broker-level min.insync.replicas cannot be set while "
                    "eligible.leader.replicas.version is in force; set it for the cluster or for "
                    "topics.",
                )
        return dynamic.check_broker(name, overrides)

    def store(self, state: Services, name: str, overrides: Overrides) -> None:
        state.dynamic_config.set_broker(name, overrides)

    def describe(self, state: Services, name: str) -> list[ShownConfig]:
        dynamic = state.dynamic_config
        if name == CLUSTER_DEFAULT:
            source = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
            return [
                ShownConfig(setting, text, source, [ConfigSynonym(key, text, source)])
                for key, text in dynamic.broker(CLUSTER_DEFAULT).items()
                if (setting := dynamic_setting(key)) is not None
            ]
        layers = dynamic.layers()
        shown = []
        for key, setting in BROKER_SETTINGS.items():
            places = broker_synonyms([key], dynamic.static, layers)
            value = setting.render(state.config.value(key))
            if (bound := self._bound(state, name, key)) is not None:
                # The addresses are always part of the start, whatever names them.
                value = bound
                places = [ConfigSynonym(key, bound, ConfigSource.STATIC_BROKER_CONFIG)]
            source = places[0].source if places else ConfigSource.DEFAULT_CONFIG
            read_only = dynamic_setting(key) is None
            shown.append(ShownConfig(setting, value, source, places, read_only))
        for key, setting in IDLE_DYNAMIC_SETTINGS.items():
            for layer in layers:
                if key in layer.overrides:
                    text = layer.overrides[key]
                    place = ConfigSynonym(key, text, layer.source)
                    shown.append(ShownConfig(setting, text, layer.source, [place]))
                    break
        return shown

    def _bound(self, state: Services, name: str, setting: str) -> str | None:
        """Addresses of a node's listeners, for the two settings that hold them; otherwise None."""
        if setting not in ("listeners", "advertised.listeners"):
            return None
        found = [each for (node_id, _), each in state.listeners.items() if str(node_id) == name]
        if setting == "listeners":
            return ",".join(map(str, found)) or None
        return ",".join(each.advertised_text for each in found) or None


class _Groups:
    bad_setting_code = ErrorCode.INVALID_CONFIG

    def check(self, state: Services, name: str) -> None:
        if not name:
            raise TopicError(
                ErrorCode.INVALID_REQUEST, "Name a group; they have no common settings."
            )

    check_name = check

    def names(self, state: Services) -> list[str]:
        return state.dynamic_config.group_names()

    def overrides(self, state: Services, name: str) -> Overrides:
        return state.dynamic_config.group(name)

    def declared(self, state: Services, setting: str) -> Setting | None:
        return group_settings(state.config).get(setting)

    def in_force(self, state: Services, name: str, setting: str) -> str:
        return ""  # None of them is a list.

    def validated(self, state: Services, name: str, overrides: Mapping[str, str]) -> Overrides:
        return _checked("group", group_settings(state.config), overrides)

    def store(self, state: Services, name: str, overrides: Overrides) -> None:
        state.dynamic_config.set_group(name, overrides)

    def describe(self, state: Services, name: str) -> list[ShownConfig]:
        dynamic = state.dynamic_config
        overrides = dynamic.group(name)
        shown = []
        for key, setting in group_settings(state.config).items():
            places = broker_synonyms([GROUP_SYNONYMS[key]], dynamic.static, dynamic.layers())
            if key in overrides:
                places.insert(
                    0, ConfigSynonym(key, overrides[key], ConfigSource.DYNAMIC_GROUP_CONFIG)
                )
            value = overrides.get(key, places[0].value)
            shown.append(ShownConfig(setting, value, places[0].source, places))
        return shown


class _ClientMetrics:
    bad_setting_code = ErrorCode.INVALID_CONFIG

    def check(self, state: Services, name: str) -> None:
        if not name:
            raise TopicError(ErrorCode.INVALID_REQUEST, "Name the subscription of client metrics.")

    check_name = check

    def names(self, state: Services) -> list[str]:
        return state.dynamic_config.client_metrics_names()

    def overrides(self, state: Services, name: str) -> Overrides:
        return state.dynamic_config.client_metrics(name)

    def declared(self, state: Services, setting: str) -> Setting | None:
        return CLIENT_METRICS_SETTINGS.get(setting)

    def in_force(self, state: Services, name: str, setting: str) -> str:
        return self.overrides(state, name).get(setting, "")

    def validated(self, state: Services, name: str, overrides: Mapping[str, str]) -> Overrides:
        for name_, text in overrides.items():
            if name_ not in CLIENT_METRICS_SETTINGS or name_ == "interval.ms":
                # Kafka answers INVALID_REQUEST for these two, INVALID_CONFIG for the others.
                try:
                    _checked("subscription", CLIENT_METRICS_SETTINGS, {name_: text})
                except ConfigError as error:
                    raise TopicError(ErrorCode.INVALID_REQUEST, str(error)) from None
        checked = _checked("subscription", CLIENT_METRICS_SETTINGS, overrides)
        _check_match(checked.get("match", ""))
        return checked

    def store(self, state: Services, name: str, overrides: Overrides) -> None:
        state.dynamic_config.set_client_metrics(name, overrides)

    def describe(self, state: Services, name: str) -> list[ShownConfig]:
        overrides = self.overrides(state, name)
        shown = []
        for key, setting in CLIENT_METRICS_SETTINGS.items():
            places = []
            if key in overrides:
                source = ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG
                places = [ConfigSynonym(key, overrides[key], source)]
            else:
                source = ConfigSource.DEFAULT_CONFIG
            value = overrides.get(key, setting.render(setting.default))
            shown.append(ShownConfig(setting, value, source, places))
        return shown


def _checked(kind: str, settings: Mapping[str, Setting], overrides: Mapping[str, str]) -> Overrides:
    checked = {}
    for name, text in overrides.items():
        setting = settings.get(name)
        if setting is None:
            raise unknown_setting(kind, name, settings)
        checked[name] = setting.render(setting.read(text)) or ""
    return checked


def _check_match(text: str) -> None:
    """Refuse a part that is not NAME=PATTERN with a known name."""
    for part in filter(None, text.split(",")):
        selector, equals, pattern = part.partition("=")
        selector = selector.strip()
        if not equals or selector not in CLIENT_METRICS_SELECTORS:
            raise ConfigError("match", part, f"names are {', '.join(CLIENT_METRICS_SELECTORS)}")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError("match", part, f"not a regular expression: {error}") from None


RESOURCES: dict[int, ConfigResources] = {
    ResourceType.TOPIC: _Topics(),
    ResourceType.BROKER: _Brokers(),
    ResourceType.CLIENT_METRICS: _ClientMetrics(),
    ResourceType.GROUP: _Groups(),
}
"""The types of resources with settings, by their number in requests."""
