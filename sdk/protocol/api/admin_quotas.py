"""Quotas of clients: what is set for users, client ids and addresses (KIP-546).

Layouts only.

DescribeClientQuotas (key 48), versions 0-1, flexible from 1
AlterClientQuotas (key 49), versions 0-1, flexible from 1
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
    float64,
    int8,
    int16,
    int32,
    string,
)


class DescribeClientQuotasRequest(Request, api_key=48, versions="0-1", flexible="1+"):
    """Ask for the quotas of entities that match every component; none match all entities."""

    class ComponentData(Struct):
        """What one part of an entity must be."""

        entity_type: str = string()
        match_type: int = int8()
        match: str | None = string(nullable="0+", default=None)

    components: list[ComponentData] = array(ComponentData)
    strict: bool = boolean(default=False)


class DescribeClientQuotasResponse(Response, api_key=48, versions="0-1", flexible="1+"):
    """Entities and their quotas."""

    class EntryData(Struct):
        """One entity."""

        class EntityData(Struct):
            """One part of the entity; null is the default of its type."""

            entity_type: str = string()
            entity_name: str | None = string(nullable="0+")

        class ValueData(Struct):
            """One quota."""

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
    """Set and remove quotas, or only check whether it could be done."""

    class EntryData(Struct):
        """The changes of one entity."""

        class EntityData(Struct):
            """One part of the entity; null is the default of its type."""

            entity_type: str = string()
            entity_name: str | None = string(nullable="0+")

        class OpData(Struct):
            """One change."""

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
        """The outcome for one entity."""

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
