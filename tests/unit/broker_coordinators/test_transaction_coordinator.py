"""Rules of the transaction coordinator, one test each, named after the trap where there is one.

Method: the coordinator runs on storage in memory with a hand-moved clock (`coordinator_bench`).
"""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from coordinator_bench import Bench, FakePartition

from onceflow.broker_lite.coordinators.settings import TransactionSettings
from onceflow.broker_lite.coordinators.transactions.states import (
    LEGAL_PREDECESSORS,
    TransactionEntry,
    TransactionState,
)
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.error_codes import ErrorCode

P0, P1 = TopicPartition("out", 0), TopicPartition("out", 1)
TV1, TV2 = 0, 2


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.disk.create("out", 2)
    return bench


def log(bench: Bench, partition: TopicPartition = P0) -> FakePartition:
    return bench.disk.data[partition]


def force_epoch(bench: Bench, epoch: int, transactional_id: str = "t") -> int:
    """Put the id at an epoch without a long walk there; gives the producer id."""
    grant = bench.init(transactional_id)
    table = bench.transactions._log  # the table of entries has no public way to jump
    entry = table.get(transactional_id)
    assert entry is not None
    table.put(replace(entry, producer_epoch=epoch), bench.now_ms)
    return grant.producer_id


class TestStates:
    def test_ids_are_the_ones_stored_by_kafka(self) -> None:
        assert [(state.value, state.label) for state in TransactionState] == [
            (0, "Empty"),
            (1, "Ongoing"),
            (2, "PrepareCommit"),
            (3, "PrepareAbort"),
            (4, "CompleteCommit"),
            (5, "CompleteAbort"),
            (6, "Dead"),
            (7, "PrepareEpochFence"),
        ]

    def test_every_state_has_legal_predecessors(self) -> None:
        assert set(LEGAL_PREDECESSORS) == set(TransactionState)

    def test_an_illegal_step_is_a_bug_and_says_so(self) -> None:
        entry = TransactionEntry("t", 1, 0, 1000, TransactionState.PREPARE_COMMIT, 0)
        with pytest.raises(AssertionError, match="PrepareCommit may not become Ongoing"):
            entry.with_partitions([P0], 1, TV1)


class TestInitProducerId:
    def test_null_id_gives_a_fresh_identity_each_time_trap_50(self, bench: Bench) -> None:
        grants = [
            bench.transactions.init_producer_id(None, 0, -1, -1, bench.now_ms) for _ in range(3)
        ]
        assert [grant.producer_epoch for grant in grants] == [0, 0, 0]
        assert len({grant.producer_id for grant in grants}) == 3

    def test_empty_id_is_an_invalid_request(self, bench: Bench) -> None:
        assert bench.init("").error_code is ErrorCode.INVALID_REQUEST

    @pytest.mark.parametrize("identity", [(5, -1), (-1, 5)])
    def test_half_an_identity_is_an_invalid_request(
        self, bench: Bench, identity: tuple[int, int]
    ) -> None:
        assert bench.init("t", *identity).error_code is ErrorCode.INVALID_REQUEST

    @pytest.mark.parametrize("timeout_ms", [-1, 0, 900_001])
    def test_timeout_out_of_range_trap_47(self, bench: Bench, timeout_ms: int) -> None:
        grant = bench.init("t", timeout_ms=timeout_ms)
        assert grant.error_code is ErrorCode.INVALID_TRANSACTION_TIMEOUT

    def test_longest_timeout_is_accepted(self, bench: Bench) -> None:
        assert bench.init("t", timeout_ms=900_000).error_code is ErrorCode.NONE

    def test_each_newcomer_raises_the_epoch(self, bench: Bench) -> None:
        first, second = bench.init(), bench.init()
        assert (first.producer_epoch, second.producer_epoch) == (0, 1)
        assert first.producer_id == second.producer_id

    def test_current_identity_is_bumped_trap_39(self, bench: Bench) -> None:
        first = bench.init()
        second = bench.init("t", first.producer_id, first.producer_epoch)
        assert second == (ErrorCode.NONE, first.producer_id, 1)

    def test_last_epoch_again_gives_the_same_result_trap_39(self, bench: Bench) -> None:
        producer_id = bench.init().producer_id
        assert bench.init("t", producer_id, 0).producer_epoch == 1
        assert bench.init("t", producer_id, 0) == (ErrorCode.NONE, producer_id, 1)
        assert bench.init("t", producer_id, 0) == (ErrorCode.NONE, producer_id, 1)

    def test_older_epoch_is_fenced_trap_39(self, bench: Bench) -> None:
        producer_id = bench.init().producer_id
        bench.init("t", producer_id, 0)
        bench.init("t", producer_id, 1)
        assert bench.init("t", producer_id, 0).error_code is ErrorCode.PRODUCER_FENCED

    def test_a_newcomer_leaves_no_way_back_for_the_old_epoch(self, bench: Bench) -> None:
        producer_id = bench.init().producer_id
        bench.init()
        assert bench.init("t", producer_id, 0).error_code is ErrorCode.PRODUCER_FENCED

    def test_another_producer_id_is_fenced(self, bench: Bench) -> None:
        producer_id = bench.init().producer_id
        assert bench.init("t", producer_id + 1, 0).error_code is ErrorCode.PRODUCER_FENCED

    def test_identity_for_an_unknown_id_is_accepted(self, bench: Bench) -> None:
        assert bench.init("t", 77, 3).error_code is ErrorCode.NONE

    def test_exhausted_epoch_takes_a_new_producer_id_trap_40(self, bench: Bench) -> None:
        producer_id = force_epoch(bench, 32_765)
        assert bench.init("t").producer_epoch == 32_766
        grant = bench.init("t")
        assert grant.producer_epoch == 0
        assert grant.producer_id != producer_id

    def test_retry_after_rotation_is_recognised_trap_40(self, bench: Bench) -> None:
        producer_id = force_epoch(bench, 32_766)
        grant = bench.init("t", producer_id, 32_766)
        assert grant.producer_epoch == 0
        assert bench.init("t", producer_id, 32_766) == grant
        assert bench.init("t", producer_id, 32_766) == grant

    def test_fenced_caller_at_an_exhausted_epoch(self, bench: Bench) -> None:
        producer_id = force_epoch(bench, 32_766)
        assert bench.init("t", producer_id, 5).error_code is ErrorCode.PRODUCER_FENCED

    @pytest.mark.parametrize("version", [TV1, TV2])
    def test_open_transaction_is_fenced_and_aborted_trap_42(self, version: int) -> None:
        bench = Bench(transaction_settings=TransactionSettings(transaction_version=version))
        bench.disk.create("out", 2)
        producer_id, epoch = bench.identity()
        bench.add(producer_id, epoch, P0)
        log(bench).produce(producer_id, epoch, "a")
        assert bench.init().error_code is ErrorCode.CONCURRENT_TRANSACTIONS
        assert bench.state() == "CompleteAbort"
        assert [(m.producer_epoch, m.committed) for m in log(bench).markers] == [(epoch + 1, False)]
        # The fencing epoch is never given out: the second call raises it again (FC-09).
        assert bench.init().producer_epoch == epoch + 2
        assert bench.end(producer_id, epoch).error_code is ErrorCode.PRODUCER_FENCED

    def test_fencing_at_the_last_epoch_then_takes_a_new_producer_id(self, bench: Bench) -> None:
        producer_id = force_epoch(bench, 32_766)
        bench.add(producer_id, 32_766, P0)
        assert bench.init().error_code is ErrorCode.CONCURRENT_TRANSACTIONS
        assert log(bench).markers[0].producer_epoch == 32_767
        grant = bench.init()
        assert grant.producer_epoch == 0
        assert grant.producer_id != producer_id

    def test_storage_failure_is_retriable_and_changes_nothing(self, bench: Bench) -> None:
        bench.disk.transaction_state.fail_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert bench.init().error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        bench.disk.transaction_state.fail_with = None
        assert bench.init().producer_epoch == 0


class TestPartitions:
    def test_first_partition_begins_the_transaction(self, bench: Bench) -> None:
        identity = bench.identity()
        assert bench.state() == "Empty"
        assert bench.add(*identity, P0) is ErrorCode.NONE
        assert bench.state() == "Ongoing"

    def test_adding_again_writes_nothing_trap_48(self, bench: Bench) -> None:
        identity = bench.identity()
        bench.add(*identity, P0, P1)
        writes = bench.disk.writes
        assert bench.add(*identity, P1) is ErrorCode.NONE
        assert bench.disk.writes == writes

    def test_complete_state_begins_the_next_one_trap_48(self, bench: Bench) -> None:
        identity = bench.identity()
        bench.add(*identity, P0)
        bench.end(*identity)
        bench.pass_ms(5_000)
        assert bench.add(*identity, P1) is ErrorCode.NONE
        entry = bench.transactions.describe("t")
        assert isinstance(entry, TransactionEntry)
        assert entry.partitions == {P1}
        assert entry.start_ms == bench.now_ms

    def test_unknown_id_and_wrong_identity(self, bench: Bench) -> None:
        producer_id, epoch = bench.identity()
        unknown = bench.add(producer_id, epoch, P0, transactional_id="other")
        assert unknown is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert bench.add(producer_id + 1, epoch, P0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert bench.add(producer_id, epoch + 1, P0) is ErrorCode.PRODUCER_FENCED
        empty = bench.add(producer_id, epoch, P0, transactional_id="")
        assert empty is ErrorCode.INVALID_REQUEST

    def test_verify_only_adds_nothing(self, bench: Bench) -> None:
        identity = bench.identity()
        bench.add(*identity, P0)
        assert bench.transactions.verify_partitions("t", *identity, [P0, P1]) == {
            P0: ErrorCode.NONE,
            P1: ErrorCode.TRANSACTION_ABORTABLE,
        }


class TestProduceCheck:
    def check(self, bench: Bench, identity: tuple[int, int], version: int) -> ErrorCode:
        codes = bench.transactions.verify_or_add("t", *identity, [P0], version, bench.now_ms)
        return codes.get(P0, ErrorCode.NONE)

    def test_registered_partition_passes(self, bench: Bench) -> None:
        identity = bench.identity()
        bench.add(*identity, P0)
        assert self.check(bench, identity, 9) is ErrorCode.NONE

    @pytest.mark.parametrize(
        ("version", "code"),
        [(9, ErrorCode.INVALID_TXN_STATE), (11, ErrorCode.TRANSACTION_ABORTABLE)],
    )
    def test_partition_outside_of_the_transaction_trap_46(
        self, bench: Bench, version: int, code: ErrorCode
    ) -> None:
        identity = bench.identity()
        bench.add(*identity, P1)
        assert self.check(bench, identity, version) is code

    @pytest.mark.parametrize("version", [9, 11])
    def test_late_produce_after_the_marker_is_refused_trap_46(
        self, bench: Bench, version: int
    ) -> None:
        identity = bench.identity()
        bench.add(*identity, P0)
        assert self.check(bench, identity, version) is ErrorCode.NONE
        bench.end(*identity)
        assert self.check(bench, identity, version) is not ErrorCode.NONE

    def test_version_12_adds_trap_46(self, bench: Bench) -> None:
        identity = bench.identity()
        assert self.check(bench, identity, 12) is ErrorCode.NONE
        assert bench.state() == "Ongoing"

    def test_late_version_12_produce_is_fenced_by_the_new_epoch_trap_45(self, bench: Bench) -> None:
        identity = bench.identity()
        self.check(bench, identity, 12)
        bench.end(*identity, version=TV2)
        assert self.check(bench, identity, 12) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert bench.state() == "CompleteCommit"

    def test_fenced_producer_is_told_invalid_epoch_on_produce(self, bench: Bench) -> None:
        identity = bench.identity()
        bench.identity()
        assert self.check(bench, identity, 9) is ErrorCode.INVALID_PRODUCER_EPOCH

    @pytest.mark.parametrize("version", [9, 12])
    def test_while_markers_lag_the_sender_is_told_to_retry(self, version: int) -> None:
        bench = Bench(
            transaction_settings=TransactionSettings(
                end_txn_early_answer=True, end_txn_marker_delay_ms=50
            )
        )
        identity = bench.identity()
        bench.add(*identity, P0)
        bench.end(*identity)
        assert self.check(bench, identity, version) is ErrorCode.NOT_ENOUGH_REPLICAS

    def test_storage_failure_while_adding_is_retriable(self, bench: Bench) -> None:
        identity = bench.identity()
        bench.disk.transaction_state.fail_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert self.check(bench, identity, 12) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert bench.state() == "Empty"


class TestEndVersion1:
    @pytest.mark.parametrize("committed", [True, False])
    def test_markers_are_written_before_the_answer(self, bench: Bench, committed: bool) -> None:
        producer_id, epoch = bench.identity()
        bench.add(producer_id, epoch, P0, P1)
        log(bench).produce(producer_id, epoch, "a")
        assert bench.end(producer_id, epoch, committed) == (ErrorCode.NONE, producer_id, epoch)
        assert bench.state() == ("CompleteCommit" if committed else "CompleteAbort")
        for partition in (P0, P1):
            marker = log(bench, partition).markers[-1]
            assert (marker.producer_epoch, marker.committed) == (epoch, committed)

    def test_empty_state_is_invalid_fc_08(self, bench: Bench) -> None:
        identity = bench.identity()
        assert bench.end(*identity).error_code is ErrorCode.INVALID_TXN_STATE
        assert bench.end(*identity, committed=False).error_code is ErrorCode.INVALID_TXN_STATE

    @pytest.mark.parametrize("committed", [True, False])
    def test_repeated_end_trap_44(self, bench: Bench, committed: bool) -> None:
        identity = bench.identity()
        bench.add(*identity, P0)
        bench.end(*identity, committed)
        assert bench.end(*identity, committed).error_code is ErrorCode.NONE
        assert bench.end(*identity, not committed).error_code is ErrorCode.INVALID_TXN_STATE
        assert len(log(bench).markers) == 1

    def test_unknown_id_and_wrong_identity(self, bench: Bench) -> None:
        producer_id, epoch = bench.identity()
        mapping = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert bench.end(producer_id, epoch, transactional_id="x").error_code is mapping
        assert bench.end(producer_id + 1, epoch).error_code is mapping
        assert bench.end(producer_id, epoch + 1).error_code is ErrorCode.PRODUCER_FENCED
        empty = bench.end(producer_id, epoch, transactional_id="")
        assert empty.error_code is ErrorCode.INVALID_REQUEST


class TestEndVersion2:
    """Every cell of KIP-890's table of ends."""

    def begun(self, bench: Bench) -> tuple[int, int]:
        identity = bench.identity()
        assert not bench.transactions.verify_or_add("t", *identity, [P0], 12, bench.now_ms)
        log(bench).produce(*identity, "a")
        return identity

    @pytest.mark.parametrize("committed", [True, False])
    def test_epoch_rises_and_the_marker_carries_the_new_one_trap_45(
        self, bench: Bench, committed: bool
    ) -> None:
        producer_id, epoch = self.begun(bench)
        grant = bench.end(producer_id, epoch, committed, TV2)
        assert grant == (ErrorCode.NONE, producer_id, epoch + 1)
        assert log(bench).markers[-1].producer_epoch == epoch + 1

    @pytest.mark.parametrize("committed", [True, False])
    def test_retry_is_recognised_one_epoch_later_trap_44(
        self, bench: Bench, committed: bool
    ) -> None:
        producer_id, epoch = self.begun(bench)
        grant = bench.end(producer_id, epoch, committed, TV2)
        assert bench.end(producer_id, epoch, committed, TV2) == grant
        other = bench.end(producer_id, epoch, not committed, TV2)
        assert other.error_code is ErrorCode.INVALID_TXN_STATE
        assert len(log(bench).markers) == 1

    def test_retry_is_recognised_after_a_restart(self, bench: Bench) -> None:
        producer_id, epoch = self.begun(bench)
        grant = bench.end(producer_id, epoch, True, TV2)
        bench.restart()
        assert bench.end(producer_id, epoch, True, TV2) == grant

    def test_abort_of_nothing_succeeds_and_bumps(self, bench: Bench) -> None:
        producer_id, epoch = bench.identity()
        assert bench.end(producer_id, epoch, False, TV2) == (ErrorCode.NONE, producer_id, epoch + 1)
        again = bench.end(producer_id, epoch + 1, False, TV2)
        assert again == (ErrorCode.NONE, producer_id, epoch + 2)

    def test_abort_after_commit_with_the_current_epoch_bumps(self, bench: Bench) -> None:
        producer_id, epoch = self.begun(bench)
        bench.end(producer_id, epoch, True, TV2)
        grant = bench.end(producer_id, epoch + 1, False, TV2)
        assert grant == (ErrorCode.NONE, producer_id, epoch + 2)

    def test_commit_of_nothing_is_invalid(self, bench: Bench) -> None:
        producer_id, epoch = bench.identity()
        invalid = ErrorCode.INVALID_TXN_STATE
        assert bench.end(producer_id, epoch, True, TV2).error_code is invalid
        bench.end(producer_id, epoch, False, TV2)
        assert bench.end(producer_id, epoch + 1, True, TV2).error_code is invalid

    def test_retry_in_empty_state_is_fenced(self, bench: Bench) -> None:
        producer_id, _ = bench.identity()
        bench.identity()
        for committed in (True, False):
            code = bench.end(producer_id, 0, committed, TV2).error_code
            assert code is ErrorCode.PRODUCER_FENCED

    def test_older_epoch_is_fenced(self, bench: Bench) -> None:
        producer_id, epoch = self.begun(bench)
        bench.end(producer_id, epoch, True, TV2)
        bench.end(producer_id, epoch + 1, False, TV2)
        assert bench.end(producer_id, epoch, True, TV2).error_code is ErrorCode.PRODUCER_FENCED

    def test_exhausted_epoch_hands_out_a_new_producer_id_trap_40(self, bench: Bench) -> None:
        producer_id = force_epoch(bench, 32_766)
        bench.transactions.verify_or_add("t", producer_id, 32_766, [P0], 12, bench.now_ms)
        grant = bench.end(producer_id, 32_766, True, TV2)
        assert grant.error_code is ErrorCode.NONE
        assert grant.producer_id != producer_id
        assert grant.producer_epoch == 0
        marker = log(bench).markers[-1]
        assert (marker.producer_id, marker.producer_epoch) == (producer_id, 32_767)
        assert bench.end(producer_id, 32_766, True, TV2) == grant
        bench.restart()
        assert bench.end(producer_id, 32_766, True, TV2) == grant


class TestEarlyAnswer:
    @pytest.fixture
    def early(self) -> Bench:
        bench = Bench(
            transaction_settings=TransactionSettings(
                end_txn_early_answer=True, end_txn_marker_delay_ms=50
            )
        )
        bench.disk.create("out", 2)
        return bench

    @pytest.mark.parametrize("version", [TV1, TV2])
    def test_answer_comes_before_the_markers_trap_43(self, early: Bench, version: int) -> None:
        producer_id, epoch = early.identity()
        early.add(producer_id, epoch, P0)
        grant = early.end(producer_id, epoch, True, version)
        assert grant.error_code is ErrorCode.NONE
        assert early.state() == "PrepareCommit"
        assert not log(early).markers
        early.pass_ms(50)
        assert early.state() == "CompleteCommit"
        assert log(early).markers[0].committed

    @pytest.mark.parametrize("version", [TV1, TV2])
    def test_window_of_concurrent_transactions_trap_42(self, early: Bench, version: int) -> None:
        producer_id, epoch = early.identity()
        early.add(producer_id, epoch, P0)
        grant = early.end(producer_id, epoch, True, version)
        concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
        assert early.add(grant.producer_id, grant.producer_epoch, P1) is concurrent
        assert early.init().error_code is concurrent
        assert early.end(producer_id, epoch, True, version).error_code is concurrent
        opposite = early.end(producer_id, epoch, False, version).error_code
        assert opposite is ErrorCode.INVALID_TXN_STATE
        early.pass_ms(50)
        assert early.add(grant.producer_id, grant.producer_epoch, P1) is ErrorCode.NONE

    def test_takeover_waits_for_the_abort(self, early: Bench) -> None:
        producer_id, epoch = early.identity()
        early.add(producer_id, epoch, P0)
        concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
        assert early.init().error_code is concurrent
        assert early.init().error_code is concurrent
        early.pass_ms(50)
        assert early.init().producer_epoch == epoch + 2


class TestMarkerFailures:
    @pytest.mark.parametrize("version", [TV1, TV2])
    def test_storage_failure_is_retried_until_it_works(self, bench: Bench, version: int) -> None:
        producer_id, epoch = bench.identity()
        bench.add(producer_id, epoch, P0, P1)
        log(bench, P1).refuse_markers_with = ErrorCode.KAFKA_STORAGE_ERROR
        concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
        assert bench.end(producer_id, epoch, True, version).error_code is concurrent
        assert len(log(bench).markers) == 1
        bench.pass_ms(250)
        assert bench.end(producer_id, epoch, True, version).error_code is concurrent
        log(bench, P1).refuse_markers_with = None
        bench.pass_ms(100)
        assert bench.end(producer_id, epoch, True, version).error_code is ErrorCode.NONE
        assert [len(log(bench, p).markers) for p in (P0, P1)] == [1, 1]

    @pytest.mark.parametrize("version", [TV1, TV2])
    @pytest.mark.parametrize(
        "code",
        [
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            ErrorCode.UNKNOWN_SERVER_ERROR,
        ],
    )
    def test_a_refused_marker_is_told_and_tried_again_and_nothing_is_over(
        self, bench: Bench, code: ErrorCode, version: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        identity = bench.identity()
        bench.add(*identity, P0, P1)
        log(bench).refuse_markers_with = code
        concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
        with caplog.at_level(logging.ERROR):
            assert bench.end(*identity, True, version).error_code is concurrent
        assert any("out-0" in line and code.name in line for line in caplog.messages)
        assert bench.state() == "PrepareCommit"
        assert len(log(bench, P1).markers) == 1, "the other partitions have theirs"
        bench.pass_ms(60_000)
        assert bench.state() == "PrepareCommit"
        assert bench.end(*identity, True, version).error_code is concurrent
        log(bench).refuse_markers_with = None
        bench.pass_ms(10_000)
        assert bench.end(*identity, True, version).error_code is ErrorCode.NONE
        assert [len(log(bench, p).markers) for p in (P0, P1)] == [1, 1]

    def test_a_coordinator_epoch_that_was_never_begun_is_overtaken(self, bench: Bench) -> None:
        identity = bench.identity()
        bench.add(*identity, P0)
        log(bench).produce(*identity, "x")
        log(bench).coordinator_epoch = 7
        assert bench.end(*identity).error_code is ErrorCode.NONE
        assert bench.state() == "CompleteCommit"
        partition = bench.transactions.partition_for("t")
        assert bench.disk.transaction_state.leader_epoch(partition) == 8

    def test_a_deleted_partition_is_left_out(self, bench: Bench) -> None:
        identity = bench.identity()
        bench.add(*identity, P0, P1)
        del bench.disk.data[P0]
        assert bench.end(*identity).error_code is ErrorCode.NONE

    def test_failed_decision_leaves_the_transaction_open(self, bench: Bench) -> None:
        identity = bench.identity()
        bench.add(*identity, P0)
        bench.disk.transaction_state.fail_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert bench.end(*identity).error_code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert bench.state() == "Ongoing"
        bench.disk.transaction_state.fail_with = None
        assert bench.end(*identity).error_code is ErrorCode.NONE


class TestTimeout:
    @pytest.mark.parametrize("version", [TV1, TV2])
    def test_open_transaction_is_aborted_with_a_new_epoch_trap_47(self, version: int) -> None:
        bench = Bench(transaction_settings=TransactionSettings(transaction_version=version))
        bench.disk.create("out", 2)
        producer_id, epoch = bench.identity(timeout_ms=2_000)
        bench.add(producer_id, epoch, P0)
        log(bench).produce(producer_id, epoch, "x")
        bench.pass_ms(1_900)
        assert bench.state() == "Ongoing"
        bench.pass_ms(10_000)
        assert bench.state() == "CompleteAbort"
        assert log(bench).markers[-1].producer_epoch == epoch + 1
        assert bench.end(producer_id, epoch).error_code is ErrorCode.PRODUCER_FENCED
        assert bench.add(producer_id, epoch, P0) is ErrorCode.PRODUCER_FENCED

    def test_version_2_client_recovers_without_a_new_process_fc_10(self, bench: Bench) -> None:
        producer_id, epoch = bench.identity(timeout_ms=2_000)
        bench.transactions.verify_or_add("t", producer_id, epoch, [P0], 12, bench.now_ms)
        bench.pass_ms(20_000)
        commit = bench.end(producer_id, epoch, True, TV2)
        assert commit.error_code is ErrorCode.INVALID_TXN_STATE
        grant = bench.end(producer_id, epoch, False, TV2)
        assert grant == (ErrorCode.NONE, producer_id, epoch + 1)
        assert not bench.transactions.verify_or_add(
            "t", grant.producer_id, grant.producer_epoch, [P0], 12, bench.now_ms
        )

    def test_lone_producer_may_init_with_its_old_identity_after_a_timeout(
        self, bench: Bench
    ) -> None:
        producer_id, epoch = bench.identity(timeout_ms=2_000)
        bench.add(producer_id, epoch, P0)
        bench.pass_ms(20_000)
        grant = bench.init("t", producer_id, epoch)
        assert grant == (ErrorCode.NONE, producer_id, epoch + 1)

    def test_a_clock_that_was_set_back_keeps_nobody_waiting_longer_than_the_timeout(
        self, bench: Bench
    ) -> None:
        """Found by simulation (seed 1098): committed readers waited until it had caught up."""
        identity = bench.identity(timeout_ms=60_000)
        bench.add(*identity, P0)
        bench.now_ms -= 3_600_000
        bench.restart()
        bench.pass_ms(50_000)
        assert bench.state() == "Ongoing"
        bench.pass_ms(30_000)
        assert bench.state() == "CompleteAbort"

    def test_time_counts_over_a_restart(self, bench: Bench) -> None:
        identity = bench.identity(timeout_ms=60_000)
        bench.add(*identity, P0)
        bench.pass_ms(55_000)
        bench.restart()
        assert bench.state() == "Ongoing"
        bench.pass_ms(15_000)
        assert bench.state() == "CompleteAbort"


class TestExpiry:
    def test_idle_id_is_forgotten(self, bench: Bench) -> None:
        bench.identity()
        bench.pass_ms(7 * 86_400_000 - 3_600_000)
        assert bench.state() == "Empty"
        bench.pass_ms(2 * 3_600_000)
        assert bench.state() == "TRANSACTIONAL_ID_NOT_FOUND"
        bench.restart()
        assert bench.state() == "TRANSACTIONAL_ID_NOT_FOUND"

    def test_open_transaction_is_never_forgotten(self) -> None:
        bench = Bench(transaction_settings=TransactionSettings(max_timeout_ms=2**31 - 1))
        identity = bench.identity(timeout_ms=2**31 - 1)
        bench.add(*identity, P0)
        bench.pass_ms(8 * 86_400_000)
        assert bench.state() == "Ongoing"

    def test_expired_producer_gets_mapping_error(self, bench: Bench) -> None:
        identity = bench.identity()
        bench.pass_ms(8 * 86_400_000)
        assert bench.add(*identity, P0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


class TestQuestions:
    def names(self, bench: Bench, **filters: object) -> list[str]:
        asked: dict[str, object] = {
            "state_filters": [],
            "producer_id_filters": [],
            "duration_ms": -1,
            "id_pattern": None,
            "now_ms": bench.now_ms,
        }
        asked.update(filters)
        listing = bench.transactions.list_transactions(**asked)  # type: ignore[arg-type]
        assert listing.error_code is ErrorCode.NONE
        return sorted(entry.transactional_id for entry in listing.entries)

    def test_list_filters(self, bench: Bench) -> None:
        a = bench.identity("a")
        b = bench.identity("b")
        bench.identity("c")
        bench.add(*a, P0, transactional_id="a")
        bench.pass_ms(5_000)
        bench.add(*b, P0, transactional_id="b")
        assert self.names(bench) == ["a", "b", "c"]
        assert self.names(bench, state_filters=["Ongoing"]) == ["a", "b"]
        assert self.names(bench, producer_id_filters=[b[0]]) == ["b"]
        assert self.names(bench, duration_ms=1_000) == ["a", "c"]
        assert self.names(bench, id_pattern="[bc]") == ["b", "c"]

    def test_list_takes_patterns_of_re2_for_any_id(self, bench: Bench) -> None:
        for name in ("orders/é-1", "orders/é-2", "x y"):
            bench.identity(name)
        assert self.names(bench, id_pattern="orders.*") == ["orders/é-1", "orders/é-2"]
        assert self.names(bench, id_pattern=r"orders/[^a-z]-\D") == []
        assert self.names(bench, id_pattern=r"\Qorders/\E\W-[12]") == ["orders/é-1", "orders/é-2"]
        assert self.names(bench, id_pattern=r"x\Wy|.*é-2") == ["orders/é-2", "x y"]

    def test_list_tries_nothing_twice(self, bench: Bench) -> None:
        """With an engine that tries and goes back, one request would stop the broker for ever."""
        bench.identity("a" * 200)
        assert self.names(bench, id_pattern="(a+)+b") == []

    def test_list_names_unknown_states(self, bench: Bench) -> None:
        bench.identity("a")
        listing = bench.transactions.list_transactions(["Odd"], [], -1, None, bench.now_ms)
        assert (listing.unknown_states, list(listing.entries)) == (["Odd"], [])

    def test_list_refuses_a_broken_pattern(self, bench: Bench) -> None:
        listing = bench.transactions.list_transactions([], [], -1, "(", bench.now_ms)
        assert listing.error_code is ErrorCode.INVALID_REGULAR_EXPRESSION

    def test_describe(self, bench: Bench) -> None:
        assert bench.transactions.describe("") is ErrorCode.INVALID_REQUEST
        assert bench.transactions.describe("x") is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        identity = bench.identity()
        bench.add(*identity, P0)
        entry = bench.transactions.describe("t")
        assert isinstance(entry, TransactionEntry)
        assert (entry.producer_id, entry.producer_epoch) == identity
        assert entry.partitions == {P0}
        assert entry.start_ms == bench.now_ms
