"""The command ``onceflow consume``: prints records of topics, up to their present end or on."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

import click

from onceflow.cli.base import Command, Failure
from onceflow.cli.connect import POLL_MS, Connection, connected
from onceflow.cli.output import json_option
from onceflow.cli.record_text import json_line, template
from onceflow.cli.values import time_ms

if TYPE_CHECKING:
    from onceflow.sdk import Consumer, ConsumerRecord, TopicPartition
    from onceflow.sdk.schema_registry import SchemaRegistry

    Reader: TypeAlias = Consumer[object, object]
    Shown: TypeAlias = Callable[[ConsumerRecord[object, object], object, object], bytes]
    Writer: TypeAlias = Callable[[ConsumerRecord[object, object]], bytes]


@click.command(cls=Command, epilog="Example: onceflow consume orders --from 15m --follow --json")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option(
    "--from",
    "start",
    default=None,
    metavar="earliest|latest|OFFSET|TIME",
    help="First record; default earliest. TIME: 2026-01-31T12:00Z, @MILLISECONDS, 15m for ago.",
)
@click.option("--partition", "partitions", type=click.IntRange(0), multiple=True, help="Only it.")
@click.option("--group", help="Read as a member of a group, and commit what was printed.")
@click.option("--follow", "-f", is_flag=True, help="Go on at the end; Ctrl-C ends it.")
@click.option("--max", "limit", type=click.IntRange(1), help="Stop after so many records.")
@click.option("--uncommitted", is_flag=True, help="Also open and aborted transactions.")
@click.option(
    "--decode",
    "decoded",
    type=click.Choice(["key", "value"]),
    multiple=True,
    help="It begins with the id of a schema: print it as JSON. May be given twice.",
)
@click.option("--registry", metavar="URL", help="Address of the schema registry.")
@click.option(
    "--format",
    "form",
    default="{value}",
    help="Fields: {topic} {partition} {offset} {time} {timestamp_ms} {key} {value} {headers}.",
)
@json_option
@connected
def consume(
    connection: Connection,
    topics: tuple[str, ...],
    start: str | None,
    partitions: tuple[int, ...],
    group: str | None,
    follow: bool,
    limit: int | None,
    uncommitted: bool,
    decoded: tuple[str, ...],
    registry: str | None,
    form: str,
    as_json: bool,
) -> None:
    """Print the records of topics, those of committed transactions only.

    It stops at the end that the topics have when it starts, unless --follow is given.
    """
    shown = json_line if as_json else template(form)

    write: Writer = lambda record: shown(record, record.key, record.value)  # noqa: E731
    if decoded:
        from onceflow.cli.schemas import open_registry

        write = _decoding(open_registry(connection, registry), decoded, shown)
    settings: dict[str, object] = {
        "isolation_level": "read_uncommitted" if uncommitted else "read_committed",
        "enable_auto_commit": False,
    }
    if group is not None:
        if partitions or start not in (None, "earliest", "latest"):
            raise click.UsageError(
                "--group: reads on where the group was; --from earliest or latest is for "
                "partitions without a committed offset. Use groups reset to change offsets"
            )
        settings |= {"group_id": group, "auto_offset_reset": start or "earliest"}
        with connection.consumer(**settings) as consumer:
            _places(connection, consumer, topics, ())  # An unknown name would be waited for.
            _print_of_group(consumer, topics, write, follow, limit)
        return
    with connection.reader(**settings) as consumer:
        places = _places(connection, consumer, topics, partitions)
        consumer.assign(places)
        _seek(consumer, places, start or "earliest")
        end = None if follow else consumer.end_offsets(places)
        _print(consumer, write, end, limit, commits=False)


def _decoding(registry: SchemaRegistry, fields: tuple[str, ...], shown: Shown) -> Writer:
    """Decode keys or values before they are printed.

    Raises:
        Failure: A record does not fit; names it.
    """
    from onceflow.cli.record_text import Decoded
    from onceflow.cli.schemas import decoder
    from onceflow.sdk.errors import SerializationError

    decode = decoder(registry)

    def decoded(record: ConsumerRecord[object, object]) -> bytes:
        found: dict[str, object] = {"key": record.key, "value": record.value}
        for field in fields:
            data = found[field]
            if isinstance(data, bytes):
                try:
                    found[field] = Decoded(decode(data, record.topic, field))
                except SerializationError as error:
                    where = f"{record.topic}:{record.partition}, offset {record.offset}"
                    raise Failure(
                        f"{where}: {error}\nNext: leave --decode {field} out to see its bytes", 1
                    ) from error
        return shown(record, found["key"], found["value"])

    return decoded


def _places(
    connection: Connection, consumer: Reader, topics: tuple[str, ...], wanted: tuple[int, ...]
) -> list[TopicPartition]:
    """The partitions to read.

    Raises:
        Failure: A partition does not exist.
        KafkaError: A topic does not exist, or must not be seen.
    """
    from onceflow.sdk import TopicPartition

    places = []
    for topic in topics:
        there = connection.partitions(consumer, topic)
        if missing := set(wanted) - there:
            raise Failure(f"{topic} has no partition {min(missing)}; it has {len(there)}", 3)
        places += [TopicPartition(topic, number) for number in sorted(wanted or there)]
    return places


def _seek(consumer: Reader, places: list[TopicPartition], start: str) -> None:
    """Go to the first record of each partition."""
    if start == "earliest":
        consumer.seek_to_beginning(places)
    elif start == "latest":
        consumer.seek_to_end(places)
    elif start.isascii() and start.isdigit():
        for place in places:
            consumer.seek(place, int(start))
    else:
        at_ms = time_ms(start.removeprefix("@"))
        found = consumer.offsets_for_times(dict.fromkeys(places, at_ms))
        for place in places:
            first = found[place]
            if first is None or first.offset < 0:
                consumer.seek_to_end([place])
            else:
                consumer.seek(place, first.offset)


def _print_of_group(
    consumer: Reader, topics: tuple[str, ...], write: Writer, follow: bool, limit: int | None
) -> None:
    """Join a group and print what it is given."""
    end: dict[TopicPartition, int] = {}

    def assigned(places: Iterable[TopicPartition]) -> None:
        if not follow:
            end.update(consumer.end_offsets(list(places)))

    def gone(places: Iterable[TopicPartition]) -> None:
        for place in places:
            end.pop(place, None)

    consumer.subscribe(topics, on_assigned=assigned, on_revoked=gone, on_lost=gone)
    _print(consumer, write, None if follow else end, limit, commits=True)


def _print(
    consumer: Reader,
    write: Writer,
    end: dict[TopicPartition, int] | None,
    limit: int | None,
    *,
    commits: bool,
) -> None:
    """Print records until the end or the limit.

    What was printed is flushed before it is committed, so that nothing is committed that a reader
    of the output did not get.
    """
    output = sys.stdout.buffer
    hidden = end is None or commits or sys.stdout.isatty() or not sys.stderr.isatty()
    ahead = 0 if hidden or end is None else sum(end[p] - consumer.position(p) for p in end)
    left = limit
    with click.progressbar(length=max(ahead, 1), file=sys.stderr, hidden=hidden) as bar:
        while left != 0 and not _is_done(consumer, end):
            polled = consumer.poll(timeout_ms=POLL_MS, max_records=left)
            for place, records in polled.items():
                kept = records
                if end is not None and place in end:  # What came after the start is left.
                    last = end[place]
                    kept = [each for each in records if each.offset < last]
                    if len(kept) < len(records):
                        consumer.seek(place, last)
                output.write(b"".join(map(write, kept)))
                bar.update(len(kept))
                if left is not None:
                    left -= len(kept)
            output.flush()
            if commits and polled:
                consumer.commit()


def _is_done(consumer: Reader, end: dict[TopicPartition, int] | None) -> bool:
    """Whether all partitions have reached their ends."""
    places = consumer.assignment()
    if end is None or not places:
        return False
    return all(place in end and consumer.position(place) >= end[place] for place in places)
