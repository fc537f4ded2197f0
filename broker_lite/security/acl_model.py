"""ACLs as values: what one says, and what a filter finds; numbered as on the wire (KIP-140)."""

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
"""What an operation is allowed by besides itself; denials imply nothing."""

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
"""What can be done with each kind of resource; the bits of ``*_authorized_operations``."""


class Acl(NamedTuple):
    """One rule.

    Attributes:
        resource_type: What it is about.
        name: Name, beginning of names, or ``*``.
        pattern_type: LITERAL or PREFIXED.
        principal: Whom it concerns, ``User:*`` for everybody.
        host: Address of the client, ``*`` for any.
        operation: What it is about.
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
        """Whether it says something about a client that wants to do something."""
        if self.principal not in principals or self.host not in (WILDCARD, host):
            return False
        if self.operation in (AclOperation.ALL, operation):
            return True
        implied = IMPLIED.get(AclOperation(operation), frozenset())
        return self.permission == AclPermission.ALLOW and self.operation in implied


class AclFilter(NamedTuple):
    """What to look for; None and ANY mean everything. Fields as those of `Acl`."""

    resource_type: int
    name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, acl: Acl) -> bool:
        """Whether an ACL is among those looked for."""
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
        """Whether every number in it means something."""
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
