"""The commands ``onceflow dlq``: list, show and replay the dead letters of processors.

A dead letter is the failed record with headers that tell where it came from and why it failed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import click

from onceflow.cli.base import Failure, Group
from onceflow.cli.connect import POLL_MS, Connection, connected
from onceflow.cli.output import json_option, print_json, print_rows
from onceflow.cli.record_text import as_text
from onceflow.cli.values import partition_of

if TYPE_CHECKING:
    from onceflow.sdk import Consumer, ConsumerRecord, Producer, TopicPartition


@click.group(cls=Group, epilog="Example: onceflow dlq list orders-dead")
def dlq() -> None:
    """List, show and replay dead letters."""


class Letter(NamedTuple):
    """A dead letter.

    Attributes:
        record: The record of the dead-letter topic.
        headers: Headers that the failed record had.
        told: The processor's data about the failure, by name.
    """

    record: ConsumerRecord[object, object]
    headers: list[tuple[str, bytes | None]]
    told: dict[str, str]

    @property
    def place(self) -> str:
        """Where the dead letter lies."""
        return f"{self.record.topic}:{self.record.partition}, offset {self.record.offset}"

    def source(self) -> TopicPartition:
        """The partition that the failed record came from.

        Raises:
            Failure: Its headers lack that, so it is not a dead letter of a processor.
        """
        from onceflow.sdk import TopicPartition

        topic, number = self.told.get("topic"), self.told.get("partition", "")
        if not topic or not (number.isascii() and number.isdigit()):
            raise Failure(
                f"{self.place}: no headers that tell its topic and partition\n"
                "Next: name a topic of dead letters, or give --to TOPIC",
                1,
            )
        return TopicPartition(topic, int(number))


def _letter(record: ConsumerRecord[object, object]) -> Letter:
    """Read the headers; of a record that failed twice, those of the last failure."""
    from onceflow.processors.policies import HEADER_PREFIX

    told: dict[str, str] = {}
    kept: list[tuple[str, bytes | None]] = []
    for name, value in reversed(record.headers):
        field = name.removeprefix(HEADER_PREFIX)
        if field != name and field not in told:
            told[field] = (value or b"").decode(errors="backslashreplace")
        else:
            kept.append((name, value))
    return Letter(record, kept[::-1], told)


def _assign(
    connection: Connection, consumer: Consumer[object, object], topic: str
) -> dict[TopicPartition, int]:
    """Assign all partitions of a topic, and return their present ends.

    Raises:
        KafkaError: The topic does not exist, or must not be seen.
    """
    from onceflow.sdk import TopicPartition

    there = connection.partitions(consumer, topic)
    places = [TopicPartition(topic, number) for number in sorted(there)]
    consumer.assign(places)
    return consumer.end_offsets(places)


def _letters(
    consumer: Consumer[object, object], end: dict[TopicPartition, int], limit: int | None
) -> Iterator[list[Letter]]:
    """Poll up to the ends, or up to the limit."""
    left = limit
    while left != 0 and any(consumer.position(place) < end[place] for place in end):
        polled = consumer.poll(timeout_ms=POLL_MS, max_records=left)
        found = [
            _letter(record)
            for place, records in polled.items()
            for record in records
            if record.offset < end[place]
        ]
        if left is not None:
            left -= len(found)
        if found:
            yield found


def _row(letter: Letter) -> dict[str, object]:
    told = letter.told
    return {
        "partition": letter.record.partition,
        "offset": letter.record.offset,
        "timestamp_ms": letter.record.timestamp_ms,
        "source": f"{told.get('topic', '')}:{told.get('partition', '')}@{told.get('offset', '')}",
        "processor": told.get("processor"),
        "attempts": told.get("attempts"),
        "error": told.get("class"),
        "message": next(iter(told.get("message", "").splitlines()), ""),
    }


@dlq.command("list", epilog="Example: onceflow dlq list orders-dead --json")
@click.argument("topic")
@click.option("--max", "limit", type=click.IntRange(1), help="Stop after so many.")
@json_option
@connected
def list_letters(connection: Connection, topic: str, limit: int | None, as_json: bool) -> None:
    """List the dead letters in TOPIC with their sources and errors."""
    with connection.reader(isolation_level="read_committed") as consumer:
        end = _assign(connection, consumer, topic)
        consumer.seek_to_beginning(list(end))
        rows = [_row(each) for found in _letters(consumer, end, limit) for each in found]
    if as_json:
        print_json(rows)
    else:
        columns = ["partition", "offset", "source", "processor", "attempts", "error", "message"]
        print_rows(rows, columns, f"there are no dead letters in {topic}")


@dlq.command("show", epilog="Example: onceflow dlq show orders-dead:0 17")
@click.argument("place", metavar="TOPIC:PARTITION")
@click.argument("offset", type=click.IntRange(0))
@json_option
@connected
def show(connection: Connection, place: str, offset: int, as_json: bool) -> None:
    """Show one dead letter with key, value, headers and traceback."""
    where = partition_of(place)
    with connection.reader(isolation_level="read_committed") as consumer:
        end = _assign(connection, consumer, where.topic)
        if where not in end:
            raise Failure(f"{where.topic} has no partition {where.partition}", 3)
        consumer.assign([where])
        consumer.seek_to_beginning([where])
        if consumer.position(where) <= offset:
            consumer.seek(where, offset)
        found = next(_letters(consumer, {where: end[where]}, 1), None)
    if not found or found[0].record.offset != offset:
        raise Failure(f"there is no record at {place}, offset {offset}", 3)
    (letter,) = found
    shown = {
        **_row(letter),
        "message": letter.told.get("message"),
        "key": as_text(letter.record.key),
        "value": as_text(letter.record.value),
        "headers": [[name, as_text(value)] for name, value in letter.headers],
        "traceback": letter.told.get("traceback"),
    }
    if as_json:
        print_json(shown)
        return
    for name, value in shown.items():
        click.echo(f"{name}: {value}" if name != "traceback" else f"\n{value}")


@dlq.command("replay", epilog="Example: onceflow dlq replay orders-dead --dry-run")
@click.argument("topic")
@click.option("--to", "target", metavar="TOPIC", help="Where to; default where each came from.")
@click.option("--group", help="Holds how far it came; default TOPIC-replay.")
@click.option("--max", "limit", type=click.IntRange(1), help="Stop after so many.")
@click.option("--dry-run", is_flag=True, help="Only count what would be sent where.")
@json_option
@connected
def replay(
    connection: Connection,
    topic: str,
    target: str | None,
    group: str | None,
    limit: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Send the dead letters in TOPIC back to the partitions that they came from, exactly once.

    They lose the headers of the failure. Records and the group's offsets are one transaction, so
    a second call continues after the replayed records, also after a crash. Two calls at a time: the
    later one fences the earlier one.
    """
    name = group or replay_group(topic)
    rows = replay_letters(connection, topic, target, name, limit, dry_run)
    if as_json:
        print_json({"group": name, "dry_run": dry_run, "sent": rows})
    else:
        print_rows(rows, ["topic", "records"], "nothing is left to replay")


def replay_group(topic: str) -> str:
    """The group that holds how far a topic was replayed, where none is named."""
    return f"{topic}-replay"


def replay_letters(
    connection: Connection,
    topic: str,
    target: str | None,
    name: str,
    limit: int | None,
    dry_run: bool,
) -> list[dict[str, object]]:
    """Replay dead letters, exactly once; see the command.

    Args:
        connection: How to reach the cluster.
        topic: The dead letters.
        target: Where to; None for where each came from.
        name: Group and transactional id.
        limit: Stop after so many.
        dry_run: Only count.

    Returns:
        How many went to which topic.

    Raises:
        Failure: A record is not a dead letter.
        KafkaError: The cluster refuses.
    """
    counts: dict[str, int] = {}
    with contextlib.ExitStack() as clients:
        producer: Producer | None = None
        if not dry_run:  # A producer would abort the transaction of a replay under way.
            producer = clients.enter_context(connection.producer(transactional_id=name))
            producer.init_transactions()  # Ends what a crashed call left; its offsets are decided.
        settings = {"isolation_level": "read_committed", "enable_auto_commit": False}
        reader = clients.enter_context(
            connection.consumer(group_id=name, auto_offset_reset="earliest", **settings)
        )
        end = _assign(connection, reader, topic)
        for found in _letters(reader, end, limit):
            for letter in found:
                where = target or letter.source().topic
                counts[where] = counts.get(where, 0) + 1
            if producer is not None:
                _send(producer, reader, found, target)
    return [{"topic": where, "records": count} for where, count in sorted(counts.items())]


def _send(
    producer: Producer,
    reader: Consumer[object, object],
    letters: list[Letter],
    target: str | None,
) -> None:
    """Send letters and commit the offsets after them, as one transaction."""
    offsets = {each.record.topic_partition: each.record.offset + 1 for each in letters}
    with producer.transaction() as transaction:
        for each in letters:
            source = None if target else each.source()
            producer.send(
                target or each.source().topic,
                each.record.value,
                key=each.record.key,
                headers=each.headers,
                partition=source and source.partition,
                timestamp_ms=each.record.timestamp_ms if each.record.timestamp_ms >= 0 else None,
            )
        transaction.send_offsets(offsets, reader.group_metadata())
