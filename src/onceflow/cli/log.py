"""The commands ``onceflow log``: dump and verify the files of a data folder, without a broker."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onceflow.cli.base import Failure, Group
from onceflow.cli.output import Row, json_option, print_json, print_rows

if TYPE_CHECKING:
    from onceflow.cli.log_files import Batch, Fates


@click.group(cls=Group, epilog="Example: onceflow log verify ./data")
def log() -> None:
    """Dump and verify the files of a data folder, without a broker."""


@log.command("verify", epilog="Example: onceflow log verify ./data --json")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
def verify_folder(folder: Path, as_json: bool) -> None:
    """Check each batch of a data folder, or of one partition's folder.

    Lengths, checksums, order of offsets and records are checked; nothing is changed. Exit status 1
    if anything is wrong. "torn end" is what a crash leaves: the next start of the broker cuts it
    off. A broker that runs may be writing: stop it first.
    """
    from onceflow.cli.log_files import partitions_of, verify

    rows: list[Row] = []
    unsound = 0
    for partition in partitions_of(folder):
        found = verify(partition)
        unsound += bool(found.damages)
        rows.append(
            {
                "partition": partition.name,
                "segments": found.segments,
                "batches": found.batches,
                "records": found.records,
                "start": found.start,
                "end": found.end,
                "open_transactions": [
                    {"producer_id": producer, "first_offset": offset}
                    for producer, offset in sorted(found.open.items())
                ],
                "verdict": (
                    "torn end" if found.is_torn_end else "damaged" if found.damages else "sound"
                ),
                "damages": [
                    {
                        "segment": each.segment.name,
                        "position": each.position,
                        "reason": each.reason,
                        "bytes_left": each.bytes_left,
                    }
                    for each in found.damages
                ],
            }
        )
    if as_json:
        print_json(rows)
    else:
        _print_verdicts(rows)
    if unsound:
        raise Failure(f"{unsound} of {len(rows)} partitions are not sound", 1)


def _print_verdicts(rows: list[Row]) -> None:
    columns = ["partition", "segments", "batches", "records", "start", "end", "open", "verdict"]
    counted = []
    for row in rows:
        opened = row["open_transactions"]
        assert isinstance(opened, list)
        counted.append({**row, "open": len(opened)})
    print_rows(counted, columns)
    for row in rows:
        damages = row["damages"]
        assert isinstance(damages, list)
        for each in damages:
            where = f"{row['partition']}/{each['segment']}, byte {each['position']}"
            click.echo(f"{where}: {each['reason']}", err=True)


@log.command("dump", epilog="Example: onceflow log dump ./data/orders-0 --records")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--records", is_flag=True, help="Each record instead of each batch, as JSON lines.")
@click.option("--from", "start", type=click.IntRange(0), default=0, help="First offset.")
@click.option("--max", "limit", type=click.IntRange(1), help="Stop after so many lines.")
@json_option
def dump(path: Path, records: bool, start: int, limit: int | None, as_json: bool) -> None:
    """Print the batches of a partition's folder, or of one segment, a line each.

    TRANSACTION tells how a batch's transaction ended: committed, aborted, or open because its
    marker is not in these files. Markers are shown as commit and abort.
    """
    from onceflow.cli.log_files import Damage, Fates, segments_of, walk

    segments = segments_of(path)
    fates = Fates(segments)
    left = limit
    if not records and not as_json:
        click.echo(_LINE.format(*_COLUMNS).rstrip())
    for found in walk(segments):
        if isinstance(found, Damage):
            raise Failure(
                f"{found.segment}, byte {found.position}: {found.reason}\n"
                f"Next: onceflow log verify {path}",
                1,
            )
        if found.header.last_offset < start:
            continue
        lines = _records(found, fates, start) if records else [_batch(found, fates, as_json)]
        for line in lines[:left]:
            sys.stdout.buffer.write(line)
        if left is not None:
            left -= min(left, len(lines))
            if left == 0:
                break
    sys.stdout.buffer.flush()


_COLUMNS = (
    *("offsets", "records", "time_ms", "codec", "producer", "epoch", "sequence", "leader_epoch"),
    *("transaction", "position", "bytes"),
)
_LINE = "{:<17} {:>7} {:>13} {:<6} {:>8} {:>5} {:>8} {:>12} {:<11} {:>10} {:>8}"
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def _batch(batch: Batch, fates: Fates, as_json: bool) -> bytes:
    """One line of a batch."""
    from onceflow.sdk.serde import to_json

    header = batch.header
    codec = _CODECS[header.codec] if header.codec < len(_CODECS) else str(header.codec)
    fate = batch.marker or fates.of(header)
    if as_json:
        shown = {
            "segment": batch.segment.name,
            "position": batch.position,
            "size_bytes": header.size_bytes,
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "records": header.records_count,
            "max_timestamp_ms": header.max_timestamp,
            "codec": codec,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "leader_epoch": header.partition_leader_epoch,
            "transactional": header.is_transactional,
            "marker": batch.marker,
            "transaction": fates.of(header),
        }
        return to_json(shown) + b"\n"
    return (
        _LINE.format(
            f"{header.base_offset}..{header.last_offset}",
            *(header.records_count, header.max_timestamp, codec, header.producer_id),
            *(header.producer_epoch, header.base_sequence, header.partition_leader_epoch),
            *(fate or "-", batch.position, header.size_bytes),
        ).rstrip()
        + "\n"
    ).encode()


def _records(batch: Batch, fates: Fates, start: int) -> list[bytes]:
    """One line for each record; a marker is a line too."""
    from onceflow.cli.record_text import as_text
    from onceflow.sdk.serde import to_json

    marker, fate = batch.marker, fates.of(batch.header)
    lines = []
    for record in batch.records():
        if record.offset < start:
            continue
        shown: dict[str, object] = {"offset": record.offset, "timestamp_ms": record.timestamp}
        if batch.header.is_transactional:
            shown |= {"producer_id": batch.header.producer_id}
        if marker is not None:
            shown |= {"marker": marker}
        else:
            shown |= {
                "transaction": fate,
                "key": as_text(record.key),
                "value": as_text(record.value),
                "headers": [[name, as_text(value)] for name, value in record.headers],
            }
        lines.append(to_json(shown) + b"\n")
    return lines
