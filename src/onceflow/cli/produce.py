"""The command ``onceflow produce``: sends lines, JSON records or whole files to a topic."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from onceflow.cli.base import Command, Failure
from onceflow.cli.connect import Connection, connected
from onceflow.cli.output import json_option, print_json
from onceflow.cli.record_text import Given, plain_line, read_json_line
from onceflow.cli.values import pairs

if TYPE_CHECKING:
    from onceflow.cli.schemas import Encode
    from onceflow.sdk import Producer, RecordMetadata
    from onceflow.sdk.sync.delivery import Delivery

WAITING_MAX = 10_000
"""Most records whose delivery is awaited at a time."""


@click.command(
    cls=Command,
    epilog="Example: onceflow produce orders orders.txt --key-delimiter : --header source=import",
)
@click.argument("topic")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "json", "file"]),
    default="lines",
    help="A value a line (default), a JSON record a line, or a value a file.",
)
@click.option("--key", help="Key of all records that bring none.")
@click.option("--key-delimiter", help="Text between key and value in a line.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="For all records.")
@click.option("--partition", type=click.IntRange(0), help="Of all records; default by key.")
@click.option("--value-schema", metavar="FILE|latest", help="Values are JSON of this schema.")
@click.option("--key-schema", metavar="FILE|latest", help="Keys are JSON of this schema.")
@click.option("--message", help="Full name of the values' Protobuf message; default the first.")
@click.option("--registry", metavar="URL", help="Address of the schema registry.")
@click.option("--transactional-id", help="Send all in one transaction: all of it, or nothing.")
@json_option
@connected
def produce(
    connection: Connection,
    topic: str,
    files: tuple[Path, ...],
    form: str,
    key: str | None,
    key_delimiter: str | None,
    headers: tuple[str, ...],
    partition: int | None,
    value_schema: str | None,
    key_schema: str | None,
    message: str | None,
    registry: str | None,
    transactional_id: str | None,
    as_json: bool,
) -> None:
    """Send records from files, or from standard input, to TOPIC.

    \b
    A line of --format json is what onceflow consume --json prints:
    {"key": "7", "value": "paid", "headers": [["source", "import"]]}

    A schema is in a file .avsc, .json or .proto, which is registered where the topic lacks it.
    """
    if key_delimiter == "" or (key_delimiter is not None and form != "lines"):
        raise click.UsageError("--key-delimiter: needs text, and --format lines")
    common = [(name, value.encode()) for name, value in pairs(headers, "--header").items()]
    delimiter = None if key_delimiter is None else key_delimiter.encode()
    encoders: dict[str, Encode] = {}
    if value_schema is not None or key_schema is not None:
        from onceflow.cli.schemas import encoder, open_registry

        client = open_registry(connection, registry)
        if value_schema is not None:
            encoders["value"] = encoder(client, value_schema, message, topic, "value")
        if key_schema is not None:
            encoders["key"] = encoder(client, key_schema, None, topic, "key")
    settings: dict[str, object] = {}
    if transactional_id is not None:
        settings["transactional_id"] = transactional_id
    sent: Counter[int] = Counter()
    with (
        connection.producer(**settings) as producer,
        producer.transaction() if transactional_id else contextlib.nullcontext(),
    ):
        waiting: list[Delivery] = []
        common_key = None if key is None else _encoded(key.encode(), "key", encoders, "--key")
        for record in _records(files, form, delimiter, encoders):
            own_key = common_key if record.key is None else record.key
            own_partition = partition if record.partition is None else record.partition
            waiting.append(
                producer.send(
                    topic,
                    record.value,
                    key=own_key,
                    headers=[*common, *(record.headers or ())],
                    partition=own_partition,
                    timestamp_ms=record.timestamp_ms,
                )
            )
            if len(waiting) >= WAITING_MAX:
                sent.update(each.partition for each in _delivered(producer, waiting))
                waiting.clear()
        sent.update(each.partition for each in _delivered(producer, waiting))
    if as_json:
        counts = {str(number): sent[number] for number in sorted(sent)}
        print_json({"topic": topic, "records": sent.total(), "partitions": counts})
    else:
        click.echo(f"{topic}: {sent.total()} records", err=True)


def _delivered(producer: Producer, waiting: list[Delivery]) -> list[RecordMetadata]:
    """Wait until the brokers have what was sent; raises what one of the records met."""
    producer.flush()
    return [each.result() for each in waiting]


def _encoded(
    data: bytes | None, field: str, encoders: Mapping[str, Encode], place: str
) -> bytes | None:
    """The bytes of a key or value by its schema, if it has one.

    Raises:
        Failure: It does not fit; names the place.
    """
    encode = encoders.get(field)
    if encode is None or data is None:
        return data
    from onceflow.sdk.errors import SerializationError

    try:
        return encode(data)
    except SerializationError as error:
        raise Failure(f"{place}: {field}: {error}", 2) from error


def _records(
    files: tuple[Path, ...], form: str, delimiter: bytes | None, encoders: Mapping[str, Encode]
) -> Iterator[Given]:
    """Records of the files in their order, or of standard input."""
    if not files:
        yield from _of_stream(sys.stdin.buffer, "standard input", form, delimiter, encoders)
        return
    hidden = not sys.stderr.isatty()
    with click.progressbar(
        length=sum(path.stat().st_size for path in files), file=sys.stderr, hidden=hidden
    ) as bar:
        for path in files:
            with path.open("rb") as stream:
                before = 0
                for record in _of_stream(stream, str(path), form, delimiter, encoders):
                    yield record
                    position = stream.tell()
                    bar.update(position - before)
                    before = position


def _of_stream(
    stream: BinaryIO,
    name: str,
    form: str,
    delimiter: bytes | None,
    encoders: Mapping[str, Encode],
) -> Iterator[Given]:
    if form == "file":
        yield Given(_encoded(stream.read(), "value", encoders, name))
        return
    for number, line in enumerate(iter(stream.readline, b""), 1):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        place = f"{name}, line {number}"
        record = (
            read_json_line(text, place, encoders)
            if form == "json"
            else plain_line(text, delimiter, place)
        )
        yield record._replace(
            value=_encoded(record.value, "value", encoders, place),
            key=_encoded(record.key, "key", encoders, place),
        )
