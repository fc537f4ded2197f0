"""Checks of what the user of these settings may do (KIP-430)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onceflow.cli.doctor.facts import Facts
from onceflow.cli.doctor.findings import Check, Fault
from onceflow.cli.failures import NOT_AUTHORIZED
from onceflow.sdk.errors import TransactionalIdNotFoundError, UnknownTopicOrPartitionError
from onceflow.sdk.model.acl_enums import AclOperation

READ: Final = AclOperation.READ
WRITE: Final = AclOperation.WRITE


def few_rights(facts: Facts) -> Iterator[Fault]:
    """Topics, groups and transactional ids that the application needs and may not use."""
    for topic, wanted in _topics(facts).items():
        yield from _topic(facts, topic, wanted)
    for group in facts.group_names if facts.app is not None or facts.wish.groups else ():
        yield from _group(facts, group)
    if facts.app is not None:
        session = facts.app.settings.session_config(
            facts.app.name, ["check"], facts.app.settings.slot or "0"
        )
        name = session.own_transactional_id
        try:
            facts.admin.describe_transactions([name])
        except TransactionalIdNotFoundError:
            pass  # It has not run yet.
        except NOT_AUTHORIZED:
            prefix = f"{facts.app.settings.group_of(facts.app.name)}-"
            yield Fault(
                f"transactional id {name}",
                "this user may not use it",
                f"onceflow acls add User:NAME write --resource transactional-id --name {prefix} "
                "--prefixed",
            )


def _topics(facts: Facts) -> dict[str, set[AclOperation]]:
    """What must be allowed, by topic."""
    wanted: dict[str, set[AclOperation]] = {}
    if facts.app is None:
        names = facts.topic_names if facts.wish.topics or facts.wish.groups else ()
        return {name: {READ} for name in names}
    topology = facts.app.topology()
    changelogs = [state.changelog for state in topology.states]
    tables = [table.topic for table in topology.global_tables]
    for name in (*topology.input_topics, *tables, *changelogs):
        wanted.setdefault(name, set()).add(READ)
    for name in (*topology.output_topics, *changelogs):
        wanted.setdefault(name, set()).add(WRITE)
    return wanted


def _topic(facts: Facts, topic: str, wanted: set[AclOperation]) -> Iterator[Fault]:
    allowed: frozenset[AclOperation] | None = frozenset()
    if topic in facts.existing:
        found = facts.admin.describe_topics([topic], include_authorized_operations=True)
        allowed = found[topic].authorized_operations
    else:
        try:
            facts.admin.describe_topics([topic])
        except NOT_AUTHORIZED:
            pass
        except UnknownTopicOrPartitionError:
            return  # It is not there at all, which is another check's subject.
    if allowed is None:
        return
    missing = sorted(wanted - allowed)
    if missing:
        words = " ".join(each.name.lower() for each in missing)
        yield Fault(
            f"topic {topic}",
            f"this user may not {words.replace(' ', ' or ')} it",
            f"onceflow acls add User:NAME {words} --resource topic --name {topic}",
        )


def _group(facts: Facts, group: str) -> Iterator[Fault]:
    try:
        found = facts.admin.describe_groups([group], include_authorized_operations=True)[group]
        allowed = found.authorized_operations
    except NOT_AUTHORIZED:
        allowed = frozenset()
    if allowed is not None and READ not in allowed:
        yield Fault(
            f"group {group}",
            "this user may not be a member of it (READ)",
            f"onceflow acls add User:NAME read --resource group --name {group}",
        )


CHECKS: Final = (
    Check(
        "rights",
        "the application is refused when it starts, or at the first record for that topic",
        few_rights,
    ),
)
