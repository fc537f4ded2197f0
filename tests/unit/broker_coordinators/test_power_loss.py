"""Goal: what was acknowledged before a power loss may be gone under the default durability; what is
acknowledged after it holds, and nothing is given out twice.

Method: a broker without sockets on a folder in memory dies; some files lose their end, or go whole,
as if that had not reached the disk. The system's session tells whether the page cache is gone too:
a process that only died has lost nothing. The next broker is asked as clients would.
"""

from __future__ import annotations

import json
import logging

import pytest
from broker_state import SocketlessBroker
from coordinator_processor import GROUP, OUTPUT, TRANSACTIONAL_ID, Processor
from log_batches import NOW_MS, batch, idempotent

from onceflow.broker_lite.coordinators.classic.group import ClassicGroup
from onceflow.broker_lite.coordinators.group_admin import SKIPPED_GENERATIONS
from onceflow.broker_lite.coordinators.offsets import CommittedOffset
from onceflow.broker_lite.coordinators.transactions.coordinator import ProducerGrant
from onceflow.broker_lite.coordinators.transactions.states import TransactionState
from onceflow.broker_lite.log import MemoryStorage, PartitionLog
from onceflow.broker_lite.log.start_notes import START_NOTES_FILE
from onceflow.broker_lite.testing.failing_storage import FailingStorage
from onceflow.broker_lite.topics import OFFSETS_TOPIC, TRANSACTION_TOPIC
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.records import iter_batch_headers

ONE_PARTITION = {"transaction.state.log.num.partitions": 1, "offsets.topic.num.partitions": 1}
LOG_FILE = f"{0:020d}.log"
VERSIONS = pytest.mark.parametrize("version", [1, 2])


def processor_on(storage: MemoryStorage, version: int, **settings: object) -> Processor:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    processor = Processor(storage, version, {**ONE_PARTITION, **named})
    processor.create_topics()
    return processor


def die(processor: Processor) -> MemoryStorage:
    """The process ends; what it wrote is in the page cache."""
    manager = processor.broker.state.log_manager
    storage = manager._storage
    assert isinstance(storage, MemoryStorage)
    manager.close(clean=False)
    return storage


def lose_power(processor: Processor) -> MemoryStorage:
    """The machine ends; the test takes from the files what it likes."""
    storage = die(processor)
    storage.power_losses += 1
    return storage


def log_of(processor: Processor, topic: str, partition: int = 0) -> PartitionLog:
    log = processor.broker.state.topics.partition(topic, partition)
    assert log is not None
    return log


def keep_batches(storage: MemoryStorage, folder: str, count: int) -> None:
    """Only so many batches of a log had reached the disk."""
    data = storage.content[folder][LOG_FILE]
    ends = [position + header.size_bytes for position, header in iter_batch_headers(bytes(data))]
    del data[ends[count - 1] if count else 0 :]


def batches(storage: MemoryStorage, folder: str) -> int:
    return len(list(iter_batch_headers(bytes(storage.content[folder][LOG_FILE]))))


def init(processor: Processor, identity: tuple[int, int] = (-1, -1)) -> ProducerGrant:
    return processor.broker.state.transactions.init_producer_id(
        TRANSACTIONAL_ID, 60_000, *identity, processor.broker.now_ms
    )


# --- leader epochs


@pytest.mark.parametrize("lost", ["end of the log", "its epochs too", "all of it", "the notes"])
@pytest.mark.parametrize("power", [False, True])
def test_no_leader_epoch_is_given_twice(lost: str, power: bool) -> None:
    storage = MemoryStorage()
    broker = SocketlessBroker(storage=storage)
    broker.state.topics.create("t", 1, {}, NOW_MS)
    seen = {0}
    for number in range(4):
        log = broker.state.topics.partition("t", 0)
        assert log is not None
        seen.add(log.leader_epoch)
        for _ in range(3):
            log.append(batch(b"%d" % number), now_ms=NOW_MS)
        broker.state.log_manager.close(clean=False)
        storage.power_losses += power
        del storage.content["t-0"][LOG_FILE][200:]
        if lost == "its epochs too":
            storage.content["t-0"]["leader-epoch-checkpoint"].clear()
        elif lost == "all of it":
            del storage.content["t-0"]
        elif lost == "the notes":
            del storage.content[""][START_NOTES_FILE]
        broker = SocketlessBroker(storage=storage)
        if lost == "all of it":
            if number == 1:
                broker.state.topics.create("other", 1, {}, NOW_MS)
            broker.state.topics.create("t", 1, {}, NOW_MS)
        log = broker.state.topics.partition("t", 0)
        assert log is not None
        assert log.leader_epoch > max(seen), "an epoch that somebody may have seen comes again"
        assert log.end_offset_for_epoch(max(seen))[1] <= log.log_end_offset
        seen.add(log.leader_epoch)


def test_a_moved_leaders_epoch_is_noted_before_a_batch_carries_it() -> None:
    storage = FailingStorage()
    broker = SocketlessBroker(storage=storage)
    broker.state.topics.create("t", 1, {}, NOW_MS)
    log = broker.state.topics.partition("t", 0)
    assert log is not None
    log.begin_leader_epoch(7)
    noted = json.loads(storage.read_bytes(START_NOTES_FILE) or b"")
    assert noted["greatest_epoch"] == 7
    assert all(write.durable for write in storage.writes if write.path == START_NOTES_FILE)
    broker.state.log_manager.close(clean=False)
    inner = storage.inner
    inner.content["t-0"]["leader-epoch-checkpoint"].clear()
    again = SocketlessBroker(storage=inner)
    log = again.state.topics.partition("t", 0)
    assert log is not None
    assert log.leader_epoch == 8


def test_a_clean_stop_keeps_epochs_and_identities() -> None:
    processor = processor_on(MemoryStorage(), 2)
    processor.init()
    processor.process(0)
    identity = processor.identity
    manager = processor.broker.state.log_manager
    storage = manager._storage
    assert isinstance(storage, MemoryStorage)
    processor.broker.close()
    storage.power_losses += 1  # The machine was switched off afterwards.
    again = processor_on(storage, 2)
    assert not again.broker.state.log_manager.power_lost
    assert log_of(again, OUTPUT).leader_epoch == 0
    assert init(again, identity)[:2] == (ErrorCode.NONE, identity[0])


# --- coordinator epochs and markers


@VERSIONS
def test_a_commit_counts_after_the_transaction_log_lost_its_end(version: int) -> None:
    """Two kills raise the coordinator's epoch; a loss of its log must not take it back."""
    processor = processor_on(MemoryStorage(), version)
    processor.init()
    processor.process(0)
    storage = die(processor)
    kept = batches(storage, f"{TRANSACTION_TOPIC}-0")
    for _ in range(2):
        storage = die(processor_on(storage, version))
    processor = processor_on(storage, version)
    processor.init()
    processor.process(1)
    storage = die(processor)
    keep_batches(storage, f"{TRANSACTION_TOPIC}-0", kept)
    processor = processor_on(storage, version)
    markers = max(each.coordinator_epoch for each in log_of(processor, OUTPUT).producers())
    assert log_of(processor, TRANSACTION_TOPIC).leader_epoch > markers
    processor.init()
    processor.process(2)
    assert sorted(processor.outputs()) == [f"{n}:{i}" for n in range(3) for i in range(2)]
    assert log_of(processor, OUTPUT).last_stable_offset == log_of(processor, OUTPUT).high_watermark


@VERSIONS
def test_a_transaction_log_that_was_lost_whole_begins_above_all_markers(version: int) -> None:
    processor = processor_on(MemoryStorage(), version)
    processor.init()
    processor.process(0)
    for _ in range(3):
        processor = processor_on(die(processor), version)
    processor.init()
    processor.process(1)
    storage = lose_power(processor)
    del storage.content[f"{TRANSACTION_TOPIC}-0"]
    processor = processor_on(storage, version)
    processor.init()
    processor.process(2)
    assert {"2:0", "2:1"} <= set(processor.outputs())


# --- producers


@VERSIONS
@pytest.mark.parametrize("power", [False, True])
def test_no_identity_is_given_twice(version: int, power: bool) -> None:
    processor = processor_on(MemoryStorage(), version)
    processor.init()
    processor.process(0)
    storage = processor.broker.state.log_manager._storage
    assert isinstance(storage, MemoryStorage)
    kept = batches(storage, f"{TRANSACTION_TOPIC}-0")
    processor.init()
    later = processor.identity
    processor.process(1)
    storage = lose_power(processor) if power else die(processor)
    keep_batches(storage, f"{TRANSACTION_TOPIC}-0", kept)
    processor = processor_on(storage, version)
    processor.init()
    assert processor.identity[0] != later[0] or processor.identity[1] > later[1] + 1
    processor.process(2)
    outputs = processor.outputs()
    assert sorted(outputs) == [f"{n}:{i}" for n in range(3) for i in range(2)]


@VERSIONS
def test_an_epoch_that_no_log_remembers_is_not_given_again(version: int) -> None:
    """It was given to somebody who has not written yet, and the power failed."""
    processor = processor_on(MemoryStorage(), version)
    processor.init()
    processor.process(0)
    storage = processor.broker.state.log_manager._storage
    assert isinstance(storage, MemoryStorage)
    kept = batches(storage, f"{TRANSACTION_TOPIC}-0")
    processor.init()
    forgotten = processor.identity
    storage = lose_power(processor)
    keep_batches(storage, f"{TRANSACTION_TOPIC}-0", kept)
    processor = processor_on(storage, version)
    processor.init()
    assert processor.identity != forgotten
    assert processor.identity[0] != forgotten[0]


@VERSIONS
def test_after_a_power_loss_nobody_goes_on_under_an_old_identity(version: int) -> None:
    processor = processor_on(MemoryStorage(), version)
    processor.init()
    processor.process(0)
    identity = processor.identity
    storage = lose_power(processor)
    processor = processor_on(storage, version)
    transactions, now_ms = processor.broker.state.transactions, processor.broker.now_ms
    partitions = [TopicPartition(OUTPUT, 0)]
    refused = {ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert transactions.add_partitions(TRANSACTIONAL_ID, *identity, partitions, now_ms) in refused
    for committed in (True, False):
        end = transactions.end_transaction(
            TRANSACTIONAL_ID, *identity, committed, now_ms, transaction_version=version
        )
        assert end.error_code in refused
    assert init(processor, identity).error_code is ErrorCode.PRODUCER_FENCED
    grant = init(processor)
    assert grant.error_code is ErrorCode.NONE
    assert grant.producer_id != identity[0]
    # A second, clean start brings no old identity back either.
    processor.broker.close()
    processor = processor_on(storage, version)
    assert init(processor, identity).error_code is ErrorCode.PRODUCER_FENCED


@VERSIONS
@pytest.mark.parametrize("power", [False, True])
def test_an_open_transaction_outlives_a_process_and_no_power_loss(
    version: int, power: bool
) -> None:
    """Some of its records may be gone: its commit would promise them."""
    processor = processor_on(MemoryStorage(), version)
    processor.init()
    if version < 2:
        processor.register()
    for index in range(2):
        processor.send(index, f"0:{index}")
    identity = processor.identity
    storage = lose_power(processor) if power else die(processor)
    if power:
        keep_batches(storage, f"{OUTPUT}-1", 0)
    processor = processor_on(storage, version)
    processor.identity = identity
    grant = processor.broker.state.transactions.end_transaction(
        TRANSACTIONAL_ID, *identity, True, processor.broker.now_ms, transaction_version=version
    )
    if power:
        assert grant.error_code is not ErrorCode.NONE
        assert processor.outputs() == []
    else:
        assert grant.error_code is ErrorCode.NONE
        assert sorted(processor.outputs()) == ["0:0", "0:1"]
    for index in range(2):
        log = log_of(processor, OUTPUT, index)
        assert log.last_stable_offset == log.high_watermark
    processor.init()
    processor.process(1)
    assert {"1:0", "1:1"} <= set(processor.outputs())


@VERSIONS
def test_a_decision_is_carried_out_where_it_can_be_told_what_it_was_about(version: int) -> None:
    """The markers are lost, the decision is not.

    Below version 2 what is open may as well belong to a later transaction that was never decided;
    it is aborted then.
    """
    settings: dict[str, object] = {
        "onceflow_end_txn_early_answer": True,
        "onceflow_end_txn_marker_delay_ms": 1_000,
    }
    processor = processor_on(MemoryStorage(), version, **settings)
    processor.init()
    if version < 2:
        processor.register()
    processor.send(0, "0:0")
    processor.broker.state.transactions.end_transaction(
        TRANSACTIONAL_ID,
        *processor.identity,
        True,
        processor.broker.now_ms,
        transaction_version=version,
    )
    storage = lose_power(processor)
    processor = processor_on(storage, version)
    assert processor.outputs() == (["0:0"] if version >= 2 else [])
    entry = processor.broker.state.transactions.describe(TRANSACTIONAL_ID)
    assert not isinstance(entry, ErrorCode)
    assert entry.state is TransactionState.EMPTY
    log = log_of(processor, OUTPUT)
    assert log.last_stable_offset == log.high_watermark


def test_a_later_transaction_is_not_ended_by_an_earlier_ones_decision() -> None:
    """The decision on the first is the last that the transaction log kept."""
    processor = processor_on(MemoryStorage(), 2)
    processor.init()
    processor.send(0, "0:0")
    processor.end(True)
    storage = processor.broker.state.log_manager._storage
    assert isinstance(storage, MemoryStorage)
    complete = batches(storage, f"{TRANSACTION_TOPIC}-0")
    processor.send(0, "1:0")
    storage = lose_power(processor)
    keep_batches(storage, f"{TRANSACTION_TOPIC}-0", complete - 1)
    processor = processor_on(storage, 2)
    assert processor.outputs() == ["0:0"], "nobody committed the second one"
    log = log_of(processor, OUTPUT)
    assert log.last_stable_offset == log.high_watermark


def test_an_earlier_transaction_is_not_ended_by_a_later_ones_decision() -> None:
    """The marker that aborted the first is lost, with all that came after it in its partition."""
    settings: dict[str, object] = {
        "onceflow_end_txn_early_answer": True,
        "onceflow_end_txn_marker_delay_ms": 1_000,
    }
    processor = processor_on(MemoryStorage(), 2, **settings)
    processor.init()
    processor.send(0, "0:0")
    processor.end(False)
    processor.broker.advance(2_000)
    processor.send(0, "1:0")
    processor.send(1, "1:1")
    processor.end(True)
    storage = lose_power(processor)
    keep_batches(storage, f"{OUTPUT}-0", 1)
    processor = processor_on(storage, 2)
    assert processor.outputs() == ["1:1"]


def test_a_start_that_fails_half_way_is_made_again() -> None:
    processor = processor_on(MemoryStorage(), 2)
    processor.init()
    processor.process(0)
    identity = processor.identity
    storage = lose_power(processor)
    probe = FailingStorage(storage)
    started = Processor(probe, 2, ONE_PARTITION)  # type: ignore[arg-type]
    started.broker.state.log_manager.close(clean=False)
    writes = len(probe.writes)
    for number in range(writes):
        again = FailingStorage(probe.start)
        again.fail_write(number)
        try:
            first = Processor(again, 2, ONE_PARTITION)  # type: ignore[arg-type]
        except OSError:
            again.inner.close()
        else:
            first.broker.state.log_manager.close(clean=False)
        processor = Processor(again.inner, 2, ONE_PARTITION)
        assert init(processor, identity).error_code is ErrorCode.PRODUCER_FENCED
        assert init(processor).producer_id != identity[0]
        processor.broker.state.log_manager.close(clean=False)
        probe.start.close()


@pytest.mark.parametrize("durability", ["group", "always"])
def test_a_folder_that_lost_nothing_keeps_its_producers(durability: str) -> None:
    processor = processor_on(MemoryStorage(), 2, onceflow_durability=durability)
    processor.init()
    processor.process(0)
    identity = processor.identity
    storage = lose_power(processor)
    for mode in (durability, "kafka"):
        processor = processor_on(storage, 2, onceflow_durability=mode)
        grant = init(processor, identity)
        assert grant[:2] == (ErrorCode.NONE, identity[0])
        identity = grant[1:]
        storage = lose_power(processor)
    # The last run left its writes to the page cache.
    processor = processor_on(storage, 2, onceflow_durability=durability)
    assert init(processor, identity).error_code is ErrorCode.PRODUCER_FENCED


def test_idempotent_producers_go_on_where_their_log_was_cut() -> None:
    storage = MemoryStorage()
    broker = SocketlessBroker(storage=storage)
    broker.state.topics.create("t", 1, {}, NOW_MS)
    log = broker.state.topics.partition("t", 0)
    assert log is not None
    for sequence in range(4):
        log.append(idempotent(sequence, b"%d" % sequence), now_ms=NOW_MS)
    broker.state.log_manager.close(clean=False)
    storage.power_losses += 1
    keep_batches(storage, "t-0", 2)
    broker = SocketlessBroker(storage=storage)
    log = broker.state.topics.partition("t", 0)
    assert log is not None
    assert log.append(idempotent(2, b"new"), now_ms=NOW_MS).base_offset == 2
    # A producer id is never given again, whatever was lost.
    given = broker.state.transactions.init_producer_id(None, 0, -1, -1, NOW_MS).producer_id
    assert given > 7


# --- groups


@pytest.mark.parametrize("power", [False, True])
def test_a_power_loss_takes_no_generation_back(power: bool) -> None:
    processor = processor_on(MemoryStorage(), 2)
    state = processor.broker.state
    table = state.groups._table
    group = table.get_or_create("classic")
    group.protocol_type, group.generation_id = "consumer", 5
    table.write_generation(group, NOW_MS)
    storage = lose_power(processor) if power else die(processor)
    for _ in range(2):
        again = processor_on(storage, 2)
        found = again.broker.state.groups._table.find_or_create("classic")
        assert isinstance(found, ClassicGroup)
        assert found.generation_id == 5 + power * SKIPPED_GENERATIONS
        storage = die(again)


@pytest.mark.parametrize(
    ("leader_epoch", "power", "cut", "expected"),
    [(-1, True, True, 2), (-1, False, True, 2), (0, True, True, 9), (-1, False, False, 9)],
)
def test_an_offset_behind_the_end_of_its_log_goes_back_unless_its_epoch_tells(
    leader_epoch: int, power: bool, cut: bool, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    processor = processor_on(MemoryStorage(), 2)
    state = processor.broker.state
    log = log_of(processor, OUTPUT)
    for number in range(4):
        log.append(batch(b"%d" % number), now_ms=NOW_MS)
    table = state.groups._table
    partition = TopicPartition(OUTPUT, 0)
    offset = CommittedOffset(9, leader_epoch, "mine", NOW_MS)
    table.commit(table.find_or_create(GROUP), [(partition, offset)], NOW_MS)
    storage = lose_power(processor) if power else die(processor)
    data = storage.content[f"{OUTPUT}-0"][LOG_FILE]
    if cut and power:
        keep_batches(storage, f"{OUTPUT}-0", 2)
    elif cut:
        data[len(data) // 2 + 65] ^= 1  # The third of four.
    else:
        data += data[:50]  # A batch that was being written.
    with caplog.at_level(logging.WARNING):
        again = processor_on(storage, 2)
    found = again.broker.state.groups._table.find_or_create(GROUP).offsets.committed[partition]
    assert (found.committed_offset, found.committed_metadata) == (expected, "mine")
    told = [line for line in caplog.messages if "goes back" in line]
    assert bool(told) is (expected == 2)
    die(again)


def test_offsets_of_a_transaction_share_its_fate_after_a_power_loss() -> None:
    processor = processor_on(MemoryStorage(), 2)
    processor.init()
    processor.send(0, "0:0")
    processor.commit_offset(1)
    storage = lose_power(processor)
    processor = processor_on(storage, 2)
    assert processor.position() == 0
    log = log_of(processor, OFFSETS_TOPIC)
    assert log.last_stable_offset == log.high_watermark
    processor.init()
    processor.process(0)
    assert processor.position() == 1


# --- the notes


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"greatest_epoch": "x"}'])
def test_damaged_notes_count_as_a_power_loss(content: bytes) -> None:
    processor = processor_on(MemoryStorage(), 2)
    processor.init()
    identity = processor.identity
    storage = die(processor)
    storage.content[""][START_NOTES_FILE] = bytearray(content)
    processor = processor_on(storage, 2)
    assert processor.broker.state.log_manager.power_lost
    assert init(processor, identity).error_code is ErrorCode.PRODUCER_FENCED


def test_a_folder_without_topics_has_lost_nothing() -> None:
    storage = MemoryStorage()
    SocketlessBroker(storage=storage).state.log_manager.close(clean=False)
    storage.power_losses += 1
    broker = SocketlessBroker(storage=storage)
    noted = json.loads(bytes(storage.content[""][START_NOTES_FILE]))
    assert noted["session"] == storage.session()
    broker.close()
