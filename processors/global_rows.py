"""The rows of global tables, all of which every worker holds in memory.

Before it joins the group, a worker reads all partitions of each topic, outside of any group, from
the beginning to the last stable offset. It takes only committed records, and follows the topics
afterwards. It does not wait for the high watermark, since an open transaction of another program
would hold up the start. Rows are kept as bytes and decoded for each lookup, so that a function
cannot change the row that another one gets.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from onceflow.processors.changelog import ChangelogReader
from onceflow.processors.errors import DeserializationError, ProcessingError
from onceflow.processors.tables import AnyGlobalTable
from onceflow.processors.values import Decoder, decoder_for
from onceflow.processors.worker.inputs import REREADS_MAX
from onceflow.sdk.errors import NoOffsetForPartitionError, OffsetOutOfRangeError, RecordError
from onceflow.sdk.model.columns import RecordColumns
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions.colour import settle

logger: logging.Logger = logging.getLogger("onceflow.processors.state")


class GlobalRows:
    """All global tables of one worker.

    Args:
        tables: The declared tables.
        make_reader: Makes the reader of their topics; None if ``put`` gives the records.
    """

    def __init__(
        self,
        tables: Sequence[AnyGlobalTable] = (),
        make_reader: Callable[[], ChangelogReader | Awaitable[ChangelogReader]] | None = None,
    ) -> None:
        self.tables: dict[str, AnyGlobalTable] = {table.topic: table for table in tables}
        self._make_reader = make_reader
        self._reader: ChangelogReader | None = None
        self._rows: dict[str, dict[bytes, bytes]] = {topic: {} for topic in self.tables}
        self._decoders: dict[str, Decoder] = {
            table.topic: decoder_for(table.value_type, table.format, f"value of {table.name}")
            for table in tables
        }
        self._partitions: tuple[TopicPartition, ...] = ()
        self._ends: dict[TopicPartition, int] = {}
        self._begun = False
        self._bad: tuple[tuple[str, int, int], int] | None = None

    @property
    def complete(self) -> bool:
        """Whether the topics are read up to their ends at the start."""
        return not self.tables or (self._begun and not self._ends)

    def cover(self, counts: Mapping[str, int]) -> None:
        """Read these partitions; if some are new, read all again from the beginning.

        Args:
            counts: Partition count by topic; other topics are ignored.
        """
        wanted = tuple(
            TopicPartition(topic, number)
            for topic in self.tables
            for number in range(counts[topic])
        )
        if wanted != self._partitions:
            self._partitions = wanted
            self._begun = False

    async def step(self, timeout_ms: int) -> None:
        """Read the records that have arrived.

        Args:
            timeout_ms: Longest wait for records.

        Raises:
            ProcessingError: A record stays damaged, or does not fit the table's type.
        """
        if not self.tables:
            return
        if self._reader is None:
            assert self._make_reader is not None
            self._reader = await settle(self._make_reader())
        try:
            if not self._begun:
                await self._begin(self._reader)
            found = await settle(self._reader.poll(timeout_ms))
        except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
            logger.warning("global tables are read again from the beginning: %s", error)
            self._begun = False
            return
        except RecordError as error:
            self._note_bad(error)
            return
        for columns in found.values():
            self._take(columns)
        for partition, end in list(self._ends.items()):
            if await settle(self._reader.position(partition)) >= end:
                del self._ends[partition]

    def _note_bad(self, error: RecordError) -> None:
        """Count a damaged answer, which is fetched again: it may have been damaged on its way.

        Raises:
            ProcessingError: It stayed damaged ``REREADS_MAX`` times, so the log is damaged.
        """
        place = error.place or ("", -1, -1)
        known = self._bad
        failures = 1 if known is None or known[0] != place else known[1] + 1
        self._bad = (place, failures)
        if failures >= REREADS_MAX:
            raise ProcessingError(
                f"a global table cannot be read: {error}. It was fetched {failures} times; restore "
                "the log, or delete the records up to the damage and write their keys again",
                *place,
                failures,
            ) from error
        logger.warning(
            "a global table cannot be read (attempt %d of %d): %s", failures, REREADS_MAX, error
        )

    async def _begin(self, reader: ChangelogReader) -> None:
        bounds = await settle(reader.bounds(self._partitions, committed=True))
        for rows in self._rows.values():
            rows.clear()
        await settle(reader.assign({tp: start for tp, (start, _) in bounds.items()}))
        self._ends = {tp: end for tp, (start, end) in bounds.items() if start < end}
        self._begun = True

    def _take(self, columns: RecordColumns) -> None:
        for offset, key, value in zip(columns.offsets, columns.keys, columns.values, strict=True):
            self.put(columns.topic, columns.partition, offset, key, value)

    def put(
        self, topic: str, partition: int, offset: int, key: bytes | None, value: bytes | None
    ) -> None:
        """Keep a record; without a value it deletes its key, without a key it is ignored.

        Args:
            topic: A topic of a global table.
            partition: Partition of the record.
            offset: Offset of the record.
            key: Key of the record.
            value: Value of the record.

        Raises:
            ProcessingError: The value does not fit the table's type.
        """
        if key is None:
            return
        rows = self._rows[topic]
        if value is None:
            rows.pop(key, None)
            return
        try:
            self._decoders[topic](value)
        except DeserializationError as error:
            raise ProcessingError(
                f"global table {self.tables[topic].name}: {topic}-{partition}@{offset}: {error}; "
                "write a good value for the key, and let compaction remove this one, or declare "
                "the type that the topic holds",
                topic,
                partition,
                offset,
            ) from error
        rows[key] = value

    def get(self, topic: str, key: bytes | None) -> object:
        """Return the row of a key, or None.

        Args:
            topic: A topic of a global table.
            key: The key, as bytes.
        """
        kept = None if key is None else self._rows[topic].get(key)
        return None if kept is None else self._decoders[topic](kept)

    async def close(self) -> None:
        """Release the reader."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await settle(reader.close())
