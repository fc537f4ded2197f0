"""The process may die after any durable write: every input still counts exactly once.

Method: a processor reads inputs 0..N-1, writes one output for each and commits the input offset in
the same transaction (both protocol versions). One run without a death counts the durable writes;
then, for every n, the process dies right after the n-th one, a new one starts on the same disk, and
the processor goes on from the committed offset as a client would. A second death during recovery
is tried as well. At the end the committed outputs are the inputs, once each, in order.
"""

from __future__ import annotations

import contextlib

import pytest
from coordinator_bench import Bench, ProcessDied

from onceflow.broker_lite.coordinators.offset_commits import Committer, OffsetToCommit
from onceflow.broker_lite.coordinators.settings import TransactionSettings
from onceflow.broker_lite.coordinators.transactions.rules import PartitionCheck
from onceflow.broker_lite.topics import OFFSETS_TOPIC
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.error_codes import ErrorCode

INPUTS = 3
INPUT = TopicPartition("in", 0)
OUT = [TopicPartition("out", 0), TopicPartition("out", 1)]
COMMITTER = Committer("g")


def committed_offset(bench: Bench) -> int:
    """The processor's position; only read once no transaction can change it any more."""
    fetched = bench.groups.offsets.fetch("g", [INPUT], require_stable=True)[INPUT]
    assert fetched.error_code is ErrorCode.NONE
    return max(fetched.committed_offset, 0)


def outputs(bench: Bench) -> list[str]:
    return [value for partition in OUT for value in bench.disk.data[partition].committed_values()]


def process_one(
    bench: Bench, identity: tuple[int, int], position: int, version: int, *, abort_first: bool
) -> tuple[int, int]:
    """One transaction: two outputs and the offset; aborted once and done again when asked to."""
    index = bench.groups.partition_for("g")
    offsets = TopicPartition(OFFSETS_TOPIC, index)
    for committed in (False, True) if abort_first else (True,):
        check = PartitionCheck.ADD
        if version < 2:
            assert bench.add(*identity, *OUT) is ErrorCode.NONE
            assert bench.add(*identity, offsets) is ErrorCode.NONE
            check = PartitionCheck.REFUSE_OLD
        for partition in OUT:
            refused = bench.transactions.check_partitions(
                "t", *identity, [partition], check, bench.now_ms
            )
            assert not refused
            bench.disk.data[partition].produce(*identity, f"{position}:{partition.partition}")
        assert not bench.transactions.check_partitions(
            "t", *identity, [offsets], check, bench.now_ms
        )
        codes = bench.groups.offsets.commit_transactional(
            COMMITTER, *identity, [OffsetToCommit(INPUT, position + 1)], bench.now_ms
        )
        assert codes == {INPUT: ErrorCode.NONE}
        for _ in range(20):
            grant = bench.end(*identity, committed, version)
            if grant.error_code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                break
            bench.pass_ms(20)
        assert grant.error_code is ErrorCode.NONE
        identity = (grant.producer_id, grant.producer_epoch)
        bench.pass_ms(100)  # in the early-answer mode the markers come now
    return identity


def run_to_the_end(bench: Bench, version: int, *, abort_first: bool = False) -> None:
    identity = bench.identity()
    position = committed_offset(bench)
    assert sorted(outputs(bench)) == expected(position), "outputs and offset must agree"
    while position < INPUTS:
        identity = process_one(bench, identity, position, version, abort_first=abort_first)
        position += 1
        assert committed_offset(bench) == position


def expected(position: int) -> list[str]:
    return sorted(
        f"{index}:{partition.partition}" for index in range(position) for partition in OUT
    )


def new_bench(settings: TransactionSettings) -> Bench:
    bench = Bench(transaction_settings=settings)
    bench.disk.create("out", 2)
    return bench


def survive(bench: Bench, version: int, *deaths: int, abort_first: bool) -> None:
    """Run, dying after the given numbers of writes of each life."""
    for writes in deaths:
        bench.disk.die_after = bench.disk.writes + writes
        with contextlib.suppress(ProcessDied):  # a short life may end before its death
            bench.restart()
            run_to_the_end(bench, version, abort_first=abort_first)
        bench.disk.die_after = None
    bench.restart()
    run_to_the_end(bench, version, abort_first=abort_first)
    assert sorted(outputs(bench)) == expected(INPUTS)
    for partition in OUT:
        log = bench.disk.data[partition]
        own = [e.producer_id for e in log.entries if e.committed is None]
        assert not any(log.has_open_transaction(producer_id) for producer_id in own)


def count_writes(settings: TransactionSettings, version: int, *, abort_first: bool) -> int:
    bench = new_bench(settings)
    run_to_the_end(bench, version, abort_first=abort_first)
    return bench.disk.writes


MODES = pytest.mark.parametrize(
    ("version", "early"), [(0, False), (2, False), (0, True), (2, True)]
)


def settings_for(early: bool) -> TransactionSettings:
    return TransactionSettings(end_txn_early_answer=early, end_txn_marker_delay_ms=30)


@MODES
@pytest.mark.parametrize("abort_first", [False, True])
def test_death_after_any_write(version: int, early: bool, abort_first: bool) -> None:
    settings = settings_for(early)
    writes = count_writes(settings, version, abort_first=abort_first)
    assert writes > 20
    for death in range(1, writes + 1):
        bench = new_bench(settings)
        survive(bench, version, death, abort_first=abort_first)


@MODES
def test_second_death_during_recovery(version: int, early: bool) -> None:
    settings = settings_for(early)
    writes = count_writes(settings, version, abort_first=False)
    for death in range(1, writes + 1):
        for second in range(1, 8):
            bench = new_bench(settings)
            survive(bench, version, death, second, abort_first=False)


@pytest.mark.parametrize("version", [0, 2])
def test_decided_commit_is_finished_by_the_next_process(version: int) -> None:
    """Death between the decision and any of the markers never turns a commit into an abort."""
    for markers_written in range(4):
        bench = new_bench(TransactionSettings())
        identity = bench.identity()
        bench.add(*identity, *OUT)
        for partition in OUT:
            bench.disk.data[partition].produce(*identity, "x")
        bench.disk.die_after = bench.disk.writes + 1 + markers_written
        with pytest.raises(ProcessDied):
            bench.end(*identity, True, version)
        bench.restart()
        assert bench.state() == "CompleteCommit"
        for partition in OUT:
            log = bench.disk.data[partition]
            assert log.committed_values() == ["x"]
            assert len(log.markers) == 1, "a marker that was written is not written again"


def test_open_transaction_is_kept_over_a_restart_until_its_producer_ends_it() -> None:
    bench = new_bench(TransactionSettings())
    identity = bench.identity()
    bench.add(*identity, OUT[0])
    bench.restart()
    assert bench.state() == "Ongoing"
    assert bench.end(*identity).error_code is ErrorCode.NONE


def test_producer_ids_are_not_reused_when_the_note_of_blocks_is_lost() -> None:
    bench = new_bench(TransactionSettings())
    producer_id, _ = bench.identity("a")
    bench.disk.block = None
    bench.restart()
    assert bench.identity("b")[0] > producer_id
