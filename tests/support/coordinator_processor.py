"""A transactional processor over a broker without sockets, and a storage that lets it die anywhere.

`DyingStorage` counts every write of bytes to a file; after the chosen one the process dies, with
that write whole or torn in the middle. `Processor` speaks the requests of both transaction versions
as a client would, on `SocketlessBroker`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from broker_requests import fetch_request, fetched, produce_request
from broker_state import SocketlessBroker
from broker_wire import batch, values_of
from coordinator_bench import ProcessDied

from onceflow.broker_lite.log import Buffer, LogFile, MemoryStorage
from onceflow.sdk.protocol.api.admin import CreateTopicsRequest
from onceflow.sdk.protocol.api.groups import OffsetFetchRequest, OffsetFetchResponse
from onceflow.sdk.protocol.api.produce import ProduceResponse
from onceflow.sdk.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from onceflow.sdk.protocol.batch_header import iter_batch_headers
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.records import parse_control_batch
from onceflow.sdk.protocol.schema import Request, Response

ResponseT = TypeVar("ResponseT", bound=Response)

READ_COMMITTED = 1
TRANSACTIONAL_ID = "t"
GROUP = "g"
INPUT, OUTPUT = "in", "out"


class _DyingFile:
    """A file in memory whose writes are counted by the storage."""

    def __init__(self, storage: DyingStorage, file: LogFile) -> None:
        self._storage = storage
        self._file = file

    @property
    def size(self) -> int:
        return self._file.size

    def create(self) -> None:
        self._file.create()

    def append(self, parts: Sequence[Buffer]) -> None:
        whole = b"".join(bytes(part) for part in parts)
        dies = self._storage.count()
        torn = dies and self._storage.torn
        self._file.append([whole[: len(whole) // 2] if torn else whole])
        if dies:
            raise ProcessDied

    def read(self, position: int, length: int) -> bytes:
        return bytes(self._file.read(position, length))

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class DyingStorage(MemoryStorage):
    """A data folder in memory whose process can die at any write or other change of it.

    Attributes:
        writes: Writes so far.
        die_after: The process dies with the write of that number; None for never.
        torn: Whether only the first half of that write reaches the file.
    """

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.die_after: int | None = None
        self.torn = False

    def count(self) -> bool:
        """Count a write; True when the process dies with it."""
        self.writes += 1
        if self.die_after is not None and self.writes >= self.die_after:
            self.die_after = None
            return True
        return False

    def open(self, path: str) -> LogFile:
        return _DyingFile(self, super().open(path))

    def replace(self, path: str, data: bytes, *, durable: bool = False) -> None:
        super().replace(path, data, durable=durable)  # atomic: never torn
        self._end()

    def make_directory(self, directory: str) -> None:
        super().make_directory(directory)
        self._end()

    def rename_directory(self, old: str, new: str) -> None:
        super().rename_directory(old, new)
        self._end()

    def remove_directory(self, directory: str) -> None:
        super().remove_directory(directory)
        self._end()

    def remove(self, path: str) -> None:
        super().remove(path)
        self._end()

    def _end(self) -> None:
        """A change that is never torn was made; the process may die with it."""
        if self.count():
            raise ProcessDied


class Processor:
    """Reads inputs 0..n-1, writes one output to each partition, commits the offset with them."""

    def __init__(
        self,
        storage: MemoryStorage,
        version: int,
        settings: dict[str, object] | None = None,
    ) -> None:
        self.broker = SocketlessBroker(settings, storage)
        self.version = version
        self.identity = (-1, -1)
        self.sequences: dict[int, int] = {}

    def ask(self, request: Request, api_version: int, response_type: type[ResponseT]) -> ResponseT:
        response = self.broker.ask(request, api_version)
        assert isinstance(response, response_type)
        return response

    def create_topics(self) -> None:
        wanted = [
            CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[]
            )
            for name, count in ((INPUT, 1), (OUTPUT, 2))
            if self.broker.state.topics.get(name) is None
        ]
        if wanted:
            self.broker.ask(CreateTopicsRequest(topics=wanted, timeout_ms=1000), 7)

    def init(self) -> None:
        """InitProducerId, asked again while the answer says so."""
        for _ in range(20):
            response = self.ask(
                InitProducerIdRequest(
                    transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=60_000
                ),
                5 if self.version >= 2 else 4,
                InitProducerIdResponse,
            )
            if response.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
            self.broker.advance(20)
        assert response.error_code == ErrorCode.NONE
        self.identity = (response.producer_id, response.producer_epoch)
        self.sequences.clear()

    def position(self) -> int:
        """The committed offset, once it is stable."""
        response = self.ask(
            OffsetFetchRequest(
                groups=[
                    OffsetFetchRequest.OffsetFetchRequestGroup(
                        group_id=GROUP,
                        topics=[
                            OffsetFetchRequest.OffsetFetchRequestTopics(
                                name=INPUT, partition_indexes=[0]
                            )
                        ],
                    )
                ],
                require_stable=True,
            ),
            9,
            OffsetFetchResponse,
        )
        partition = response.groups[0].topics[0].partitions[0]
        assert partition.error_code == ErrorCode.NONE
        return max(partition.committed_offset, 0)

    def outputs(self) -> list[str]:
        """What a read_committed consumer gets, aborted batches filtered as clients do."""
        found: list[str] = []
        for index in range(2):
            offset = 0
            while True:  # an answer ends with its segment at the latest
                request = fetch_request(
                    OUTPUT, partitions={index: offset}, isolation_level=READ_COMMITTED
                )
                data = fetched(self.broker.ask(request, 12))[index]
                records = data.records or b""
                if not records:
                    break
                found += _committed(records, data.aborted_transactions or [])
                offset = max(header.next_offset for _, header in iter_batch_headers(records))
        return found

    def send(self, index: int, value: str) -> int:
        """Produce one record to a partition of the output; the error code."""
        producer_id, epoch = self.identity
        sequence = self.sequences.get(index, 0)
        records = batch(
            value.encode(),
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            transactional=True,
        )
        response = self.ask(
            produce_request(OUTPUT, records, partition=index, transactional_id=TRANSACTIONAL_ID),
            12 if self.version >= 2 else 11,
            ProduceResponse,
        )
        self.sequences[index] = sequence + 1
        return response.responses[0].partition_responses[0].error_code

    def register(self) -> None:
        """Under version 1: partitions and the group join the transaction first."""
        producer_id, epoch = self.identity
        added = self.ask(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=TRANSACTIONAL_ID,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=[
                    AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                        name=OUTPUT, partitions=[0, 1]
                    )
                ],
            ),
            3,
            AddPartitionsToTxnResponse,
        )
        for result in added.results_by_topic_v3_and_below[0].results_by_partition:
            assert result.partition_error_code == ErrorCode.NONE
        offsets = self.ask(
            AddOffsetsToTxnRequest(
                transactional_id=TRANSACTIONAL_ID,
                producer_id=producer_id,
                producer_epoch=epoch,
                group_id=GROUP,
            ),
            3,
            AddOffsetsToTxnResponse,
        )
        assert offsets.error_code == ErrorCode.NONE

    def commit_offset(self, offset: int) -> int:
        """TxnOffsetCommit; the error code."""
        producer_id, epoch = self.identity
        response = self.ask(
            TxnOffsetCommitRequest(
                transactional_id=TRANSACTIONAL_ID,
                group_id=GROUP,
                producer_id=producer_id,
                producer_epoch=epoch,
                topics=[
                    TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                        name=INPUT,
                        partitions=[
                            TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                                partition_index=0,
                                committed_offset=offset,
                                committed_metadata="",
                            )
                        ],
                    )
                ],
            ),
            5 if self.version >= 2 else 3,
            TxnOffsetCommitResponse,
        )
        return response.topics[0].partitions[0].error_code

    def end(self, committed: bool) -> None:
        """EndTxn, asked again while the answer says so."""
        producer_id, epoch = self.identity
        request = EndTxnRequest(
            transactional_id=TRANSACTIONAL_ID,
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=committed,
        )
        for _ in range(20):
            response = self.ask(request, 5 if self.version >= 2 else 3, EndTxnResponse)
            if response.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
                break
            self.broker.advance(20)
        assert response.error_code == ErrorCode.NONE
        if self.version >= 2 and (response.producer_id, response.producer_epoch) != self.identity:
            self.identity = (response.producer_id, response.producer_epoch)
            self.sequences.clear()

    def process(self, position: int, *, committed: bool = True) -> None:
        """One whole transaction for one input."""
        if self.version < 2:
            self.register()
        for index in range(2):
            assert self.send(index, f"{position}:{index}") == ErrorCode.NONE
        assert self.commit_offset(position + 1) == ErrorCode.NONE
        self.end(committed)
        self.broker.advance(50)

    def run(self, inputs: int, *, abort_first: bool = False) -> None:
        """Go on from the committed offset to the last input."""
        self.create_topics()
        self.init()
        position = self.position()
        assert sorted(self.outputs()) == expected_outputs(position), "outputs equal the offset"
        while position < inputs:
            if abort_first:
                self.process(position, committed=False)
            self.process(position)
            position += 1
            assert self.position() == position


def expected_outputs(position: int) -> list[str]:
    """Outputs that go with an input offset, sorted."""
    return sorted(f"{done}:{index}" for done in range(position) for index in range(2))


def _committed(records: bytes | memoryview | bytearray, aborted: Sequence[object]) -> list[str]:
    data = bytes(records)
    pending = sorted((each.first_offset, each.producer_id) for each in aborted)  # type: ignore[attr-defined]
    skipped: set[int] = set()
    found: list[str] = []
    for position, header in iter_batch_headers(data):
        while pending and pending[0][0] <= header.last_offset:
            skipped.add(pending.pop(0)[1])
        if header.is_control:
            if parse_control_batch(data, position).is_abort:
                skipped.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipped):
            one = data[position : position + header.size_bytes]
            found += [value.decode() for value in values_of(one) if value is not None]
    return found
