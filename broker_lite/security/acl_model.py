"""ACLs and filters as values, with the numbers of the protocol (KIP-140)."""

from __future__ import annotations

from typing import NamedTuple

from onceflow.sdk.model.acl_enums import (
    AclOperation,
    AclPatternType,
    AclPermission,
    AclResourceType,
)

WILDCARD = "*"
CLUSTER_NAME = "kafka-cluster"


IMPLIED = {
    AclOperation.DESCRIBE: frozenset(
        (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER)
    ),
    AclOperation.DESCRIBE_CONFIGS: frozenset((AclOperation.ALTER_CONFIGS,)),
}
"""Operations that also allow an operation; denials imply nothing."""

OPERATIONS = {
    AclResourceType.TOPIC: (
        AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE, AclOperation.DELETE,
        AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS,
        AclOperation.ALTER_CONFIGS,
    ),
    AclResourceType.GROUP: (
        AclOperation.READ, AclOperation.DELETE, AclOperation.DESCRIBE,
        AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS,
    ),
    AclResourceType.CLUSTER: (
        AclOperation.CREATE, AclOperation.ALTER, AclOperation.DESCRIBE, AclOperation.CLUSTER_ACTION,
        AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS, AclOperation.IDEMPOTENT_WRITE,
    ),
    AclResourceType.TRANSACTIONAL_ID: (
        AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.TWO_PHASE_COMMIT,
    ),
}  # fmt: skip
"""Operations of each type of resource; the bits of ``*_authorized_operations``."""


class Acl(NamedTuple):
    """One rule.

    Attributes:
        resource_type: Type of the resource.
        name: Name, beginning of names, or ``*``.
        pattern_type: LITERAL or PREFIXED.
        principal: Principal, ``User:*`` for all.
        host: Address of the client, ``*`` for any.
        operation: Operation that it allows or denies.
        permission: ALLOW or DENY.
    """

    resource_type: int
    name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    def concerns(self, principals: tuple[str, str], host: str, operation: int) -> bool:
        """Whether it applies to a client's operation."""
        if self.principal not in principals or self.host not in (WILDCARD, host):
            return False
        if self.operation in (AclOperation.ALL, operation):
            return True
        implied = IMPLIED.get(AclOperation(operation), frozenset())
        return self.permission == AclPermission.ALLOW and self.operation in implied


class AclFilter(NamedTuple):
    """A filter with the fields of `Acl`; None and ANY match everything."""

    resource_type: int
    name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, acl: Acl) -> bool:
        """Whether an ACL matches the filter."""
        return (
            self.resource_type in (AclResourceType.ANY, acl.resource_type)
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (AclPermission.ANY, acl.permission)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        name = self.name
        if self.pattern_type not in (AclPatternType.ANY, AclPatternType.MATCH, acl.pattern_type):
            return False
        if name is None:
            return True
        if self.pattern_type != AclPatternType.MATCH:
            return name == acl.name
        if acl.pattern_type == AclPatternType.PREFIXED:
            return name.startswith(acl.name)
        return acl.name in (name, WILDCARD)

    @property
    def is_known(self) -> bool:
        """Whether every number in it is defined."""
        return (
            self.resource_type in _KNOWN_RESOURCES
            and self.pattern_type in _KNOWN_PATTERNS
            and self.operation in _KNOWN_OPERATIONS
            and self.permission in _KNOWN_PERMISSIONS
        )


_KNOWN_RESOURCES = frozenset(each for each in AclResourceType if each)
_KNOWN_PATTERNS = frozenset(each for each in AclPatternType if each)
_KNOWN_OPERATIONS = frozenset(each for each in AclOperation if each)
_KNOWN_PERMISSIONS = frozenset(each for each in AclPermission if each)
