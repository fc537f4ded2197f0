"""Messages that replace all settings of a resource and list the resources that have settings.

Messages that read and change single settings are in ``api.admin``.

AlterConfigs (key 33), versions 0-2, flexible from 2:
    (superseded by IncrementalAlterConfigs, KIP-339)
ListConfigResources (key 74), versions 0-1, all flexible:
    0 client metrics only (KIP-1000)
    1 any type of resource (KIP-1142)
"""

from __future__ import annotations

from typing import TypeAlias

from onceflow.sdk.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    string,
)


class AlterConfigsRequest(Request, api_key=33, versions="0-2", flexible="2+"):
    """Replace all settings of resources; settings that are not named get their defaults."""

    class AlterConfigsResource(Struct):
        """All settings of one resource."""

        class AlterableConfig(Struct):
            name: str = string()
            value: str | None = string(nullable="0+")

        resource_type: int = int8()
        resource_name: str = string()
        configs: list[AlterableConfig] = array(AlterableConfig)

    AlterableConfig: TypeAlias = AlterConfigsResource.AlterableConfig

    resources: list[AlterConfigsResource] = array(AlterConfigsResource)
    validate_only: bool = boolean(default=False)


class AlterConfigsResponse(Response, api_key=33, versions="0-2", flexible="2+"):
    """The outcome for each resource."""

    class AlterConfigsResourceResponse(Struct):
        error_code: int = int16(default=0)
        error_message: str | None = string(nullable="0+", default=None)
        resource_type: int = int8()
        resource_name: str = string()

    throttle_time_ms: int = int32(default=0)
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


class ListConfigResourcesRequest(Request, api_key=74, versions="0-1", flexible="0+"):
    """Ask which resources have settings; an empty list of types asks for all types."""

    resource_types: list[int] = array(int8, "1+", default=[])


class ListConfigResourcesResponse(Response, api_key=74, versions="0-1", flexible="0+"):
    """The resources."""

    class ConfigResource(Struct):
        resource_name: str = string()
        resource_type: int = int8("1+", default=16, ignorable=True)

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    config_resources: list[ConfigResource] = array(ConfigResource)
