"""ACLs as values: what one says, and what a filter finds; numbered as on the wire (KIP-140)."""

from __future__ import annotations

import enum
from typing import NamedTuple

WILDCARD = "*"
CLUSTER_NAME = "kafka-cluster"


class ResourceType(enum.IntEnum):
    """What an ACL is about."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    """How the name of an ACL's resource is meant."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(enum.IntEnum):
    """What somebody wants to do."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(enum.IntEnum):
    """What an ACL says about it."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


IMPLIED = {
    Operation.DESCRIBE: frozenset(
        (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER)
    ),
    Operation.DESCRIBE_CONFIGS: frozenset((Operation.ALTER_CONFIGS,)),
}
"""What an operation is allowed by besides itself; denials imply nothing."""

OPERATIONS = {
    ResourceType.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER,
        Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (
        Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT,
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
        if self.operation in (Operation.ALL, operation):
            return True
        implied = IMPLIED.get(Operation(operation), frozenset())
        return self.permission == Permission.ALLOW and self.operation in implied


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
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        name = self.name
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return name == acl.name
        if acl.pattern_type == PatternType.PREFIXED:
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


_KNOWN_RESOURCES = frozenset(each for each in ResourceType if each)
_KNOWN_PATTERNS = frozenset(each for each in PatternType if each)
_KNOWN_OPERATIONS = frozenset(each for each in Operation if each)
_KNOWN_PERMISSIONS = frozenset(each for each in Permission if each)
