"""Settings as a whole: replacing all of a resource, and listing what has settings.

Layouts only. Single settings are read and changed by the messages in ``api.admin``.

AlterConfigs (key 33), versions 0-2, flexible from 2:
    (superseded by IncrementalAlterConfigs, KIP-339)
ListConfigResources (key 74), versions 0-1, all flexible:
    0 client metrics only (KIP-1000)
    1 any type of resource (KIP-1142)
"""

# The short names inside the messages are aliases, which mypy forbids in real dataclasses only.
# mypy: disable-error-code=misc

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
    """Replace all settings of resources; what is not named goes back to its default."""

    class AlterConfigsResource(Struct):
        """All that one resource is to have set."""

        class AlterableConfig(Struct):
            """One setting."""

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
        """The outcome for one resource."""

        error_code: int = int16(default=0)
        error_message: str | None = string(nullable="0+", default=None)
        resource_type: int = int8()
        resource_name: str = string()

    throttle_time_ms: int = int32(default=0)
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse)


class ListConfigResourcesRequest(Request, api_key=74, versions="0-1", flexible="0+"):
    """Ask which resources have settings; no types ask for all that a broker lists."""

    resource_types: list[int] = array(int8, "1+", default=[])


class ListConfigResourcesResponse(Response, api_key=74, versions="0-1", flexible="0+"):
    """The resources."""

    class ConfigResource(Struct):
        """One resource."""

        resource_name: str = string()
        resource_type: int = int8("1+", default=16, ignorable=True)

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    config_resources: list[ConfigResource] = array(ConfigResource)
