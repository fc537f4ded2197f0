"""Quotas of users, client ids and addresses: checks, stores and finds them (KIP-546).

It decides which entities and quotas exist and which quota is in force for a client. ``enforcement``
measures clients against their quotas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, cast

from onceflow.broker_lite.log import DataFolderError
from onceflow.sdk.model.special_values import QuotaMatch
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.settings.declare import INT32_MAX, INT64_MAX

if TYPE_CHECKING:
    from onceflow.broker_lite.cluster_metadata import ClusterMetadata, Json

SECTION = "quotas"

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

Entity = tuple[tuple[str, str | None], ...]
"""Pairs of type and name, sorted; None as a name means the default of its type."""

WHOLE_NUMBERS = {
    PRODUCER_BYTE_RATE: INT64_MAX,
    CONSUMER_BYTE_RATE: INT64_MAX,
    CONNECTION_CREATION_RATE: INT32_MAX,
}
"""Quotas that are whole numbers, with their greatest value."""

KEYS_OF_CLIENTS = frozenset(
    {PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE}
)
KEYS_OF_ADDRESSES = frozenset({CONNECTION_CREATION_RATE})


KNOWN_LIMITS_MAX = 10_000
"""Most limits of clients that are cached between two changes."""


class QuotaError(Exception):
    """A request about quotas that is refused.

    Attributes:
        code: Kafka's error code.
        message: What is wrong and what to do.
    """

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        super().__init__(message, code)
        self.code = code
        self.message = message

    def __str__(self) -> str:
        return self.message


class QuotaFilter(NamedTuple):
    """A filter of one part of an entity.

    Attributes:
        entity_type: Type of the part.
        match: How it is compared, by its number in the request.
        name: Name to compare with, if any.
    """

    entity_type: str
    match: int
    name: str | None


class Limit(NamedTuple):
    """A quota in force for a client.

    Attributes:
        value: The quota.
        shared_by: User and client id of the clients that share it; empty for any.
    """

    value: float
    shared_by: tuple[str, str]


def make_entity(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """Return the entity with these parts.

    Raises:
        QuotaError: No part is given, one has an unknown type or an empty name, or an address is
            combined with another part.
    """
    by_type = dict(parts)
    if not by_type:
        raise QuotaError("Name a user, a client id or an address that the quotas are for.")
    for kind, name in by_type.items():
        if kind not in ENTITY_TYPES:
            raise QuotaError(f"Unknown entity type {kind!r}; use user, client-id or ip.")
        if name == "":
            raise QuotaError(f"The name of the {kind} is empty; null stands for the default.")
    if IP in by_type and len(by_type) > 1:
        raise QuotaError("An address cannot be combined with a user or client id.")
    address = by_type.get(IP)
    if address is not None:
        import ipaddress  # Few brokers have such quotas.

        try:
            by_type[IP] = str(ipaddress.ip_address(address))
        except ValueError:
            raise QuotaError(f"{address!r} is not an IP address.") from None
    return tuple(sorted(by_type.items()))


def check_quota(entity: Entity, key: str, value: float) -> float:
    """Return the checked value of a quota.

    Raises:
        QuotaError: The entity has no such quota, or the value is out of range.
    """
    keys = KEYS_OF_ADDRESSES if entity[0][0] == IP else KEYS_OF_CLIENTS
    if key not in keys:
        raise QuotaError(f"Unknown quota {key!r} for this entity; use {', '.join(sorted(keys))}.")
    if not math.isfinite(value) or value <= 0:
        raise QuotaError(f"Quota {key} must be a number above 0, not {value}.")
    most = WHOLE_NUMBERS.get(key)
    if most is not None and value != int(value):
        raise QuotaError(f"Quota {key} must be a whole number, not {value}.")
    if most is not None and value > most:
        raise QuotaError(f"Quota {key} must be at most {most}.")
    return float(value)


class ClientQuotas:
    """All quotas, stored in the cluster metadata.

    Args:
        metadata: Stores them.

    Attributes:
        on_change: Called after a change.

    Raises:
        DataFolderError: A quota in the cluster metadata is malformed.
    """

    __slots__ = ("_by_entity", "_lookups", "_metadata", "_set_keys", "on_change")

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        self._by_entity = _kept(metadata)
        self._lookups: dict[tuple[str, str, str], Limit | None] = {}
        self.on_change: list[Callable[[], None]] = []
        self._set_keys = _set_keys(self._by_entity)

    def is_set(self, key: str) -> bool:
        """Whether any entity has that quota."""
        return key in self._set_keys

    def alter(self, entity: Entity, changes: Mapping[str, float | None]) -> None:
        """Set checked quotas of an entity; None removes one.

        Raises:
            OSError: They cannot be stored; nothing changes.
        """
        values = dict(self._by_entity.get(entity, {}))
        for key, value in changes.items():
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        changed = {kept: found for kept, found in self._by_entity.items() if kept != entity}
        if values:
            changed[entity] = values
        if changed == self._by_entity:
            return
        entries: list[Json] = [
            {"entity": dict(kept), "values": dict(found)} for kept, found in changed.items()
        ]
        self._metadata.save(SECTION, {"entries": entries} if entries else {})
        self._by_entity = changed
        self._lookups.clear()
        self._set_keys = _set_keys(changed)
        for callback in self.on_change:
            callback()

    def matching(
        self, filters: Iterable[QuotaFilter], strict: bool
    ) -> list[tuple[Entity, dict[str, float]]]:
        """Return the entities that all filters match, with their quotas.

        Args:
            filters: Filters of their parts; no filters match all.
            strict: Leave out entities with parts that no filter names.

        Raises:
            QuotaError: A filter is malformed.
        """
        by_type = _checked_filters(filters)
        return [
            (entity, dict(values))
            for entity, values in self._by_entity.items()
            if _matches(dict(entity), by_type, strict)
        ]

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """Return the quota in force for a client, or None.

        The most specific entity with the quota wins, in Kafka's order: the user with this client
        id, with the default client id, or alone; then the same for the default user; then the
        client id alone.
        """
        if key not in self._set_keys:
            return None
        asked = (key, user, client_id)
        if asked in self._lookups:
            return self._lookups[asked]
        if len(self._lookups) >= KNOWN_LIMITS_MAX:
            self._lookups.clear()
        found = self._look_up(key, user, client_id)
        self._lookups[asked] = found
        return found

    def _look_up(self, key: str, user: str, client_id: str) -> Limit | None:
        both, alone, client = (user, client_id), (user, ""), ("", client_id)
        order: tuple[tuple[Entity, tuple[str, str]], ...] = (
            (((CLIENT_ID, client_id), (USER, user)), both),
            (((CLIENT_ID, None), (USER, user)), both),
            (((USER, user),), alone),
            (((CLIENT_ID, client_id), (USER, None)), both),
            (((CLIENT_ID, None), (USER, None)), both),
            (((USER, None),), alone),
            (((CLIENT_ID, client_id),), client),
            (((CLIENT_ID, None),), client),
        )
        for entity, shared_by in order:
            value = self._by_entity.get(entity, {}).get(key)
            if value is not None:
                return Limit(value, shared_by)
        return None

    def connection_rate(self, address: str) -> float | None:
        """Return how many connections a second an address may open, None for any number."""
        for name in (address, None):
            value = self._by_entity.get(((IP, name),), {}).get(CONNECTION_CREATION_RATE)
            if value is not None:
                return value
        return None


def _matches(
    parts: Mapping[str, str | None], by_type: Mapping[str, QuotaFilter], strict: bool
) -> bool:
    if strict and set(parts) != set(by_type):
        return False
    for kind, wanted in by_type.items():
        if kind not in parts:
            return False
        if wanted.match != QuotaMatch.SPECIFIED and parts[kind] != wanted.name:
            return False
    return True


def _checked_filters(filters: Iterable[QuotaFilter]) -> dict[str, QuotaFilter]:
    by_type: dict[str, QuotaFilter] = {}
    for wanted in filters:
        kind = wanted.entity_type
        if not kind:
            raise QuotaError("A filter has an empty entity type; use user, client-id or ip.")
        if kind in by_type:
            raise QuotaError(f"The filter has {kind} more than once.")
        if wanted.match not in tuple(QuotaMatch):
            raise QuotaError(
                f"Unknown match type {wanted.match}; use 0 (exact), 1 (default) or 2 (any)."
            )
        if (wanted.match == QuotaMatch.EXACT) != (wanted.name is not None):
            raise QuotaError("Match type 0 (exact) needs a name; types 1 and 2 take none.")
        if kind not in ENTITY_TYPES:
            raise QuotaError(
                f"Unknown entity type {kind!r}; use user, client-id or ip.",
                ErrorCode.UNSUPPORTED_VERSION,
            )
        by_type[kind] = wanted
    if IP in by_type and len(by_type) > 1:
        raise QuotaError("An address cannot be combined with a user or client id.")
    return by_type


def _set_keys(by_entity: Mapping[Entity, Mapping[str, float]]) -> frozenset[str]:
    return frozenset(key for values in by_entity.values() for key in values)


def _kept(metadata: ClusterMetadata) -> dict[Entity, dict[str, float]]:
    found: dict[Entity, dict[str, float]] = {}
    kept = metadata.section(SECTION).get("entries", [])
    try:
        for entry in cast("list[dict[str, dict[str, Json]]]", kept):
            entity = make_entity(cast("dict[str, str | None]", entry["entity"]).items())
            values = cast("dict[str, float]", entry["values"])
            found[entity] = {key: check_quota(entity, key, values[key]) for key in values}
    except (QuotaError, TypeError, KeyError, AttributeError) as error:
        raise DataFolderError(f"a quota in the cluster metadata cannot be used: {error}") from None
    return found
