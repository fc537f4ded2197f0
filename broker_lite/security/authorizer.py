"""Decides by ACLs what clients may do, as Kafka's ``StandardAuthorizer``.

It also decides which ACLs may be added. A denial wins over every grant. Without an ACL nothing is
allowed, unless ``allow.everyone.if.no.acl.found`` is set and no ACL names the resource. The guards
know which operations a request needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from onceflow.broker_lite.security.acl_model import CLUSTER_NAME, WILDCARD, Acl, AclFilter
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.acl_enums import (
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)

if TYPE_CHECKING:
    from onceflow.broker_lite.cluster_metadata import ClusterMetadata, Json
    from onceflow.broker_lite.settings.broker_config import BrokerConfig

SECTION = "acls"
ACLS_MAX = 25_000
"""Most ACLs; each change writes all of them."""


class AclRefused(Exception):
    """An ACL cannot be added; the text is for the client."""


class Authorizer:
    """The ACLs of a broker.

    Args:
        config: ``super.users`` and ``allow.everyone.if.no.acl.found``.
        metadata: Stores the ACLs.

    Attributes:
        changes: How often the ACLs changed.

    Raises:
        ConfigError: ``super.users`` is malformed.
    """

    __slots__ = (
        "_allow_if_none",
        "_by_name",
        "_count",
        "_lengths",
        "_metadata",
        "_super_users",
        "changes",
    )

    def __init__(self, config: BrokerConfig, metadata: ClusterMetadata) -> None:
        self.changes: int = 0
        self._metadata = metadata
        self._super_users = _parse_super_users(config.super_users)
        self._allow_if_none = config.allow_everyone_if_no_acl_found
        self._by_name: dict[tuple[int, int, str], list[Acl]] = {}
        self._lengths: dict[int, set[int]] = {}
        self._count = 0
        self._replace(_read(metadata.section(SECTION)))

    def acls(self) -> Iterator[Acl]:
        """Every ACL."""
        for found in self._by_name.values():
            yield from found

    def allows(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> bool:
        """Whether a client may do something.

        Args:
            principal: The client's principal.
            host: The client's address.
            operation: The operation.
            resource_type: Type of the resource.
            name: Its name.
        """
        if principal in self._super_users:
            return True
        principals = (principal, _everybody(principal))
        allowed = found_any = False
        for acl in self._about(resource_type, name):
            found_any = True
            if acl.concerns(principals, host, operation):
                if acl.permission == AclPermission.DENY:
                    return False
                allowed = True
        return allowed or (self._allow_if_none and not found_any)

    def _about(self, resource_type: int, name: str) -> Iterator[Acl]:
        """Yield the ACLs that apply to a resource."""
        by_name = self._by_name
        for exact in {name, WILDCARD}:
            yield from by_name.get((AclPatternType.LITERAL, resource_type, exact), ())
        for length in self._lengths.get(resource_type, ()):
            if length <= len(name):
                yield from by_name.get((AclPatternType.PREFIXED, resource_type, name[:length]), ())

    def allows_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Whether an operation may be allowed on some resource of a type."""
        if self.allows(principal, host, operation, resource_type, "hardcode"):
            return True
        principals = (principal, _everybody(principal))
        granted: list[Acl] = []
        denied: list[Acl] = []
        for acl in self.acls():
            if (
                acl.resource_type == resource_type
                and acl.principal in principals
                and acl.host in (WILDCARD, host)
                and acl.operation in (AclOperation.ALL, operation)
            ):
                (granted if acl.permission == AclPermission.ALLOW else denied).append(acl)
        whole = {acl.name for acl in denied if acl.pattern_type == AclPatternType.LITERAL}
        starts = tuple(acl.name for acl in denied if acl.pattern_type == AclPatternType.PREFIXED)
        if WILDCARD in whole:
            return False
        for acl in granted:
            literal = acl.pattern_type == AclPatternType.LITERAL
            if literal and acl.name == WILDCARD:
                return True
            if not (literal and acl.name in whole) and not acl.name.startswith(starts or ("\0",)):
                return True
        return False

    def add(self, acls: Iterable[Acl]) -> None:
        """Add ACLs that passed `check`; existing ones stay.

        Raises:
            OSError: Nothing was changed, as it could not be written.
        """
        self._save(dict.fromkeys([*self.acls(), *acls]))

    def check(self, acl: Acl, room: int) -> None:
        """Check whether an ACL may be added.

        Args:
            acl: The ACL.
            room: How many others the same request adds.

        Raises:
            AclRefused: It may not.
        """
        if acl.resource_type <= AclResourceType.ANY or acl.resource_type > 7:
            raise AclRefused("Invalid resourceType: it must name one kind of resource.")
        if acl.pattern_type not in (AclPatternType.LITERAL, AclPatternType.PREFIXED):
            raise AclRefused("Invalid patternType: it must be LITERAL or PREFIXED.")
        if acl.operation <= AclOperation.ANY or acl.operation > max(AclOperation):
            raise AclRefused("Invalid operation: it must name one, or ALL.")
        if acl.permission not in (AclPermission.DENY, AclPermission.ALLOW):
            raise AclRefused("Invalid permissionType: it must be ALLOW or DENY.")
        if not acl.name:
            raise AclRefused("Invalid empty resource name.")
        if acl.resource_type == AclResourceType.CLUSTER and acl.name != CLUSTER_NAME:
            raise AclRefused(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}.")
        if ":" not in acl.principal:
            raise AclRefused(
                f"Could not parse principal from `{acl.principal}`: give TYPE:NAME, as User:alice."
            )
        if not acl.host:
            raise AclRefused("Host pattern cannot be null or empty.")
        if self._count + room >= ACLS_MAX:
            raise AclRefused(f"There are {ACLS_MAX} ACLs, which is the most.")

    def remove(self, filters: Iterable[AclFilter]) -> list[list[Acl]]:
        """Remove the ACLs that match filters, and return those of each filter.

        Raises:
            OSError: Nothing was changed, as it could not be written.
        """
        kept = dict.fromkeys(self.acls())
        found = [[acl for acl in kept if each.matches(acl)] for each in filters]
        gone = {acl for matched in found for acl in matched}
        if gone:
            self._save({acl: None for acl in kept if acl not in gone})
        return found

    def _save(self, acls: dict[Acl, None]) -> None:
        rows: list[Json] = [list(acl) for acl in acls]
        self._metadata.save(SECTION, {"acls": rows} if rows else {})
        self._replace(acls)

    def _replace(self, acls: Iterable[Acl]) -> None:
        self.changes += 1
        self._by_name = {}
        self._lengths = {}
        self._count = 0
        for acl in acls:
            key = (acl.pattern_type, acl.resource_type, acl.name)
            self._by_name.setdefault(key, []).append(acl)
            self._count += 1
            if acl.pattern_type == AclPatternType.PREFIXED:
                self._lengths.setdefault(acl.resource_type, set()).add(len(acl.name))


def _everybody(principal: str) -> str:
    return principal.partition(":")[0] + ":" + WILDCARD


def _parse_super_users(text: str) -> frozenset[str]:
    users = frozenset(filter(None, (part.strip() for part in text.split(";"))))
    for user in users:
        kind, colon, name = user.partition(":")
        if not (kind and colon and name):
            raise ConfigError("super.users", user, "give User:NAME, separated by semicolons")
    return users


def _read(section: dict[str, Json]) -> list[Acl]:
    rows = section.get("acls", [])
    assert isinstance(rows, list)
    acls = []
    for row in rows:
        assert isinstance(row, list)
        resource_type, name, pattern_type, principal, host, operation, permission = row
        acls.append(
            Acl(
                int(str(resource_type)),
                str(name),
                int(str(pattern_type)),
                str(principal),
                str(host),
                int(str(operation)),
                int(str(permission)),
            )
        )
    return acls
