"""Messages that read and change quotas of users, client ids and addresses (KIP-546).

DescribeClientQuotas (key 48), versions 0-1, flexible from 1
AlterClientQuotas (key 49), versions 0-1, flexible from 1
"""

from __future__ import annotations

from typing import TypeAlias

from onceflow.sdk.protocol.schema import (
    Request,
    Response,
    Struct,
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    string,
)


class DescribeClientQuotasRequest(Request, api_key=48, versions="0-1", flexible="1+"):
    """Ask for quotas of entities that match all components; no component matches all entities."""

    class ComponentData(Struct):
        """The filter for one part of an entity."""

        entity_type: str = string()
        match_type: int = int8()
        match: str | None = string(nullable="0+", default=None)

    components: list[ComponentData] = array(ComponentData)
    strict: bool = boolean(default=False)


class DescribeClientQuotasResponse(Response, api_key=48, versions="0-1", flexible="1+"):
    """Entities and their quotas."""

    class EntryData(Struct):
        class EntityData(Struct):
            """One part of the entity; null is the default of its type."""

            entity_type: str = string()
            entity_name: str | None = string(nullable="0+")

        class ValueData(Struct):
            key: str = string()
            value: float = float64()

        entity: list[EntityData] = array(EntityData)
        values: list[ValueData] = array(ValueData)

    EntityData: TypeAlias = EntryData.EntityData
    ValueData: TypeAlias = EntryData.ValueData

    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable="0+", default=None)
    entries: list[EntryData] | None = array(EntryData, nullable="0+")


class AlterClientQuotasRequest(Request, api_key=49, versions="0-1", flexible="1+"):
    """Set and remove quotas, or only validate the request."""

    class EntryData(Struct):
        class EntityData(Struct):
            """One part of the entity; null is the default of its type."""

            entity_type: str = string()
            entity_name: str | None = string(nullable="0+")

        class OpData(Struct):
            key: str = string()
            value: float = float64(default=0.0)
            remove: bool = boolean(default=False)

        entity: list[EntityData] = array(EntityData)
        ops: list[OpData] = array(OpData)

    EntityData: TypeAlias = EntryData.EntityData
    OpData: TypeAlias = EntryData.OpData

    entries: list[EntryData] = array(EntryData)
    validate_only: bool = boolean(default=False)


class AlterClientQuotasResponse(Response, api_key=49, versions="0-1", flexible="1+"):
    """The outcome for each entity."""

    class EntryData(Struct):
        class EntityData(Struct):
            """One part of the entity; null is the default of its type."""

            entity_type: str = string()
            entity_name: str | None = string(nullable="0+")

        error_code: int = int16(default=0)
        error_message: str | None = string(nullable="0+", default=None)
        entity: list[EntityData] = array(EntityData)

    EntityData: TypeAlias = EntryData.EntityData

    throttle_time_ms: int = int32(default=0)
    entries: list[EntryData] = array(EntryData)
