"""Reads the files of a partition without a broker: batches, their checks, fates of transactions.

Nothing is written or locked. The format is Kafka's, so a folder of Apache Kafka is read too. Sizes
in the files are checked before they are believed, because a damaged file may say anything.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from onceflow.cli.base import Failure
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.protocol.batch_errors import InvalidBatchError
from onceflow.sdk.protocol.batch_header import (
    HEADER_SIZE,
    BatchHeader,
    check_crc,
    parse_batch_header,
)
from onceflow.sdk.protocol.batch_reading import RawRecord, decode_batch
from onceflow.sdk.protocol.control_batches import parse_control_batch

SEGMENT: Final = re.compile(r"(\d{20})\.log")
PARTITION: Final = re.compile(r"(.+)-(\d+)")
COMMIT: Final = "commit"
ABORT: Final = "abort"


class Batch(NamedTuple):
    """A batch that was found in a segment.

    Attributes:
        segment: The file.
        position: Where it begins there.
        header: Its header.
        data: All of its bytes.
    """

    segment: Path
    position: int
    header: BatchHeader
    data: bytes

    @property
    def marker(self) -> str | None:
        """What a control batch does to its producer's transaction; None for records.

        Raises:
            InvalidBatchError: It is damaged.
        """
        if not self.header.is_control:
            return None
        found = parse_control_batch(self.data)
        return COMMIT if found.is_commit else ABORT if found.is_abort else f"control {found.type}"

    def records(self) -> list[RawRecord]:
        """Its records.

        Raises:
            InvalidBatchError: They are damaged.
        """
        return decode_batch(self.data, header=self.header)


class Damage(NamedTuple):
    """The first place of a segment that is not a sound batch.

    Attributes:
        segment: The file.
        position: The place.
        reason: What is wrong there.
        bytes_left: Bytes from there to the file's end.
    """

    segment: Path
    position: int
    reason: str
    bytes_left: int


def segments_of(path: Path) -> list[Path]:
    """Return the segments of a partition's folder in order, or the one file that is named.

    Args:
        path: Folder of a partition, or a ``.log`` file.

    Raises:
        Failure: It is neither.
    """
    if path.is_file() and SEGMENT.fullmatch(path.name):
        return [path]
    found = sorted(each for each in path.glob("*.log") if SEGMENT.fullmatch(each.name))
    if not found:
        raise Failure(
            f"{path}: neither a partition's folder nor a segment such as {0:020}.log\n"
            "Next: name a folder such as DATA/orders-0; onceflow log verify DATA lists them",
            3,
        )
    return found


def partitions_of(path: Path) -> list[Path]:
    """Return the folders of partitions in a data folder, or the one that is named.

    Args:
        path: A broker's data folder, or a partition's.

    Raises:
        Failure: There is none.
    """
    if any(SEGMENT.fullmatch(each.name) for each in path.glob("*.log")):
        return [path]
    found = sorted(
        (each for each in path.iterdir() if each.is_dir() and PARTITION.fullmatch(each.name)),
        key=lambda each: (each.name.rpartition("-")[0], int(each.name.rpartition("-")[2])),
    )
    if not found:
        raise Failure(f"{path}: no partitions in this folder\nNext: name a data folder", 3)
    return found


def walk(segments: list[Path]) -> Iterator[Batch | Damage]:
    """Yield the batches of segments in order; a segment ends with what is no sound batch.

    Each batch is checked: its length, its checksum, and that its offset is above all before it.

    Args:
        segments: Files of one partition, in order.
    """
    least = 0
    for segment in segments:
        match = SEGMENT.fullmatch(segment.name)
        assert match is not None, "only segments are walked over"
        least = max(least, int(match[1]))
        size = segment.stat().st_size
        with segment.open("rb") as file:
            position = 0
            while position < size:
                found = _read_batch(file.fileno(), segment, position, size, least)
                yield found
                if isinstance(found, Damage):
                    break
                position += found.header.size_bytes
                least = found.header.next_offset


def _read_batch(
    descriptor: int, segment: Path, position: int, size: int, least: int
) -> Batch | Damage:
    left = size - position
    try:
        head = os.pread(descriptor, HEADER_SIZE, position)
        if len(head) < HEADER_SIZE:
            return Damage(segment, position, "the batch is cut off", left)
        header = parse_batch_header(head)
        if header.size_bytes < HEADER_SIZE or header.size_bytes > left:
            return Damage(segment, position, "the batch is cut off, or its length is wrong", left)
        data = os.pread(descriptor, header.size_bytes, position)
        if len(data) < header.size_bytes:
            return Damage(segment, position, "the batch is cut off", left)
        check_crc(data, 0, header)
    except InvalidBatchError as error:
        return Damage(segment, position, str(error), left)
    if header.base_offset < least:
        reason = f"offset {header.base_offset} follows, although {least} must be next or later"
        return Damage(segment, position, reason, left)
    return Batch(segment, position, header, data)


class Fates:
    """Tells how the transactions of a partition ended, by their markers.

    Args:
        segments: Files of the partition; markers outside of them are not known.
    """

    def __init__(self, segments: list[Path]) -> None:
        self._markers: dict[int, list[tuple[int, str]]] = {}
        self.open: dict[int, int] = {}
        """First offset of the open transaction, by producer id."""
        for batch in walk(segments):
            if isinstance(batch, Batch) and batch.header.is_transactional:
                self._note(batch)

    def _note(self, batch: Batch) -> None:
        producer = batch.header.producer_id
        if not batch.header.is_control:
            self.open.setdefault(producer, batch.header.base_offset)
            return
        try:
            marker = batch.marker
        except InvalidBatchError:
            return  # The walk that checks the content tells it.
        if marker in (COMMIT, ABORT):
            self._markers.setdefault(producer, []).append((batch.header.base_offset, marker))
            self.open.pop(producer, None)

    def of(self, header: BatchHeader) -> str | None:
        """Return "committed", "aborted" or "open"; None outside of transactions.

        Args:
            header: Header of a batch of the partition.
        """
        if not header.is_transactional or header.is_control:
            return None
        markers = self._markers.get(header.producer_id, [])
        index = bisect_left(markers, (header.last_offset, ""))
        if index == len(markers):
            return "open"
        return "committed" if markers[index][1] == COMMIT else "aborted"


class Verdict(NamedTuple):
    """What `verify` found in a partition.

    Attributes:
        segments: Number of files.
        batches: Number of sound batches.
        records: Number of records in them, markers left out.
        start: First offset, None for an empty log.
        end: Offset of the next record, None for an empty log.
        open: First offset of each open transaction, by producer id.
        damages: What is not sound, the first place of each segment.
        is_torn_end: Whether all that is wrong is the end of the last segment, as after a crash: a
            start cuts it off.
    """

    segments: int
    batches: int
    records: int
    start: int | None
    end: int | None
    open: dict[int, int]
    damages: list[Damage]
    is_torn_end: bool


def verify(folder: Path) -> Verdict:
    """Check every batch of a partition, with its records.

    Args:
        folder: The partition's folder.
    """
    segments = sorted(each for each in folder.glob("*.log") if SEGMENT.fullmatch(each.name))
    batches = records = 0
    start: int | None = None
    end: int | None = None
    damages: list[Damage] = []
    torn = True
    for found in walk(segments):
        if isinstance(found, Damage):
            damages.append(found)
            torn = torn and found.segment == segments[-1]
            continue
        start = found.header.base_offset if start is None else start
        end = found.header.next_offset
        batches += 1
        try:
            count = len(found.records())
            if found.marker is None:
                records += count
        except KafkaError as error:  # Damaged records under a right checksum, or no codec.
            damages.append(Damage(found.segment, found.position, str(error), 0))
            torn = False
    fates = Fates(segments)
    return Verdict(
        len(segments), batches, records, start, end, fates.open, damages, bool(damages) and torn
    )
