"""DescribeConfigs and IncrementalAlterConfigs: settings of topics, and of the broker to look at.

Decides which resources have settings, what is shown of them and which changes are taken. Names and
bounds are in ``topic_config`` and ``config``. Settings of the broker are fixed at its start.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from onceflow.broker_lite.config import BROKER_SETTINGS, BrokerConfig
from onceflow.broker_lite.dispatch import RequestContext, handles
from onceflow.broker_lite.setting import Kind
from onceflow.broker_lite.topic_config import (
    TOPIC_SETTINGS,
    ConfigSource,
    TopicSetting,
    effective_value,
    synonyms,
    validate_overrides,
)
from onceflow.broker_lite.topics import Topic, TopicError, check_topic_name
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.protocol.api.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.broker import BrokerState

DescribedConfig = DescribeConfigsResponse.DescribeConfigsResourceResult


class ResourceType(enum.IntEnum):
    """Kinds of things that have settings, as numbered on the wire."""

    TOPIC = 2
    BROKER = 4


class Operation(enum.IntEnum):
    """What IncrementalAlterConfigs does to one setting (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def shown_value(entry: TopicSetting, overrides: dict[str, str], config: BrokerConfig) -> str | None:
    """Text of the value in force for a topic setting."""
    return entry.setting.render(effective_value(entry.setting.name, overrides, config))


@handles(DescribeConfigsRequest)
def describe_configs(
    state: BrokerState, context: RequestContext, request: DescribeConfigsRequest, now_ms: int
) -> DescribeConfigsResponse:
    """Values in force, where they come from, and what they would fall back to."""
    results = []
    # A resource that is named again is described once, by the last wish.
    named = {(wish.resource_type, wish.resource_name): wish for wish in request.resources}
    for resource in named.values():
        code, message = ErrorCode.NONE, None
        shown: list[DescribedConfig] = []
        try:
            if resource.resource_type == ResourceType.TOPIC:
                topic = _find_topic(state, resource.resource_name)
                shown = _describe_topic(state, topic, request)
            elif resource.resource_type == ResourceType.BROKER:
                _check_broker(state, resource.resource_name)
                if resource.resource_name:
                    shown = _describe_broker(state, request)
            else:
                raise TopicError(
                    ErrorCode.INVALID_REQUEST,
                    f"Resources of type {resource.resource_type} have no settings here; "
                    "topics (2) and brokers (4) have.",
                )
        except TopicError as error:
            code, message = error.code, error.message
        if resource.configuration_keys:  # An empty list asks for all, as null does.
            wanted = set(resource.configuration_keys)
            shown = [config for config in shown if config.name in wanted]
        results.append(
            DescribeConfigsResponse.DescribeConfigsResult(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=shown,
            )
        )
    return DescribeConfigsResponse(results=results)


def _find_topic(state: BrokerState, name: str) -> Topic:
    check_topic_name(name)
    topic = state.topics.get(name)
    if topic is None:
        raise TopicError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic named '{name}'.")
    return topic


def _check_broker(state: BrokerState, name: str) -> None:
    if name not in ("", str(state.node_id)):
        raise TopicError(
            ErrorCode.INVALID_REQUEST,
            f"There is no broker {name!r}; the only one is {state.node_id}.",
        )


# Kafka looks for the default under the first broker property only, which has none for these.
_NO_DEFAULT_SYNONYM = frozenset(
    (
        "flush.ms",
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "retention.ms",
        "segment.jitter.ms",
        "segment.ms",
    )
)


def _describe_topic(
    state: BrokerState, topic: Topic, request: DescribeConfigsRequest
) -> list[DescribedConfig]:
    shown = []
    for name, entry in TOPIC_SETTINGS.items():
        places = synonyms(name, topic.overrides, state.config)
        shown.append(
            DescribedConfig(
                name=name,
                value=shown_value(entry, topic.overrides, state.config),
                read_only=False,
                config_source=places[0].source,
                is_sensitive=False,
                synonyms=[
                    DescribeConfigsResponse.DescribeConfigsSynonym(
                        name=place.name, value=place.value, source=place.source
                    )
                    for place in places
                    if place.source != ConfigSource.DEFAULT_CONFIG
                    or name not in _NO_DEFAULT_SYNONYM
                ]
                if request.include_synonyms
                else [],
                config_type=entry.setting.kind,
                documentation=(
                    entry.setting.documentation if request.include_documentation else None
                ),
            )
        )
    return shown


def _describe_broker(state: BrokerState, request: DescribeConfigsRequest) -> list[DescribedConfig]:
    shown = []
    for name, setting in BROKER_SETTINGS.items():
        value = state.config.value(name)
        sensitive = setting.kind is Kind.PASSWORD
        source = ConfigSource.DEFAULT_CONFIG
        if value != setting.default:
            source = ConfigSource.STATIC_BROKER_CONFIG
        text = None if sensitive else setting.render(value)
        shown.append(
            DescribedConfig(
                name=name,
                value=text,
                read_only=True,
                config_source=source,
                is_sensitive=sensitive,
                synonyms=[
                    DescribeConfigsResponse.DescribeConfigsSynonym(
                        name=name, value=text, source=source
                    )
                ]
                if request.include_synonyms
                else [],
                config_type=setting.kind,
                documentation=setting.documentation if request.include_documentation else None,
            )
        )
    return shown


@handles(IncrementalAlterConfigsRequest)
def incremental_alter_configs(
    state: BrokerState,
    context: RequestContext,
    request: IncrementalAlterConfigsRequest,
    now_ms: int,
) -> IncrementalAlterConfigsResponse:
    """Set, drop, or change lists of single settings of topics; all of one resource or none."""
    responses = []
    for resource in request.resources:
        code, message = ErrorCode.NONE, None
        try:
            if resource.resource_type == ResourceType.BROKER:
                raise TopicError(
                    ErrorCode.INVALID_REQUEST, "Settings of this broker are fixed at its start."
                )
            if resource.resource_type != ResourceType.TOPIC:
                raise TopicError(
                    ErrorCode.INVALID_REQUEST,
                    f"Resources of type {resource.resource_type} have no settings here.",
                )
            _check_changes(resource)
            check_topic_name(resource.resource_name)
            known = state.topics.get(resource.resource_name)
            # Kafka looks at the settings before it looks for the topic.
            overrides = _altered(state, known.overrides if known else {}, resource)
            topic = _find_topic(state, resource.resource_name)
            if not request.validate_only:
                state.topics.set_overrides(topic, overrides)
        except TopicError as error:
            code, message = error.code, error.message
        except ConfigError as error:
            code, message = ErrorCode.INVALID_CONFIG, str(error)
        responses.append(
            IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return IncrementalAlterConfigsResponse(responses=responses)


def _check_changes(resource: IncrementalAlterConfigsRequest.AlterConfigsResource) -> None:
    """Refuse what cannot be meant, before anything is looked up, as Kafka does."""
    seen: set[str] = set()
    for change in resource.configs:
        name, operation = change.name, change.config_operation
        if name in seen:
            raise TopicError(
                ErrorCode.INVALID_REQUEST, f"Setting '{name}' is in the request more than once."
            )
        seen.add(name)
        if operation not in list(Operation):
            raise TopicError(
                ErrorCode.INVALID_REQUEST, f"There is no operation {operation} on settings."
            )
        if change.value is None and operation != Operation.DELETE:
            raise TopicError(ErrorCode.INVALID_REQUEST, f"Setting '{name}' has no value to use.")
        entry = TOPIC_SETTINGS.get(name)
        is_list = entry is not None and entry.setting.kind is Kind.LIST
        if operation in (Operation.APPEND, Operation.SUBTRACT) and not is_list:
            raise TopicError(
                ErrorCode.INVALID_CONFIG,
                f"Setting '{name}' is no list to append to or subtract from.",
            )


def _altered(
    state: BrokerState,
    overrides: dict[str, str],
    resource: IncrementalAlterConfigsRequest.AlterConfigsResource,
) -> dict[str, str]:
    """Overrides of a topic after the changes.

    Raises:
        TopicError: A change that cannot be meant.
        ConfigError: A name or value that is not allowed.
    """
    changed: dict[str, str | None] = dict(overrides)
    for change in resource.configs:
        name = change.name
        entry = TOPIC_SETTINGS.get(name)
        operation = change.config_operation
        if operation == Operation.DELETE:
            changed.pop(name, None)
            continue
        assert change.value is not None
        if operation == Operation.SET or entry is None:
            changed[name] = change.value
            continue
        value = shown_value(entry, overrides, state.config)
        words = value.split(",") if value else []
        given = [word.strip() for word in change.value.split(",")]
        if operation == Operation.APPEND:
            words += [word for word in given if word not in words]
        else:
            words = [word for word in words if word not in given]
        changed[name] = ",".join(words)
    return validate_overrides(changed)
