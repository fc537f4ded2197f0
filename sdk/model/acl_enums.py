"""What ACLs are about, numbered as on the wire (KIP-140): for the clients and for the broker."""

from __future__ import annotations

import enum


class AclResourceType(enum.IntEnum):
    """What an ACL is about; ANY is for filters."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPatternType(enum.IntEnum):
    """How a resource's name is compared; ANY and MATCH are for filters."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclOperation(enum.IntEnum):
    """What may be done or not; ANY is for filters."""

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


class AclPermission(enum.IntEnum):
    """Whether it may be done; ANY is for filters."""

    ANY = 1
    DENY = 2
    ALLOW = 3
