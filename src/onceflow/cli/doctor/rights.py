"""Checks of what the user of these settings may do (KIP-430)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onceflow.cli.doctor.facts import Facts
from onceflow.cli.doctor.findings import Check, Fault
from onceflow.processors.kafka_services import KafkaTopicAdmin
from onceflow.processors.rights import GROUP, READ, TOPIC, Need, lacking, needs
from onceflow.transactions.colour import run_blocking


def few_rights(facts: Facts) -> Iterator[Fault]:
    """Topics, groups and transactional ids that the application needs and may not use."""
    for need in run_blocking(
        lacking(list(dict.fromkeys(_wanted(facts))), KafkaTopicAdmin(facts.admin))
    ):
        words = " or ".join(operation.name.lower() for operation in need.operations)
        yield Fault(need.place, f"this user may not {words} it", need.remedy)


def _wanted(facts: Facts) -> Iterator[Need]:
    app = facts.app
    if app is not None:
        yield from needs(app.topology(), app.settings, app.settings.slot or "0")
    elif facts.wish.topics or facts.wish.groups:
        for topic in facts.topic_names:
            yield Need(TOPIC, topic, (READ,), "input")
    for group in facts.wish.groups:
        yield Need(GROUP, group, (READ,), "consumer group")


CHECKS: Final = (
    Check(
        "rights",
        "the application is refused when it starts, or at the first record for that topic",
        few_rights,
    ),
)
