"""Checks of an application: its topics, its state directory, and what is in its input."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from onceflow.cli.connect import POLL_MS
from onceflow.cli.doctor.facts import Facts
from onceflow.cli.doctor.findings import Check, Fault
from onceflow.sdk.model.partitions import TopicPartition

if TYPE_CHECKING:
    from onceflow.processors.graph.nodes import Node
    from onceflow.processors.values import Decoder
    from onceflow.sdk import ConsumerRecord

EPHEMERAL: Final = frozenset({"tmpfs", "ramfs", "overlay", "aufs"})
"""File systems in memory, and those of a container's own layer."""
MOUNTS: Final = Path("/proc/self/mounts")
SAMPLED_RECORDS: Final = 20
"""How many of the latest records of each partition are decoded."""
SAMPLED_PARTITIONS: Final = 8
POLLS_MAX: Final = 50


def file_system_of(path: Path, mounts: Path = MOUNTS) -> str:
    """Return the type of the file system that a path is on, or would be; empty if not known.

    Args:
        path: The path; it need not exist.
        mounts: Table of mounts, as Linux writes it.
    """
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    place = os.path.realpath(path)
    for line in lines:
        _, point, type_, *_ = line.split()
        point = point.replace("\\040", " ")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, type_
    return kind


def ephemeral_state(facts: Facts) -> Iterator[Fault]:
    """A state directory that does not survive, without a slot."""
    if facts.app is None or facts.app.settings.slot is not None:
        return
    directory = facts.app.settings.state_dir
    kind = file_system_of(directory)
    if kind in EPHEMERAL:
        yield Fault(
            f"state_dir {directory}",
            f"it is on {kind}, which does not survive this container or machine, and the "
            "application has no slot",
            "give each process a slot (onceflow run --slot, or App(slot=...)), such as the ordinal "
            "of its pod; or mount a volume at the state directory",
        )


def partition_counts(facts: Facts) -> Iterator[Fault]:
    """Topics that are missing, or whose partition counts do not fit each other."""
    if facts.app is None:
        return
    from onceflow.processors.provisioning import TopicFacts, misfits

    known = {
        name: TopicFacts(topic.partition_count, str(topic.topic_id))
        for name, topic in facts.topics.items()
    }
    for topic, text in misfits(facts.app.topology(), facts.app.settings, known):
        what, _, remedy = text.partition("; ")
        yield Fault(f"topic {topic}", what, remedy or "restore the partition count")


def value_formats(facts: Facts) -> Iterator[Fault]:
    """Inputs whose latest records the application cannot decode."""
    if facts.app is None:
        return
    topology = facts.app.topology()
    for part in topology.sub_topologies:
        for topic in part.input_topics:
            decoders = [
                (node.name, decoder)
                for node in part.children(f"topic {topic}")
                for decoder in _decoders(node, topic)
            ]
            if decoders and topic in facts.topics:
                yield from _undecodable(facts, topic, decoders)


def _decoders(node: Node, topic: str) -> Iterator[tuple[str, Decoder]]:
    """What a node makes of the bytes of a topic: ``key`` or ``value``, and how."""
    from onceflow.processors.batches import Field
    from onceflow.processors.declare.signatures import Argument, ArgumentKind
    from onceflow.processors.graph import nodes
    from onceflow.processors.values import decoder_for

    arguments: tuple[Argument, ...] = ()
    if not isinstance(node, nodes.WorkingNode):
        return
    match node:
        case nodes.TimerNode():
            return
        case nodes.FunctionNode():
            arguments = node.signature.arguments
        case nodes.AggregateNode():
            arguments = node.fold.arguments
        case nodes.JoinNode():
            side = node.topics.index(topic)
            values = [a for a in node.arguments if a.kind is not ArgumentKind.KEY]
            yield "value", decoder_for(values[side].annotation, node.format, node.name)
            arguments = tuple(a for a in node.arguments if a.kind is ArgumentKind.KEY)
        case nodes.TableNode():  # A record without a value deletes its row.
            row = decoder_for(node.value_type, node.format, f"value of {node.name}")
            yield "value", lambda data: None if data is None else row(data)
        case nodes.RekeyNode():
            yield "value", decoder_for(node.value_type, node.format, f"value of {node.name}")
        case nodes.BatchNode():
            for field in node.parts:
                if field.decode is not None and field.field is not Field.HEADERS:
                    yield ("key" if field.field is Field.KEY else "value"), field.decode
    for argument in arguments:
        if argument.kind in (ArgumentKind.VALUE, ArgumentKind.KEY):
            word = argument.kind.value
            decode = decoder_for(argument.annotation, node.format, f"{word} of {node.name}")
            yield word, decode


def _undecodable(
    facts: Facts, topic: str, decoders: list[tuple[str, tuple[str, Decoder]]]
) -> Iterator[Fault]:
    from onceflow.sdk.errors import SerializationError

    told: set[tuple[str, str]] = set()
    for record in _latest(facts, topic):
        for name, (word, decode) in decoders:
            if (name, word) in told:
                continue
            try:
                decode(record.key if word == "key" else record.value)
            except SerializationError as error:
                told.add((name, word))
                yield Fault(
                    f"{topic}:{record.partition}, offset {record.offset}",
                    f"{name} cannot decode the {word}: {error}",
                    f"correct the annotation or format= of {name}, or what writes the topic; with "
                    "dead_letter= such records do not stop the application",
                )


def _latest(facts: Facts, topic: str) -> Iterator[ConsumerRecord[bytes | None, bytes | None]]:
    """The latest committed records of a topic's first partitions."""
    from onceflow.sdk import Consumer

    places = [place for place in facts.partitions if place.topic == topic][:SAMPLED_PARTITIONS]
    first = facts.admin.list_offsets(dict.fromkeys(places, "earliest"))
    begins: dict[TopicPartition, int] = {}
    for place in places:
        end = facts.ends[place][0]
        if end > first[place].offset:
            begins[place] = max(first[place].offset, end - SAMPLED_RECORDS)
    if not begins:
        return
    made = Consumer(
        config=facts.clients.reader(
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            key_deserializer=None,
            value_deserializer=None,
        )
    )
    reader = cast("Consumer[bytes | None, bytes | None]", made)
    with reader:
        reader.assign(list(begins))
        for place, offset in begins.items():
            reader.seek(place, offset)
        left = set(begins)
        for _ in range(POLLS_MAX):
            for records in reader.poll(timeout_ms=POLL_MS).values():
                yield from records
            left = {place for place in left if reader.position(place) < facts.ends[place][0]}
            if not left:
                return


CHECKS: Final = (
    Check(
        "ephemeral-state",
        "a restarted process has a new identity: its predecessor's transaction and partitions wait "
        "for their timeouts (45 s), and its state is restored from the changelogs",
        ephemeral_state,
    ),
    Check(
        "partition-count",
        "the partition count decides which keys meet which state; an application that is started "
        "on other counts stops",
        partition_counts,
    ),
    Check(
        "value-format",
        "the first record that cannot be decoded stops the application, or becomes a dead letter",
        value_formats,
    ),
)
