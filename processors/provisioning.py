"""Creates the topics that an application needs, and refuses those that do not fit.

Missing topics for outputs and dead letters get the input's partition count. A changelog must have
exactly the input's partition count, as that count decides which keys meet which state, and the
right cleanup policy. All inputs of one task must have the same count. No existing topic is ever
altered. A running worker checks its topics again now and then: if one was deleted, made again
or has grown, it ends with an error and a remedy instead of waiting for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from onceflow.processors.errors import TopicSetupError
from onceflow.processors.graph.specs import StateSpec
from onceflow.processors.graph.topology import SubTopology, Topology
from onceflow.processors.settings import AppSettings
from onceflow.sdk.errors import ClusterAuthorizationFailedError, TopicAuthorizationFailedError
from onceflow.sdk.model.acl_enums import AclOperation, AclResourceType
from onceflow.sdk.model.partitions import NewTopic, TopicPartition
from onceflow.transactions.colour import Maybe, settle

logger: logging.Logger = logging.getLogger("onceflow.processors.topics")

DELETE_RETENTION_MS: Final = 24 * 3600 * 1000
"""Kafka's default ``delete.retention.ms``."""

DURABLE_REPLICAS: Final = 3

REPARTITION_CONFIGS: Final[Mapping[str, str]] = {"cleanup.policy": "delete", "retention.ms": "-1"}
"""A repartition topic keeps records until they are processed; then the worker purges them."""


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """The brokers' description of a topic."""

    partitions: int
    topic_id: str = ""
    replication_factor: int = 1


class TopicAdmin(Protocol):
    """The admin calls that this module needs; they return a result or an awaitable."""

    def describe(self, topics: Sequence[str]) -> Maybe[Mapping[str, TopicFacts]]:
        """Describe those of the topics that exist; raise if one may not be described."""

    def create(self, topics: Sequence[NewTopic]) -> Maybe[None]:
        """Create topics; pass over one that another worker has created meanwhile."""

    def configs(self, topics: Sequence[str]) -> Maybe[Mapping[str, Mapping[str, str]]]:
        """Return the settings of topics by Kafka's property names."""

    def purge(self, before: Mapping[TopicPartition, int]) -> Maybe[None]:
        """Delete the records before these offsets."""

    def bounds(
        self, partitions: Sequence[TopicPartition]
    ) -> Maybe[Mapping[TopicPartition, tuple[int, int]]]:
        """Return log start offset and last stable offset of each partition."""

    def committed(self, group: str) -> Maybe[Mapping[TopicPartition, int]]:
        """Return the committed offsets of a group."""

    def broker_count(self) -> Maybe[int]:
        """Return how many brokers the cluster has."""

    def allowed(self, kind: AclResourceType, name: str) -> Maybe[frozenset[AclOperation] | None]:
        """Return what this user may do with a resource; None if the brokers cannot tell."""

    def close(self) -> Maybe[None]:
        """Release connections."""


@dataclass(frozen=True, slots=True)
class Provisioned:
    """The topics as they were when the worker started.

    Attributes:
        partitions: Partition count by topic.
        topic_ids: Topic id by topic, empty if the brokers have no topic ids.
        delete_retention_ms: By changelog, the age at which its tombstones may be gone.
    """

    partitions: Mapping[str, int]
    topic_ids: Mapping[str, str]
    delete_retention_ms: Mapping[str, int]

    def tombstone_age_ms(self, part: SubTopology) -> int:
        """Return the age at which tombstones of a sub-topology's changelogs may be gone."""
        ages = [self.delete_retention_ms.get(s.changelog, DELETE_RETENTION_MS) for s in part.states]
        return min(ages, default=DELETE_RETENTION_MS)

    def check_partition(self, part: SubTopology, partition: int) -> None:
        """Refuse the task of a partition that the changelogs do not have.

        Raises:
            TopicSetupError: The input has grown since the worker started.
        """
        for state in part.states:
            if partition >= self.partitions[state.changelog]:
                count = f"{partition + 1} or more"
                raise _grown(part, count, state.changelog, self.partitions[state.changelog])


def changelog_configs(state: StateSpec) -> dict[str, str]:
    """Return the settings of a state's changelog topic.

    The worker writes a tombstone for each row that was due, so compaction alone keeps the topic
    small. A retention time would only delete rows of an application that was stopped for long.
    """
    return {"cleanup.policy": "compact"}


async def provision(
    topology: Topology, settings: AppSettings, admin: TopicAdmin, *, changelogs: bool = True
) -> Provisioned:
    """Create the topics that are missing, and check all.

    Args:
        topology: The application.
        settings: Partition counts and replication of created topics.
        admin: Access to the brokers.
        changelogs: Whether state has changelogs; not where Spark keeps it.

    Raises:
        TopicSetupError: An input is missing, or a topic does not fit.
    """
    facts = await _make_inputs(topology, settings, admin)
    _check_wish(facts, settings.partitions)
    wanted: dict[str, NewTopic] = {}
    for part in topology.sub_topologies:
        partitions = _common_count(part, facts)
        for node in part.nodes:
            for topic in node.writes:
                wanted.setdefault(topic, _new_topic(topic, partitions, settings))
        for state in part.states if changelogs else ():
            wanted[state.changelog] = _new_topic(
                state.changelog, partitions, settings, changelog_configs(state)
            )
    facts |= await settle(admin.describe(list(wanted)))
    missing = [topic for name, topic in wanted.items() if name not in facts]
    if missing:
        logger.info("creating topics %s", ", ".join(topic.name for topic in missing))
        await settle(admin.create(missing))
        facts |= await settle(admin.describe(list(wanted)))
    states = topology.states if changelogs else ()
    for part in topology.sub_topologies if changelogs else ():
        _check_counts(part, facts)
    configs = await _configs(list(facts), admin)
    for state in states:
        _check_policy(state, configs.get(state.changelog, {}))
    await _warn_of_loss(facts, configs, admin)
    return Provisioned(
        {topic: found.partitions for topic, found in facts.items()},
        {topic: found.topic_id for topic, found in facts.items()},
        {
            state.changelog: int(
                configs.get(state.changelog, {}).get("delete.retention.ms", DELETE_RETENTION_MS)
            )
            for state in states
        },
    )


def _new_topic(
    name: str, partitions: int, settings: AppSettings, configs: Mapping[str, str] | None = None
) -> NewTopic:
    return NewTopic(name, partitions, settings.replication_factor, configs)


async def _make_inputs(
    topology: Topology, settings: AppSettings, admin: TopicAdmin
) -> dict[str, TopicFacts]:
    """Create the missing inputs that are outputs of this application or that settings allow."""
    inputs = list(
        dict.fromkeys([*topology.input_topics, *(t.topic for t in topology.global_tables)])
    )
    facts = dict(await settle(admin.describe(inputs)))
    made_here = set(topology.output_topics)
    missing = [topic for topic in inputs if topic not in facts]
    unknown = [topic for topic in missing if topic not in made_here]
    if unknown and not settings.create_inputs:
        raise TopicSetupError(
            f"input topics do not exist: {', '.join(unknown)}; create them, correct the names, "
            "or set create_inputs=True"
        )
    sources = {
        topic: part.input_topics[0]
        for part in topology.sub_topologies
        for node in part.nodes
        for topic in node.writes
    }
    own = {
        topic: part
        for part in topology.sub_topologies
        for topic in part.input_topics
        if topic in topology.repartition_topics
    }
    while missing:
        created = []
        for topic in missing:
            source = sources.get(topic) if topic not in unknown else None
            if topic in own:
                # It needs the same count as the other inputs of its task, if there are any.
                beside = [t for t in own[topic].input_topics if t != topic and t not in own]
                source = beside[0] if beside else source
            if source in missing:
                continue
            partitions = facts[source].partitions if source in facts else settings.partitions
            configs = REPARTITION_CONFIGS if topic in own else None
            created.append(_new_topic(topic, partitions, settings, configs))
        if not created:  # the processors form a cycle, and none of its topics exists
            created = [_new_topic(topic, settings.partitions, settings) for topic in missing]
        await settle(admin.create(created))
        facts |= await settle(admin.describe([topic.name for topic in created]))
        missing = [topic for topic in missing if topic not in facts]
    return facts


def _check_wish(inputs: Mapping[str, TopicFacts], partitions: int) -> None:
    """Refuse a setting ``partitions`` that no input has.

    Raises:
        TopicSetupError: It would have no effect: other topics take the counts of the inputs.
    """
    counts = {found.partitions for found in inputs.values()}
    if partitions > 0 and partitions not in counts:
        shown = ", ".join(f"{topic} has {found.partitions}" for topic, found in inputs.items())
        raise TopicSetupError(
            f"partitions={partitions}, but no input has that many: {shown}; leave out "
            "partitions=, or create the input with that many"
        )


def _common_count(part: SubTopology, facts: Mapping[str, TopicFacts]) -> int:
    """Return the partition count of all inputs of a task."""
    counts = {topic: facts[topic].partitions for topic in part.input_topics}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{topic} has {count}" for topic, count in counts.items())
        raise TopicSetupError(
            "inputs that are processed together need the same partition count, or equal "
            f"keys would be on different partitions: {shown}; re-partition one of them"
        )
    return next(iter(counts.values()))


def _check_counts(part: SubTopology, facts: Mapping[str, TopicFacts]) -> None:
    partitions = facts[part.input_topics[0]].partitions
    for state in part.states:
        found = facts.get(state.changelog)
        if found is None:
            raise TopicSetupError(
                f"changelog {state.changelog} could not be created; look into the brokers' logs"
            )
        if found.partitions != partitions:
            raise _grown(part, partitions, state.changelog, found.partitions)


def _grown(part: SubTopology, partitions: int | str, changelog: str, had: int) -> TopicSetupError:
    return TopicSetupError(
        f"changelog {changelog} has {had} partitions but input {part.input_topics[0]} has "
        f"{partitions}: keys would meet the state of others. Restore the partition count, or give "
        "the application a new name"
    )


def _check_policy(state: StateSpec, configs: Mapping[str, str]) -> None:
    wanted = changelog_configs(state)["cleanup.policy"]
    found = configs.get("cleanup.policy", wanted)
    if set(found.split(",")) != set(wanted.split(",")):
        raise TopicSetupError(
            f"changelog {state.changelog} has cleanup.policy={found}: state would "
            f"{'expire' if 'delete' in found else 'grow without end'}; set it to {wanted}"
        )


async def _configs(topics: Sequence[str], admin: TopicAdmin) -> Mapping[str, Mapping[str, str]]:
    try:
        return await settle(admin.configs(topics))
    except (TopicAuthorizationFailedError, ClusterAuthorizationFailedError) as error:
        logger.warning(
            "cannot check the cleanup policies and the durability of topics: %s; grant "
            "DESCRIBE_CONFIGS on them",
            error,
        )
        return {}


async def _warn_of_loss(
    facts: Mapping[str, TopicFacts], configs: Mapping[str, Mapping[str, str]], admin: TopicAdmin
) -> None:
    """Log which topics can lose acknowledged records, if the cluster has enough brokers."""
    if await settle(admin.broker_count()) < DURABLE_REPLICAS:
        return
    for topic, found in sorted(facts.items()):
        config = configs.get(topic, {})
        wanting = []
        if found.replication_factor < DURABLE_REPLICAS:
            wanting.append(
                f"{found.replication_factor} replicas (raise the number to {DURABLE_REPLICAS} by a "
                "reassignment)"
            )
        if int(config.get("min.insync.replicas", "2")) < 2:
            wanting.append("min.insync.replicas=1 (set it to 2)")
        if config.get("unclean.leader.election.enable") == "true":
            wanting.append("unclean.leader.election.enable=true (set it to false)")
        if wanting:
            logger.warning(
                "topic %s can lose acknowledged records, and exactly-once with them: %s",
                topic,
                ", ".join(wanting),
            )


def misfits(
    topology: Topology, settings: AppSettings, facts: Mapping[str, TopicFacts]
) -> Iterator[tuple[str, str]]:
    """Yield the topics that ``provision`` would refuse, with the reason; sends no request.

    Args:
        topology: The application.
        settings: Its settings.
        facts: The topics that exist.
    """
    made_here = {*topology.output_topics, *topology.repartition_topics}
    inputs = [*topology.input_topics, *(table.topic for table in topology.global_tables)]
    missing = [topic for topic in dict.fromkeys(inputs) if topic not in facts]
    if not settings.create_inputs:
        for topic in missing:
            if topic not in made_here:
                yield topic, "this input does not exist; create it, or set create_inputs=True"
    if inputs and not missing:
        try:
            _check_wish({topic: facts[topic] for topic in inputs}, settings.partitions)
        except TopicSetupError as error:
            yield inputs[0], str(error)
    for part in topology.sub_topologies:
        if any(topic in missing for topic in part.input_topics):
            continue
        try:
            partitions = _common_count(part, facts)
        except TopicSetupError as error:
            yield part.input_topics[0], str(error)
            continue
        for state in part.states:
            found = facts.get(state.changelog)
            if found is not None and found.partitions != partitions:
                grown = _grown(part, partitions, state.changelog, found.partitions)
                yield state.changelog, str(grown)


async def watch(topology: Topology, known: Provisioned, admin: TopicAdmin) -> dict[str, int]:
    """Compare the topics with their description at the start.

    Args:
        topology: The application.
        known: The topics at the start.
        admin: Access to the brokers.

    Returns:
        The present partition counts.

    Raises:
        TopicSetupError: A topic was deleted or made again, or an input with state has grown.
    """
    facts = await settle(admin.describe(list(known.partitions)))
    inputs = {*topology.input_topics, *(table.topic for table in topology.global_tables)}
    changelogs = {state.changelog for state in topology.states}
    for topic, topic_id in known.topic_ids.items():
        role = "input" if topic in inputs else "changelog" if topic in changelogs else "output"
        found = facts.get(topic)
        if found is None:
            raise TopicSetupError(
                f"{role} topic {topic} was deleted while the application runs; restore it, or "
                f"{'give the application a new name' if role != 'output' else 'start again'}"
            )
        if topic_id and found.topic_id and found.topic_id != topic_id:
            if role == "output":
                logger.warning("output topic %s was deleted and made again", topic)
            else:
                raise TopicSetupError(
                    f"{role} topic {topic} was deleted and made again while the application runs: "
                    "committed offsets and state belong to the deleted one; give the application "
                    "a new name"
                )
    for part in topology.sub_topologies:
        _check_counts(part, facts)
        _common_count(part, facts)
    return {topic: found.partitions for topic, found in facts.items()}
