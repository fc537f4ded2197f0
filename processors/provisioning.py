"""Creates the topics that an application needs, and refuses those that do not fit.

Outputs and dead letters take the input's partition count when they are missing. A changelog must
have exactly the input's partition count and be compacted: its count is the record of the count
that the state was made for, so a changed input is noticed here. Nothing is ever altered.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from onceflow.processors.errors import TopicSetupError
from onceflow.processors.settings import AppSettings
from onceflow.processors.stores.base import StoreIdentity
from onceflow.processors.topology import ProcessorSpec, Topology
from onceflow.sdk.model.partitions import NewTopic

logger: logging.Logger = logging.getLogger("onceflow.processors.topics")


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What the brokers say about a topic."""

    partitions: int
    topic_id: str = ""
    replication_factor: int = 1


class TopicAdmin(Protocol):
    """The administration that is needed here."""

    def describe(self, topics: Sequence[str]) -> dict[str, TopicFacts]:
        """Facts of those topics that exist."""

    def create(self, topics: Sequence[NewTopic]) -> None:
        """Create topics; one that exists already is fine (another worker was faster)."""

    def cleanup_policy(self, topic: str) -> str:
        """The topic's ``cleanup.policy``."""

    def close(self) -> None:
        """Release connections."""


def provision(
    topology: Topology, settings: AppSettings, admin: TopicAdmin
) -> Mapping[str, StoreIdentity]:
    """Make sure that all topics are there.

    Args:
        topology: The application.
        settings: Partition counts and replication of what is created.
        admin: Access to the brokers.

    Returns:
        What each processor's stores must belong to, by processor.

    Raises:
        TopicSetupError: An input is missing, or a changelog does not fit.
    """
    facts = _make_inputs(topology, settings, admin)
    wanted: dict[str, NewTopic] = {}
    for spec in topology.processors:
        partitions = facts[spec.input_topic].partitions
        for topic in (spec.output_topic, spec.dead_letter_topic):
            if topic is not None:
                wanted.setdefault(topic, _new_topic(topic, partitions, settings))
        for state in spec.states:
            wanted[state.changelog] = _new_topic(
                state.changelog, partitions, settings, {"cleanup.policy": "compact"}
            )
    facts |= admin.describe(list(wanted))
    missing = [topic for name, topic in wanted.items() if name not in facts]
    if missing:
        logger.info("creating topics %s", ", ".join(topic.name for topic in missing))
        admin.create(missing)
        facts |= admin.describe(list(wanted))
    for spec in topology.processors:
        _check_changelogs(spec, facts, admin)
    return {
        spec.name: StoreIdentity(
            {state.name: facts[state.changelog].topic_id for state in spec.states},
            facts[spec.input_topic].partitions,
        )
        for spec in topology.processors
    }


def _new_topic(
    name: str, partitions: int, settings: AppSettings, configs: Mapping[str, str] | None = None
) -> NewTopic:
    return NewTopic(name, partitions, settings.replication_factor, configs)


def _make_inputs(
    topology: Topology, settings: AppSettings, admin: TopicAdmin
) -> dict[str, TopicFacts]:
    """Inputs exist, or are outputs of the same application, or may be created."""
    facts = admin.describe(topology.input_topics)
    made_here = set(topology.output_topics)
    missing = [topic for topic in topology.input_topics if topic not in facts]
    unknown = [topic for topic in missing if topic not in made_here]
    if unknown and not settings.create_inputs:
        raise TopicSetupError(
            f"input topics do not exist: {', '.join(unknown)}; create them, correct the names, "
            "or set create_inputs=True"
        )
    sources = {spec.output_topic: spec.input_topic for spec in topology.processors}
    while missing:
        created = []
        for topic in missing:
            source = sources.get(topic) if topic not in unknown else None
            if source in missing:
                continue
            partitions = facts[source].partitions if source in facts else settings.partitions
            created.append(_new_topic(topic, partitions, settings))
        if not created:  # A ring of processors, none of whose topics exists.
            created = [_new_topic(topic, settings.partitions, settings) for topic in missing]
        admin.create(created)
        facts |= admin.describe([topic.name for topic in created])
        missing = [topic for topic in missing if topic not in facts]
    return facts


def _check_changelogs(
    spec: ProcessorSpec, facts: Mapping[str, TopicFacts], admin: TopicAdmin
) -> None:
    partitions = facts[spec.input_topic].partitions
    for state in spec.states:
        found = facts.get(state.changelog)
        if found is None:
            raise TopicSetupError(f"changelog {state.changelog} could not be created")
        if found.partitions != partitions:
            raise TopicSetupError(
                f"changelog {state.changelog} has {found.partitions} partitions but input "
                f"{spec.input_topic} has {partitions}: keys would meet the state of others. "
                "Restore the partition count, or give the application a new name"
            )
        policy = admin.cleanup_policy(state.changelog)
        if "compact" not in policy:
            raise TopicSetupError(
                f"changelog {state.changelog} has cleanup.policy={policy}: state would expire; "
                "set it to compact"
            )
