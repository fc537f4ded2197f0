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
        if resource.configuration_keys is not None:
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
            topic = _find_topic(state, resource.resource_name)
            overrides = _altered(state, topic, resource)
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


def _altered(
    state: BrokerState,
    topic: Topic,
    resource: IncrementalAlterConfigsRequest.AlterConfigsResource,
) -> dict[str, str]:
    """Overrides of a topic after the changes.

    Raises:
        TopicError: A change that cannot be meant.
        ConfigError: A name or value that is not allowed.
    """
    changed: dict[str, str | None] = dict(topic.overrides)
    seen: set[str] = set()
    for change in resource.configs:
        name = change.name
        if name in seen:
            raise TopicError(
                ErrorCode.INVALID_REQUEST, f"Setting '{name}' is in the request more than once."
            )
        seen.add(name)
        entry = TOPIC_SETTINGS.get(name)
        operation = change.config_operation
        if operation == Operation.DELETE:
            changed.pop(name, None)
            continue
        if operation not in (Operation.SET, Operation.APPEND, Operation.SUBTRACT):
            raise TopicError(
                ErrorCode.INVALID_REQUEST, f"There is no operation {operation} on settings."
            )
        if change.value is None:
            raise TopicError(ErrorCode.INVALID_REQUEST, f"Setting '{name}' has no value to use.")
        if operation == Operation.SET or entry is None:
            changed[name] = change.value
            continue
        if entry.setting.kind is not Kind.LIST:
            raise TopicError(
                ErrorCode.INVALID_CONFIG,
                f"Setting '{name}' is no list to append to or subtract from.",
            )
        words = (shown_value(entry, topic.overrides, state.config) or "").split(",")
        given = [word.strip() for word in change.value.split(",")]
        if operation == Operation.APPEND:
            words += [word for word in given if word not in words]
        else:
            words = [word for word in words if word not in given]
        changed[name] = ",".join(word for word in words if word)
    return validate_overrides(changed)
