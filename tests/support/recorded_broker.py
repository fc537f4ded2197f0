"""One run of a whole broker that records every write, with what was answered when.

The run produces (plain, idempotent, transactional of both outcomes), commits offsets, lets logs
roll, compacts, retains, deletes records, and creates, grows and deletes topics. Each answer is a
fact with the number of writes before its request and at its answer, so that for a disk that holds
the first n writes it is known what must be there, what may be, and what must not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from broker_requests import produce_request
from broker_state import START_MS
from coordinator_processor import Processor

from onceflow.broker_lite.log import MemoryStorage, PartitionLog, Storage
from onceflow.broker_lite.testing.failing_storage import Change, FailingStorage
from onceflow.sdk.protocol.api.produce import ProduceResponse
from onceflow.sdk.protocol.batch_header import iter_batch_headers
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.records import decode_batch, encode_batch

PLAIN, TABLE, DELETED, GROWN = "plain", "table", "deleted", "grown"
INPUTS = 5
PRODUCER_ID = 900_000
SETTINGS: dict[str, object] = {"log.cleaner.backoff.ms": 1000, "log.roll.ms": 4000}


class Fact(NamedTuple):
    """Something that was asked for and answered.

    Attributes:
        asked: Writes before the request.
        answered: Writes when the answer came.
        value: What it was.
    """

    asked: int
    answered: int
    value: object


class RecordedRun(Processor):
    """Drives the broker and notes facts.

    Attributes:
        plain: Values of the plain topic in the order in which they were sent.
        kept: Values of the compacted topic, as (key, value).
        committed: How many transactions were committed.
        starts: Log starts of the plain topic that DeleteRecords asked for.
        topics: Topics as (name, partitions); 0 partitions for a deletion.
    """

    def __init__(
        self, storage: Storage, settings: dict[str, object] | None = None, version: int = 2
    ) -> None:
        super().__init__(storage, version, {**SETTINGS, **(settings or {})})  # type: ignore[arg-type]
        self.plain: list[Fact] = []
        self.kept: list[Fact] = []
        self.committed: list[Fact] = []
        self.starts: list[Fact] = []
        self.topics: list[Fact] = []
        self._next_sequence = 0

    @property
    def _writes(self) -> int:
        storage = self.broker.state.log_manager._storage
        return len(storage.writes) if isinstance(storage, FailingStorage) else 0

    def _note(self, facts: list[Fact], value: object, work: Callable[[], object]) -> None:
        asked = self._writes
        work()
        # What is shared by requests goes to the disk when the event ends.
        self.broker.state.settle(self.broker.now_ms)
        facts.append(Fact(asked, self._writes, value))

    def write_plain(self, value: bytes, sequence: int) -> int:
        """One record to the plain topic by an idempotent producer; the error code."""
        return self._produce(
            PLAIN,
            [(self.broker.now_ms, b"k", value, [])],
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            base_sequence=sequence,
        )

    def _produce(self, topic: str, records: list[tuple[object, ...]], **identity: int) -> int:
        data = bytes(encode_batch(records, **identity))  # type: ignore[arg-type]
        response = self.ask(produce_request(topic, data), 9, ProduceResponse)
        return response.responses[0].partition_responses[0].error_code

    def _send_plain(self, value: bytes) -> None:
        assert self.write_plain(value, self._next_sequence) == ErrorCode.NONE
        self._next_sequence += 1

    def _send_kept(self, key: bytes, value: bytes) -> None:
        code = self._produce(TABLE, [(self.broker.now_ms, key, value, [])])
        assert code == ErrorCode.NONE

    def _create(self, name: str, partitions: int, configs: dict[str, str]) -> None:
        topics, now_ms = self.broker.state.topics, self.broker.now_ms
        self._note(
            self.topics,
            (name, partitions),
            lambda: topics.create(name, partitions, configs, now_ms),
        )

    def _change_topics(self, turn: int) -> None:
        topics, now_ms = self.broker.state.topics, self.broker.now_ms
        if turn == 1:
            self._create(DELETED, 3, {"retention.ms": "5000"})
            self._create(GROWN, 1, {})
        elif turn == 2:
            grown = topics.get(GROWN)
            assert grown is not None
            self._note(self.topics, (GROWN, 3), lambda: topics.add_partitions(grown, 3, now_ms))
        elif turn == 3:
            deleted = topics.get(DELETED)
            assert deleted is not None
            self._note(self.topics, (DELETED, 0), lambda: topics.delete(deleted, now_ms))
            log = topics.partition(PLAIN, 0)
            assert log is not None
            self._note(self.starts, 3, lambda: log.delete_records_before(3))

    def record(self) -> None:
        """The whole run."""
        compacted = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
        self._create(PLAIN, 1, {"index.interval.bytes": "100"})
        self._create(TABLE, 1, compacted)
        self.create_topics()
        self.init()
        for turn in range(INPUTS):
            for number in range(2):
                value = b"p%d" % (turn * 2 + number)
                self._note(self.plain, value, lambda value=value: self._send_plain(value))
                pair = (b"k%d" % number, b"v%d" % turn)
                self._note(self.kept, pair, lambda pair=pair: self._send_kept(*pair))
            self._change_topics(turn)
            if turn % 2:
                self.process(turn, committed=False)
            self._note(self.committed, turn, lambda turn=turn: self.process(turn))
            for _ in range(8):  # compaction, rolls and retention come with time
                self.broker.advance(1000)
            self.broker.state.log_manager.checkpoint(self.broker.now_ms)
            self.broker.state.log_manager.apply_retention(self.broker.now_ms)


class Recovered(RecordedRun):
    """The broker on what a disk holds, and what is in it."""

    def __init__(
        self, disk: MemoryStorage, settings: dict[str, object] | None, version: int
    ) -> None:
        super().__init__(disk, settings, version)
        self.broker.now_ms = START_MS + 3_600_000

    def records(self, topic: str) -> list[tuple[int, bytes | None, bytes | None]]:
        """Offset, key and value of all that can be read of partition 0."""
        log = self.broker.state.topics.partition(topic, 0)
        return [] if log is None else list(_records(log))

    def partitions(self, name: str) -> int:
        """Partitions of a topic, 0 if there is none."""
        topic = self.broker.state.topics.get(name)
        return 0 if topic is None else len(topic.partitions)


def _records(log: PartitionLog) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    offset = log.log_start_offset
    while offset < log.high_watermark:
        data = log.read(offset, 1 << 20).records
        for position, header in iter_batch_headers(data):
            for record in decode_batch(data, position, header=header):
                if record.offset >= offset and not header.is_control:
                    yield record.offset, record.key, record.value
            offset = header.next_offset
        if not len(data):
            return


def check_recovered(run: RecordedRun, again: Recovered, writes: int, *, lossy: bool) -> None:
    """Hold a broker that started on the first writes of a run against the facts.

    Args:
        run: The recorded run.
        again: The broker.
        writes: How many writes the disk has seen.
        lossy: Whether what was answered may be missing (a power loss in mode ``kafka``).
    """
    _check_plain(run, again, writes, lossy=lossy)
    _check_table(run, again, writes, lossy=lossy)
    if not lossy:
        _check_topics(run, again, writes)
    done = sum(fact.answered <= writes for fact in run.committed)
    begun = sum(fact.asked < writes for fact in run.committed)
    if again.partitions("out") == 2:
        outputs = again.outputs()
        assert len(outputs) == len(set(outputs)), f"repeated: {outputs}"
        allowed = {f"{turn}:{index}" for turn in range(begun) for index in range(2)}
        assert set(outputs) <= allowed
        if not lossy:
            assert {f"{turn}:{index}" for turn in range(done) for index in range(2)} <= set(outputs)
            again.init()  # ends what was open, as the next producer does
            position = again.position()
            outputs = again.outputs()
            assert done <= position <= begun
            assert len(outputs) == 2 * position, "outputs and offset are one transaction"
    else:
        assert lossy or not done


def _check_plain(run: RecordedRun, again: Recovered, writes: int, *, lossy: bool) -> None:
    values = [fact.value for fact in run.plain]
    found = again.records(PLAIN)
    assert [(offset, values[offset]) for offset, _, _ in found] == [
        (offset, value) for offset, _, value in found
    ], "each record once, at its offset"
    log = again.broker.state.topics.partition(PLAIN, 0)
    if log is None:
        assert lossy or not any(fact.answered <= writes for fact in run.plain)
        return
    start = max((fact.value for fact in run.starts if fact.asked < writes), default=0)
    assert log.log_start_offset <= int(str(start))
    if lossy:
        return
    safe = max((fact.value for fact in run.starts if fact.answered <= writes), default=0)
    assert log.log_start_offset >= int(str(safe))
    answered = sum(fact.answered <= writes for fact in run.plain)
    assert log.high_watermark >= answered
    assert [offset for offset, _, _ in found] == list(
        range(log.log_start_offset, log.high_watermark)
    )


def _check_table(run: RecordedRun, again: Recovered, writes: int, *, lossy: bool) -> None:
    """Whatever compaction did, the newest answered value of each key, or a later one, is there."""
    found = again.records(TABLE)
    newest = {key: value for _, key, value in found}
    order = {fact.value: number for number, fact in enumerate(run.kept)}
    seen = [order[key, value] for _, key, value in found]
    assert seen == sorted(set(seen)), "in order, and once each"
    if lossy:
        return
    for fact in run.kept:
        key, _ = fact.value  # type: ignore[misc]
        if fact.answered <= writes:
            assert order[key, newest[key]] >= order[fact.value]


def _check_topics(run: RecordedRun, again: Recovered, writes: int) -> None:
    for name in (PLAIN, TABLE, DELETED, GROWN):
        facts = [fact for fact in run.topics if fact.value[0] == name]  # type: ignore[index]
        safe = [fact.value[1] for fact in facts if fact.answered <= writes]  # type: ignore[index]
        may = [fact.value[1] for fact in facts if fact.asked < writes < fact.answered]  # type: ignore[index]
        allowed = {safe[-1] if safe else 0, *may}
        assert again.partitions(name) in allowed, f"{name} has {again.partitions(name)}"


def finish(run: RecordedRun, again: Recovered) -> None:
    """Go on as the clients would: repeat what is unanswered, end with everything once."""
    log = again.broker.state.topics.partition(PLAIN, 0)
    if log is not None:
        values = [fact.value for fact in run.plain]
        end = log.log_end_offset
        for sequence in range(max(0, end - 2), min(end + 1, len(values))):
            value = values[sequence]
            assert isinstance(value, bytes)
            assert again.write_plain(value, sequence) == ErrorCode.NONE
        found = [value for _, _, value in again.records(PLAIN)]
        assert len(found) == len(set(found))
        assert log.log_end_offset == max(end, min(end + 1, len(values)))
    again.run(INPUTS + 1)
    assert sorted(again.outputs()) == sorted(
        f"{turn}:{index}" for turn in range(INPUTS + 1) for index in range(2)
    )
    for topic in again.broker.state.topics:
        for partition in topic.partitions:
            assert partition.last_stable_offset == partition.high_watermark


def record_run(
    mode: str = "kafka", version: int = 2, power: bool = False
) -> tuple[RecordedRun, FailingStorage]:
    """Record a run; ``power`` for a storage that makes names durable, as the mode's would."""
    storage = FailingStorage(durable=power and mode != "kafka")
    run = RecordedRun(storage, {"onceflow.durability": mode}, version)
    run.record()
    kinds = {write.change for write in storage.writes}
    assert kinds >= {Change.RENAME, Change.RENAME_DIRECTORY, Change.REMOVE, Change.APPEND}
    return run, storage


def torn_sizes(storage: FailingStorage, number: int, chance: random.Random) -> list[int | None]:
    """How the write in work may be cut: not there, or some of its bytes."""
    size = len(storage.writes[number].data) if number < len(storage.writes) else 0
    return [None, chance.randrange(1, size)] if size > 1 else [None]
