"""The rights that an application needs, and which of them its user lacks.

An authorizer refuses the same request until an ACL is added, so a worker without a right
ends at the first refusal. Its error lists every right that the user lacks, each with the command
that adds it. The brokers tell what is allowed (KIP-430); `doctor` asks the same. If they allow
everything, the refusal was a passing one: an ACL reaches each broker of a cluster at another time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from onceflow.processors.errors import RightsMissingError
from onceflow.processors.graph.topology import Topology
from onceflow.sdk.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from onceflow.sdk.model.acl_enums import AclOperation, AclResourceType
from onceflow.transactions.colour import Maybe, settle

if TYPE_CHECKING:
    from onceflow.processors.identity import Slot
    from onceflow.processors.settings import AppSettings

logger: logging.Logger = logging.getLogger("onceflow.processors")

NOT_AUTHORIZED: Final = (
    TopicAuthorizationFailedError,
    GroupAuthorizationFailedError,
    ClusterAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
"""An authorizer refused the request; repeating it does not help."""

READ: Final = AclOperation.READ
WRITE: Final = AclOperation.WRITE
DELETE: Final = AclOperation.DELETE
TOPIC: Final = AclResourceType.TOPIC
GROUP: Final = AclResourceType.GROUP
TRANSACTIONAL_ID: Final = AclResourceType.TRANSACTIONAL_ID

_REFUSED_KINDS: Final[Mapping[type[KafkaError], AclResourceType]] = {
    GroupAuthorizationFailedError: GROUP,
    TransactionalIdAuthorizationFailedError: TRANSACTIONAL_ID,
}
"""Resources of which an application uses only one, so that the error tells which."""


class Need(NamedTuple):
    """What the application does with one resource.

    Attributes:
        kind: Type of the resource.
        name: Its name.
        operations: What must be allowed.
        use: What it is for the application.
        prefix: Beginning of the names to allow, where it is better to allow all of them; or empty.
    """

    kind: AclResourceType
    name: str
    operations: tuple[AclOperation, ...]
    use: str
    prefix: str = ""

    @property
    def place(self) -> str:
        """The resource in words."""
        return f"{self.kind.name.lower().replace('_', ' ')} {self.name}"

    @property
    def remedy(self) -> str:
        """The command that adds the ACL."""
        words = " ".join(operation.name.lower() for operation in self.operations)
        kind = self.kind.name.lower().replace("_", "-")
        named = f"{self.prefix} --prefixed" if self.prefix else self.name
        return f"onceflow acls add User:NAME {words} --resource {kind} --name {named}"


class RightsAdmin(Protocol):
    """The admin call that this module needs; it returns a result or an awaitable."""

    def allowed(self, kind: AclResourceType, name: str) -> Maybe[frozenset[AclOperation] | None]:
        """Return what this user may do with a resource; None if the brokers cannot tell."""


def needs(topology: Topology, settings: AppSettings, slot: str) -> list[Need]:
    """Return what a running application must be allowed.

    Args:
        topology: The application.
        settings: Its settings.
        slot: Name of the worker.
    """
    found: dict[str, tuple[set[AclOperation], str]] = {}

    def add(topics: Sequence[str], use: str, *operations: AclOperation) -> None:
        for topic in topics:
            found.setdefault(topic, (set(), use))[0].update(operations)

    own = topology.repartition_topics
    add(own, "repartition topic", READ, WRITE, DELETE)
    add([state.changelog for state in topology.states], "changelog", READ, WRITE)
    add(topology.input_topics, "input", READ)
    add([table.topic for table in topology.global_tables], "global table", READ)
    add(topology.output_topics, "output", WRITE)
    every = [Need(TOPIC, name, tuple(sorted(ops)), use) for name, (ops, use) in found.items()]
    every.append(Need(GROUP, settings.group_of(topology.app), (READ,), "consumer group"))
    if topology.sink is None and not settings.repeats:
        config = settings.session_config(topology.app, ["check"], slot)
        name = config.own_transactional_id
        prefix = f"{settings.group_of(topology.app)}-"
        every.append(Need(TRANSACTIONAL_ID, name, (WRITE,), "transactions", prefix))
    return every


async def lacking(
    wanted: Sequence[Need], admin: RightsAdmin, refused: AclResourceType | None = None
) -> list[Need]:
    """Return what of these needs the brokers do not allow.

    Args:
        wanted: What to look for.
        admin: Asks the brokers.
        refused: Type of resource that counts as not allowed where the brokers cannot tell.

    Raises:
        KafkaError: The brokers do not answer.
    """
    found = []
    for need in wanted:
        allowed = await settle(admin.allowed(need.kind, need.name))
        if allowed is None:
            allowed = frozenset(() if need.kind is refused else need.operations)
        missing = tuple(each for each in need.operations if each not in allowed)
        if missing:
            found.append(need._replace(operations=missing))
    return found


async def explain(
    error: KafkaError,
    topology: Topology,
    settings: AppSettings,
    slot: Slot | None,
    admin: RightsAdmin,
) -> None:
    """Raise the error that ends the worker after a refusal, unless all is allowed now.

    Args:
        error: The refusal.
        topology: The application.
        settings: Its settings.
        slot: The worker's slot, if it has claimed one.
        admin: Asks the brokers what is allowed.

    Raises:
        RightsMissingError: The user lacks rights.
    """
    refused = _REFUSED_KINDS.get(type(error))
    wanted = needs(topology, settings, "0" if slot is None else slot.name)
    try:
        missing = await lacking(wanted, admin, refused)
    except KafkaError as unanswered:
        logger.warning("cannot check the rights: %s", unanswered)
        return
    if any(need.operations != (DELETE,) for need in missing):  # Without DELETE a worker goes on.
        raise missing_error(missing) from error


def missing_error(missing: Sequence[Need]) -> RightsMissingError:
    """Return an error with one remedy for each right.

    Args:
        missing: The rights.
    """
    told = "; ".join(
        f"{' and '.join(each.name for each in need.operations)} on {need.place} ({need.use}): "
        f"{need.remedy}"
        for need in missing
    )
    return RightsMissingError(f"this user lacks rights that the application needs: {told}")
