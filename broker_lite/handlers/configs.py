"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources.

Decides how requests about settings are read and answered. ``config_resources`` knows the resources,
their settings, and which may change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from onceflow.broker_lite.handlers.config_resources import RESOURCES, ConfigResources, ShownConfig
from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import RequestContext
from onceflow.broker_lite.topics import TopicError
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.admin import ResourceType
from onceflow.sdk.protocol.api.admin import (
    ConfigOperation,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from onceflow.sdk.protocol.api.admin_configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.settings.declare import Kind

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services

DescribedConfig = DescribeConfigsResponse.DescribeConfigsResourceResult
IncrementalResource: TypeAlias = IncrementalAlterConfigsRequest.AlterConfigsResource
WholeResource: TypeAlias = AlterConfigsRequest.AlterConfigsResource

LIST_ANY_TYPE_MIN_VERSION = 1


def _resources(resource_type: int) -> ConfigResources:
    found = RESOURCES.get(resource_type)
    if found is None:
        raise TopicError(
            ErrorCode.INVALID_REQUEST,
            f"Resources of type {resource_type} have no settings here; topics (2), brokers (4), "
            "client metrics (16) and groups (32) have.",
        )
    return found


# --- reading


@handles(DescribeConfigsRequest)
def describe_configs(
    state: Services, context: RequestContext, request: DescribeConfigsRequest, now_ms: int
) -> DescribeConfigsResponse:
    """Describe the values in force, their sources, and the values that they would fall back to."""
    results = []
    # A resource that is named twice is described once, as named last.
    named = {(wish.resource_type, wish.resource_name): wish for wish in request.resources}
    for resource in named.values():
        code, message = ErrorCode.NONE, None
        shown: list[ShownConfig] = []
        try:
            kind = _resources(resource.resource_type)
            kind.check(state, resource.resource_name)
            shown = kind.describe(state, resource.resource_name)
        except TopicError as error:
            code, message = error.code, error.message
        # An empty list of keys means all, as null does.
        wanted = set(resource.configuration_keys or ())
        results.append(
            DescribeConfigsResponse.DescribeConfigsResult(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
                configs=[
                    _described(entry, request)
                    for entry in shown
                    if not wanted or entry.setting.name in wanted
                ],
            )
        )
    return DescribeConfigsResponse(results=results)


def _described(entry: ShownConfig, request: DescribeConfigsRequest) -> DescribedConfig:
    setting = entry.setting
    sensitive = setting.kind is Kind.PASSWORD
    return DescribedConfig(
        name=setting.name,
        value=None if sensitive else entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=sensitive,
        synonyms=[
            DescribeConfigsResponse.DescribeConfigsSynonym(
                name=place.name, value=None if sensitive else place.value, source=place.source
            )
            for place in entry.places
        ]
        if request.include_synonyms
        else [],
        config_type=setting.kind,
        documentation=setting.text if request.include_documentation else None,
    )


@handles(ListConfigResourcesRequest)
def list_config_resources(
    state: Services, context: RequestContext, request: ListConfigResourcesRequest, now_ms: int
) -> ListConfigResourcesResponse:
    """List resources with settings (KIP-1142); in version 0 only client metrics (KIP-1000)."""
    wanted: Iterable[int] = dict.fromkeys(request.resource_types) or RESOURCES
    if context.api_version < LIST_ANY_TYPE_MIN_VERSION:
        wanted = (ResourceType.CLIENT_METRICS,)
    if any(resource_type not in RESOURCES for resource_type in wanted):
        return ListConfigResourcesResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION, config_resources=[]
        )
    return ListConfigResourcesResponse(
        config_resources=[
            ListConfigResourcesResponse.ConfigResource(
                resource_name=name, resource_type=resource_type
            )
            for resource_type in wanted
            for name in RESOURCES[resource_type].names(state)
        ]
    )


# --- changing


@handles(IncrementalAlterConfigsRequest)
def incremental_alter_configs(
    state: Services,
    context: RequestContext,
    request: IncrementalAlterConfigsRequest,
    now_ms: int,
) -> IncrementalAlterConfigsResponse:
    """Set, delete, or change lists of single settings; all of one resource or none."""
    outcomes = _altered(state, request.resources, _changed, request.validate_only)
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, code, message in outcomes
        ]
    )


@handles(AlterConfigsRequest)
def alter_configs(
    state: Services, context: RequestContext, request: AlterConfigsRequest, now_ms: int
) -> AlterConfigsResponse:
    """Replace all settings of resources; old tools still send this request."""
    outcomes = _altered(state, request.resources, _replaced, request.validate_only)
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponse.AlterConfigsResourceResponse(
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, code, message in outcomes
        ]
    )


def _altered(
    state: Services,
    resources: list[IncrementalResource] | list[WholeResource],
    wish: Callable[[Services, ConfigResources, str, list[object]], dict[str, str]],
    validate_only: bool,
) -> list[tuple[IncrementalResource | WholeResource, ErrorCode, str | None]]:
    """Change each resource by itself; yield the result of each."""
    named = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    outcomes: list[tuple[IncrementalResource | WholeResource, ErrorCode, str | None]] = []
    for resource in resources:
        name = resource.resource_name
        code, message = ErrorCode.NONE, None
        bad_setting = ErrorCode.INVALID_CONFIG
        try:
            if named[resource.resource_type, name] > 1:
                raise TopicError(
                    ErrorCode.INVALID_REQUEST, "The resource is in the request more than once."
                )
            kind = _resources(resource.resource_type)
            bad_setting = kind.bad_setting_code
            # Kafka checks the settings before it looks for the resource.
            kind.check_name(state, name)
            _check_once([config.name for config in resource.configs])
            checked = kind.validated(state, name, wish(state, kind, name, list(resource.configs)))
            kind.check(state, name)
            if not validate_only:
                kind.store(state, name, checked)
        except TopicError as error:
            code, message = error.code, error.message
        except ConfigError as error:
            code, message = bad_setting, str(error)
        except OSError as error:
            code, message = ErrorCode.KAFKA_STORAGE_ERROR, f"Settings cannot be stored: {error}."
        outcomes.append((resource, code, message))
    return outcomes


def _check_once(names: list[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise TopicError(
                ErrorCode.INVALID_REQUEST, f"Setting '{name}' is in the request more than once."
            )


def _replaced(
    state: Services, kind: ConfigResources, name: str, configs: list[object]
) -> dict[str, str]:
    wished = {}
    for config in configs:
        assert isinstance(config, AlterConfigsRequest.AlterableConfig)
        wished[config.name] = _value(config.name, config.value)
    return wished


def _changed(
    state: Services, kind: ConfigResources, name: str, configs: list[object]
) -> dict[str, str]:
    """Return the settings of a resource after the changes.

    Raises:
        TopicError: A change is not possible for its setting.
    """
    wished = kind.overrides(state, name)
    for change in configs:
        assert isinstance(change, IncrementalAlterConfigsRequest.AlterableConfig)
        operation = change.config_operation
        if operation == ConfigOperation.DELETE:
            wished.pop(change.name, None)
            continue
        if operation not in (ConfigOperation.SET, ConfigOperation.APPEND, ConfigOperation.SUBTRACT):
            raise TopicError(
                ErrorCode.INVALID_REQUEST,
                f"Unknown operation {operation} on setting '{change.name}'; use 0 (SET), 1 "
                "(DELETE), 2 (APPEND) or 3 (SUBTRACT).",
            )
        value = _value(change.name, change.value)
        if operation != ConfigOperation.SET:
            declared = kind.declared(state, change.name)
            if declared is None or declared.kind is not Kind.LIST:
                raise TopicError(
                    ErrorCode.INVALID_CONFIG,
                    f"Setting '{change.name}' is not a list: set or delete it.",
                )
            words = kind.in_force(state, name, change.name).split(",")
            given = [word.strip() for word in value.split(",")]
            if operation == ConfigOperation.APPEND:
                if any(words) and "" in given:
                    raise TopicError(
                        ErrorCode.INVALID_CONFIG,
                        f"Setting '{change.name}' is a list; it cannot hold an empty element.",
                    )
                words += [word for word in given if word not in words]
            else:
                words = [word for word in words if word not in given]
            value = ",".join(word for word in words if word)
        wished[change.name] = value
    return wished


def _value(name: str, value: str | None) -> str:
    if value is None:
        raise TopicError(
            ErrorCode.INVALID_REQUEST,
            f"Setting '{name}' needs a value; use DELETE to go back to its default.",
        )
    return value
