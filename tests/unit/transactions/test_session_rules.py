"""Goal: the session keeps the rules that make consume-transform-produce exactly-once.

Method: a session over an in-memory cluster (``processor_fakes``) that keeps Kafka's transaction
and group rules; each test breaks one call or moves partitions at one moment. Numbers in the
docstrings are the traps of consume-transform-produce that the test stands for.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from processor_fakes import Entry, FakeClients, FakeCluster, FakeConsumer

from onceflow.sdk.errors import (
    ClientClosedError,
    CommitOutcomeUnknownError,
    ConcurrentTransactionsError,
    ConfigError,
    CoordinatorNotAvailableError,
    DeliveryTimeoutError,
    FencedInstanceIdError,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
    RecordTooLargeError,
    RequestTimedOutError,
    TransactionAbortableError,
    TransactionAbortedError,
    UnknownServerError,
)
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition
from onceflow.transactions import (
    Abort,
    AbortReason,
    SessionConfig,
    TransactionalIdInUseError,
    TransactionSession,
)

IN0 = TopicPartition("in", 0)
IN1 = TopicPartition("in", 1)
IN2 = TopicPartition("in", 2)


def make_config(**changes: object) -> SessionConfig:
    settings: dict[str, object] = {
        "topics": ["in"],
        "bootstrap_servers": "unused:1",
        "group_id": "g",
    }
    return SessionConfig(**(settings | changes))  # type: ignore[arg-type]


def make_session(
    cluster: FakeCluster, *partitions: TopicPartition, **changes: object
) -> TransactionSession:
    clients = FakeClients(cluster, partitions or (IN0,))
    return TransactionSession(make_config(**changes), clients=clients)


def step(session: TransactionSession, max_records: int | None = None) -> list[object]:
    """Poll once and send what came, upper-cased."""
    values = []
    for records in session.poll(0, max_records).values():
        for record in records:
            values.append(record.value)
            session.send("out", str(record.value).upper(), key=record.key)
    return values


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.put("in", "a", "b", "c")
    return cluster


def consumer_of(cluster: FakeCluster) -> FakeConsumer:
    return cluster.members[-1]


def test_outputs_and_offsets_become_visible_together(cluster: FakeCluster) -> None:
    """Traps 1, 15: metadata is always sent; acknowledgements come first."""
    session = make_session(cluster)
    step(session)
    assert cluster.values("out") == []
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C"]
    assert cluster.offset("in") == 3
    order = [c for c in cluster.calls if c not in ("poll", "send", "committed")]
    assert order == [
        "init_transactions",
        "begin_transaction",
        "flush",
        "send_offsets_to_transaction",
        "offsets@1",
        "ensure_membership",
        "commit_transaction",
    ]


def test_nothing_polled_means_no_transaction(cluster: FakeCluster) -> None:
    """Trap 22: no empty transactions."""
    session = make_session(cluster)
    step(session)
    session.commit()
    cluster.calls.clear()
    assert session.poll() == {}
    assert session.commit()
    assert "begin_transaction" not in cluster.calls


def test_offsets_alone_are_committed(cluster: FakeCluster) -> None:
    """Trap 22: records that give no output move the offset."""
    session = make_session(cluster)
    session.poll()
    assert session.commit()
    assert cluster.offset("in") == 3


def test_without_a_member_id_nothing_is_sent(cluster: FakeCluster) -> None:
    """Trap 2: an empty member id would pass the broker's check."""
    session = make_session(cluster)
    consumer = consumer_of(cluster)
    consumer.expelled = True
    step(session)
    assert session.commit() is False
    assert session.last_abort is not None
    assert session.last_abort.reason is AbortReason.STALE_MEMBERSHIP
    assert "send_offsets_to_transaction" not in cluster.calls


def test_membership_that_changed_since_the_poll_aborts(cluster: FakeCluster) -> None:
    """Trap 3: metadata is that of the poll, not that of the commit."""
    session = make_session(cluster)
    step(session)
    consumer_of(cluster).known_generation += 1
    assert session.commit() is False
    assert cluster.values("out") == []
    assert "send_offsets_to_transaction" not in cluster.calls


def test_an_end_is_reached_over_records_that_no_reader_gets(cluster: FakeCluster) -> None:
    """No commit of records names it once the position is behind later records."""
    session = make_session(cluster, IN0)
    cluster.logs[IN0] += [Entry(None, "gone", state="aborted")] * 2
    cluster.put("in", "later")
    step(session)
    assert session.commit({IN0: OffsetAndMetadata(3, "kept")})
    assert cluster.offset("in") == 3
    assert session.reach({IN0: 5})
    assert (cluster.offset("in"), session.note(IN0)) == (5, "kept")
    cluster.calls.clear()
    assert session.reach({IN0: 5})
    assert session.reach({IN0: 4})
    assert "begin_transaction" not in cluster.calls
    assert session.commit()
    assert cluster.offset("in") == 6


def test_an_end_that_is_not_read_to_is_not_reached(cluster: FakeCluster) -> None:
    session = make_session(cluster, IN0)
    step(session, 2)  # A transaction is open.
    assert session.reach({IN0: 2})
    session.abort()
    session.poll(0, 1)
    assert session.reach({IN0: 2})
    assert cluster.offset("in") is None
    session.abort()
    assert session.reach({IN0: 1})
    assert cluster.offset("in") is None
    assert step(session) == ["a", "b", "c"]


def test_an_end_is_not_reached_while_the_position_is_in_doubt(cluster: FakeCluster) -> None:
    """The consumer is behind records whose commit may have been lost."""
    session = make_session(cluster, IN0)
    step(session)
    cluster.fail("commit_transaction", CommitOutcomeUnknownError(), times=2)
    cluster.fail("committed", RequestTimedOutError(), times=2)
    with pytest.raises(CommitOutcomeUnknownError):
        session.commit()
    cluster.forget_faults()
    assert session.reach({IN0: 3})
    assert cluster.offset("in") is None
    assert step(session) == ["a", "b", "c"]
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C"]


@pytest.mark.parametrize("after", [False, True])
def test_an_end_whose_commit_fails_or_is_not_answered(cluster: FakeCluster, after: bool) -> None:
    session = make_session(cluster, IN0)
    cluster.logs[IN0] += [Entry(None, "gone", state="aborted")]
    cluster.put("in", "later")
    session.poll()
    assert session.commit({IN0: 3})
    error = CommitOutcomeUnknownError() if after else TransactionAbortableError()
    cluster.fail("commit_transaction", error, after=after, times=2)
    assert session.reach({IN0: 4}) is after
    assert cluster.offset("in") == (4 if after else 3)
    cluster.forget_faults()
    assert list(session.poll()) == ([] if after else [IN0])  # Read again after the abort.
    assert session.commit()
    assert cluster.offset("in") == 5


KIP_848 = {"consumer_settings": {"group_protocol": "consumer"}}


@pytest.mark.parametrize("after", ["flush", "send_offsets_to_transaction", "ensure_membership"])
def test_an_epoch_that_rose_costs_nothing(cluster: FakeCluster, after: str) -> None:
    """KIP-848: between polls it rises only for a member that has nothing to give up."""
    session = make_session(cluster, **KIP_848)
    step(session)
    consumer = consumer_of(cluster)

    def rise() -> None:
        consumer.known_generation += 1

    if after == "flush":  # before anything is sent: the offsets go under the new epoch
        rise()
    else:
        cluster.do(after, rise, after=True)
    assert session.commit()
    assert f"offsets@{2 if after == 'flush' else 1}" in cluster.calls
    assert cluster.values("out") == ["A", "B", "C"]


@pytest.mark.parametrize("change", ["expelled", "epoch back", "another member", "gone partition"])
def test_another_membership_or_assignment_aborts_whatever_the_epoch(
    cluster: FakeCluster, change: str
) -> None:
    session = make_session(cluster, **KIP_848)
    step(session)
    consumer = consumer_of(cluster)
    consumer.known_generation += -1 if change == "epoch back" else 1
    if change == "expelled":
        consumer.expelled = True
    elif change == "another member":
        consumer.member_id = "member-of-a-later-life"
    elif change == "gone partition":
        consumer.owned.clear()
    assert session.commit() is False
    assert "send_offsets_to_transaction" not in cluster.calls


def test_partition_that_went_away_aborts(cluster: FakeCluster) -> None:
    """Trap 4: the broker does not check ownership, so the session does."""
    session = make_session(cluster)
    step(session)
    consumer_of(cluster).owned.clear()
    assert session.commit() is False
    assert session.last_abort is not None
    assert "in-0" in str(session.last_abort)
    assert cluster.offset("in") is None


def test_ownership_is_checked_again_after_the_offsets(cluster: FakeCluster) -> None:
    """Traps 4, 7: between TxnOffsetCommit and EndTxn the member may lose everything."""
    session = make_session(cluster)
    step(session)
    cluster.do("ensure_membership", consumer_of(cluster).owned.clear)
    assert session.commit() is False
    assert "commit_transaction" not in cluster.calls
    assert cluster.offset("in") is None


def test_expelled_member_does_not_commit(cluster: FakeCluster) -> None:
    """Trap 7: the forced heartbeat before EndTxn."""
    session = make_session(cluster)
    step(session)
    consumer = consumer_of(cluster)
    cluster.do("send_offsets_to_transaction", lambda: cluster.members.remove(consumer), after=True)
    assert session.commit() is False
    assert cluster.values("out") == []


def test_revocation_commits_within_the_callback(cluster: FakeCluster) -> None:
    """Traps 5, 44, 45: processed work is committed before partitions are given up, all of it."""
    cluster.put("in", "x", partition=1)
    session = make_session(cluster, IN0, IN1)
    step(session)
    cluster.rebalance([IN0])
    session.poll()
    assert cluster.offset("in", 0) == 3
    assert cluster.offset("in", 1) == 1
    assert cluster.values("out") == ["A", "B", "C", "X"]


def test_revocation_without_commit_in_time_aborts(cluster: FakeCluster) -> None:
    """Trap 44: else abort; the kept partition is read again."""
    cluster.put("in", "x", partition=1)
    session = make_session(cluster, IN0, IN1)
    step(session)
    cluster.fail("flush", RequestTimedOutError("slow"))
    cluster.rebalance([IN0])
    assert step(session) == ["a", "b", "c"]
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C"]
    assert cluster.offset("in", 1) is None


def test_lost_partitions_are_never_committed(cluster: FakeCluster) -> None:
    """Trap 6: lost is not revoked."""
    session = make_session(cluster)
    step(session)
    cluster.rebalance([], lost=True)
    session.poll()
    assert cluster.values("out") == []
    assert cluster.offset("in") is None
    assert session.last_abort is not None
    assert session.last_abort.reason is AbortReason.PARTITIONS_LOST
    assert session.commit()


def test_generation_may_move_on_under_a_kept_partition(cluster: FakeCluster) -> None:
    """Trap 46: a rebalance that takes nothing from us does not cost the work in hand."""
    session = make_session(cluster)
    step(session, 2)
    cluster.rebalance([IN0, IN1])
    step(session)
    assert session.commit()
    assert "offsets@2" in cluster.calls
    assert cluster.values("out") == ["A", "B", "C"]


def test_invalid_epoch_is_not_the_end(cluster: FakeCluster) -> None:
    """Traps 8, 18: the coordinator's own abort: new incarnation, same records again."""
    session = make_session(cluster)
    step(session)
    cluster.fail("flush", InvalidProducerEpochError())
    assert session.commit() is False
    assert session.last_abort is not None
    assert session.last_abort.reason is AbortReason.INVALID_EPOCH
    assert step(session) == ["a", "b", "c"]
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C"]


def test_fenced_producer_is_replaced_with_its_membership(cluster: FakeCluster) -> None:
    """Trap 8: fenced is final for this producer, not for the process."""
    session = make_session(cluster)
    first = consumer_of(cluster)
    step(session)
    cluster.init("g-0")
    assert session.commit() is False
    assert first.closed
    assert consumer_of(cluster) is not first
    assert step(session) == ["a", "b", "c"]
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C"]


def test_second_fence_in_short_time_stops(cluster: FakeCluster) -> None:
    """Trap 10: an id that is shared by two live processes is reported, not fought over."""
    session = make_session(cluster)
    step(session)
    cluster.init("g-0")
    assert session.commit() is False
    step(session)
    cluster.init("g-0")
    with pytest.raises(TransactionalIdInUseError, match="'g-0' is shared by another live process"):
        session.commit()


@pytest.mark.parametrize("refusal", [ProducerFencedError, InvalidProducerEpochError])
def test_refusals_of_an_id_that_is_still_ours_are_no_fences(
    cluster: FakeCluster, refusal: type[KafkaError]
) -> None:
    """The producer asked the coordinator: nobody has taken its id, which it keeps."""
    session = make_session(cluster)
    first = consumer_of(cluster)
    for _ in range(5):
        step(session)
        aborted = TransactionAbortedError("its coordinator ended it")
        aborted.__cause__ = refusal()
        cluster.fail("commit_transaction", aborted)
        assert session.commit() is False
        assert session.last_abort is not None
        assert session.last_abort.reason is AbortReason.INVALID_EPOCH
    assert consumer_of(cluster) is first
    assert cluster.calls.count("init_transactions") == 1
    assert step(session) == ["a", "b", "c"]
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C"]


def test_a_producer_that_is_fenced_while_it_begins_is_made_again(cluster: FakeCluster) -> None:
    """Another InitProducerId came at the same time; nothing was begun that could be lost."""
    cluster.fail("init_transactions", ProducerFencedError())
    session = make_session(cluster)
    assert step(session) == ["a", "b", "c"]
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C"]


def test_two_fences_while_it_begins_are_a_shared_id(cluster: FakeCluster) -> None:
    cluster.fail("init_transactions", ProducerFencedError(), times=2)
    with pytest.raises(TransactionalIdInUseError, match="'g-0' is shared by another live process"):
        make_session(cluster)


def test_transactional_id_is_stable() -> None:
    """Trap 9: group and slot, so that a restart ends the predecessor's transaction."""
    assert make_config(slot="3").own_transactional_id == "g-3"
    assert make_config(transactional_id="mine").own_transactional_id == "mine"


def test_restart_ends_the_open_transaction(cluster: FakeCluster) -> None:
    """Trap 9: a crashed predecessor's outputs never become visible."""
    step(make_session(cluster))
    cluster.members.clear()
    session = make_session(cluster)
    assert cluster.open == {}
    step(session)
    session.commit()
    assert cluster.values("out") == ["A", "B", "C"]


def test_abort_rewinds_to_the_committed_offset(cluster: FakeCluster) -> None:
    """Trap 11: positions are not part of a transaction (field case 29)."""
    session = make_session(cluster)
    step(session, 1)
    session.commit()
    step(session)
    session.abort()
    assert cluster.offset("in") == 1
    assert step(session) == ["b", "c"]
    session.commit()
    assert cluster.values("out") == ["A", "B", "C"]


def test_abort_without_committed_offset_goes_back_to_the_first_record(
    cluster: FakeCluster,
) -> None:
    """Trap 12: never through the reset policy, which would skip."""
    session = make_session(cluster, start_from="latest")
    assert session.poll() == {}
    cluster.put("in", "d", "e")
    assert step(session) == ["d", "e"]
    session.abort()
    assert step(session) == ["d", "e"]


def test_rewind_works_when_committed_offsets_cannot_be_read(cluster: FakeCluster) -> None:
    """Trap 11: the first offset of the aborted work is known anyway."""
    session = make_session(cluster)
    step(session, 1)
    session.commit()
    step(session)
    cluster.fail("committed", RequestTimedOutError())
    session.abort()
    assert step(session) == ["b", "c"]


@pytest.mark.parametrize("error", [CommitOutcomeUnknownError("lost"), UnknownServerError()])
def test_lost_answer_of_a_commit_that_happened(cluster: FakeCluster, error: KafkaError) -> None:
    """Trap 13: the committed offsets carry the commit's token: nothing is redone."""
    session = make_session(cluster)
    step(session)
    cluster.fail("commit_transaction", error, after=True)
    assert session.commit() is True
    assert session.poll() == {}
    assert cluster.values("out") == ["A", "B", "C"]


@pytest.mark.parametrize(
    "error", [CommitOutcomeUnknownError("lost"), UnknownServerError(), RequestTimedOutError()]
)
def test_lost_answer_of_a_commit_that_did_not_happen(
    cluster: FakeCluster, error: KafkaError
) -> None:
    """Trap 13: the new incarnation ends the transaction, the records come again."""
    session = make_session(cluster)
    step(session)
    cluster.fail("commit_transaction", error, times=2)
    assert session.commit() is False
    cluster.forget_faults()
    assert step(session) == ["a", "b", "c"]
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C"]


def test_a_commit_without_an_answer_is_asked_for_again(cluster: FakeCluster) -> None:
    """If its request was lost, it commits now, and nothing is done again."""
    session = make_session(cluster)
    step(session)
    cluster.fail("commit_transaction", CommitOutcomeUnknownError("lost"))
    assert session.commit() is True
    assert cluster.calls.count("commit_transaction") == 2
    assert cluster.calls.count("init_transactions") == 1
    assert step(session) == []
    assert cluster.values("out") == ["A", "B", "C"]


def test_a_commit_that_turns_out_to_be_refused_is_an_abort(cluster: FakeCluster) -> None:
    session = make_session(cluster)
    step(session)
    cluster.fail("commit_transaction", CommitOutcomeUnknownError("lost"))
    cluster.fail("commit_transaction", TransactionAbortedError("it took too long"))
    assert session.commit() is False
    assert cluster.calls.count("init_transactions") == 1
    assert step(session) == ["a", "b", "c"]


def test_a_forgotten_id_is_recovered_from_by_a_new_producer(cluster: FakeCluster) -> None:
    """The id has expired, or another producer got it: only a new incarnation may go on."""
    session = make_session(cluster)
    step(session)
    cluster.fail("send_offsets_to_transaction", InvalidProducerIdMappingError())
    assert session.commit() is False
    assert cluster.calls.count("init_transactions") == 2
    assert step(session) == ["a", "b", "c"]
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C"]


def test_unknown_outcome_is_told_from_an_earlier_commit_of_the_same_offset(
    cluster: FakeCluster,
) -> None:
    """Trap 13: equal offsets are no proof, the token is."""
    session = make_session(cluster)
    step(session)
    cluster.fail("commit_transaction", CommitOutcomeUnknownError("lost"), times=2)
    cluster.do(
        "committed",
        lambda: cluster.committed.update(
            {IN0: consumer_of(cluster).cluster.committed.get(IN0, _foreign(3))}
        ),
    )
    assert session.commit() is False


def _foreign(offset: int):  # type: ignore[no-untyped-def]
    from onceflow.sdk.model.partitions import OffsetAndMetadata

    return OffsetAndMetadata(offset, "somebody else's")


def test_unknown_outcome_without_answer_is_raised(cluster: FakeCluster) -> None:
    """Trap 13: never report success, never redo blindly."""
    session = make_session(cluster)
    step(session)
    cluster.fail("commit_transaction", CommitOutcomeUnknownError("lost"), times=2)
    cluster.fail("committed", RequestTimedOutError(), times=2)
    with pytest.raises(CommitOutcomeUnknownError):
        session.commit()


def test_fence_at_the_commit_of_a_transaction_that_was_committed(cluster: FakeCluster) -> None:
    """Traps 8, 13: a successor may have completed our commit before the retry was fenced."""
    session = make_session(cluster)
    step(session)
    cluster.fail("commit_transaction", ProducerFencedError(), after=True)
    assert session.commit() is True
    assert step(session) == []
    assert cluster.values("out") == ["A", "B", "C"]


def test_delivery_failure_poisons_the_transaction(cluster: FakeCluster) -> None:
    """Trap 14: a sticky flag that only an abort clears; the commit is never a success."""
    session = make_session(cluster)
    records = session.poll()[IN0]
    session.send("out", "A")
    cluster.fail("send", DeliveryTimeoutError("gone"))
    with pytest.raises(DeliveryTimeoutError):
        session.send("out", "B")
    assert len(records) == 3
    assert session.commit() is False
    assert cluster.values("out") == []
    assert step(session) == ["a", "b", "c"]
    assert session.commit()


def test_record_that_can_never_be_delivered_is_raised(cluster: FakeCluster) -> None:
    """Traps 14, 83: the same batch would fail again, so the caller has to know."""
    session = make_session(cluster)
    step(session)
    cluster.fail("flush", RecordTooLargeError("too large"))
    with pytest.raises(RecordTooLargeError):
        session.commit()
    assert cluster.values("out") == []
    assert step(session) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "error",
    [TransactionAbortableError(), ConcurrentTransactionsError(), CoordinatorNotAvailableError()],
)
@pytest.mark.parametrize("call", ["flush", "send_offsets_to_transaction", "ensure_membership"])
def test_abortable_errors_redo_the_batch(
    cluster: FakeCluster, error: KafkaError, call: str
) -> None:
    """Traps 19, 20, 21: abort and retry, whatever call told it."""
    session = make_session(cluster)
    step(session)
    cluster.fail(call, error)
    assert session.commit() is False
    assert step(session) == ["a", "b", "c"]
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C"]


def test_abort_that_fails_makes_a_new_incarnation(cluster: FakeCluster) -> None:
    """Traps 18, 23: InitProducerId ends what the old incarnation could not."""
    session = make_session(cluster)
    step(session)
    cluster.fail("abort_transaction", InvalidTxnStateError())
    session.abort()
    assert cluster.epochs["g-0"] == 1
    assert step(session) == ["a", "b", "c"]
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C"]


def test_duplicate_static_member_is_fatal(cluster: FakeCluster) -> None:
    """Trap 10: two processes under one group.instance.id."""
    session = make_session(cluster)
    step(session)
    cluster.fail("ensure_membership", FencedInstanceIdError())
    with pytest.raises(FencedInstanceIdError):
        session.commit()


def test_every_worker_of_a_transaction_redoes_its_batch(cluster: FakeCluster) -> None:
    """Trap 25: one transaction is one unit: a failure takes all partitions back."""
    cluster.put("in", "x", partition=1)
    session = make_session(cluster, IN0, IN1)
    step(session)
    cluster.fail("flush", TransactionAbortableError())
    assert session.commit() is False
    assert step(session) == ["a", "b", "c", "x"]


def test_position_behind_skipped_records_is_committed(cluster: FakeCluster) -> None:
    """Trap 33: markers and aborted records take offsets; lag must reach 0."""
    cluster.put("in", "gone")
    cluster.logs[IN0][-1].state = "aborted"
    session = make_session(cluster)
    assert step(session) == ["a", "b", "c"]
    session.commit()
    assert cluster.offset("in") == 4


@pytest.mark.parametrize(("trailing_marker", "expected"), [(False, 3), (True, -1)])
def test_epoch_is_committed_only_with_the_offset_behind_its_record(
    cluster: FakeCluster, trailing_marker: bool, expected: int
) -> None:
    """What a broker wrote after its restart (the marker) is of a later epoch than the record.

    Offset and epoch that do not belong together look like a log that was cut (KIP-320), and the
    next owner of the partition would stop for it. Found by the simulation, seed 1243.
    """
    cluster.leader_epoch = 3
    if trailing_marker:
        cluster.put("in", "gone")
        cluster.logs[IN0][-1].state = "aborted"
    session = make_session(cluster)
    step(session)
    session.commit()
    assert cluster.committed[IN0].leader_epoch == expected


def test_part_of_a_batch_can_be_committed(cluster: FakeCluster) -> None:
    """Trap 35: never past what is processed; the rest comes again after an abort."""
    session = make_session(cluster)
    session.poll()
    session.send("out", "A")
    assert session.commit({IN0: 1})
    assert cluster.offset("in") == 1
    session.send("out", "B")
    session.abort()
    assert step(session) == ["b", "c"]


def test_callback_errors_are_raised_by_poll(cluster: FakeCluster) -> None:
    """Trap 50: what goes wrong in a rebalance callback is not lost."""
    session = make_session(cluster)
    cluster.fail("committed", RequestTimedOutError("at assignment"))
    with pytest.raises(RequestTimedOutError, match="at assignment"):
        session.poll()


def test_fence_within_a_callback_is_dealt_with_by_the_next_poll(cluster: FakeCluster) -> None:
    """Trap 8: a consumer cannot be closed from its own callback."""
    session = make_session(cluster)
    step(session)
    cluster.init("g-0")
    cluster.rebalance([])
    assert session.poll() == {}
    assert step(session) == ["a", "b", "c"]
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C"]


def test_close_aborts_and_is_idempotent(cluster: FakeCluster) -> None:
    """Trap 49: no commit on the exception path."""

    def fail_inside() -> None:
        with make_session(cluster) as session:
            step(session)
            raise ValueError("handler")

    with pytest.raises(ValueError, match="handler"):
        fail_inside()
    assert cluster.values("out") == []
    assert cluster.open == {}
    session = make_session(cluster)
    session.close()
    session.close()


def test_close_asks_nobody_for_progress(cluster: FakeCluster) -> None:
    """What was open is aborted; partitions that go at the close are only told."""
    told: list[object] = []

    class Listener:
        def assigned(self, partitions: Sequence[TopicPartition]) -> None: ...
        def committed(self) -> None: ...
        def aborted(self, abort: Abort) -> None: ...

        def progress(self) -> dict[TopicPartition, OffsetAndMetadata]:
            told.append("progress")
            return {}

        def released(self, partitions: Sequence[TopicPartition], lost: bool) -> None:
            told.append(list(partitions))

    clients = FakeClients(cluster, (IN0,))
    session = TransactionSession(make_config(), listener=Listener(), clients=clients)
    step(session)
    session.close()
    assert told == [[IN0]]
    assert cluster.values("out") == []


def test_transaction_timeout_above_the_brokers_maximum_names_both(cluster: FakeCluster) -> None:
    """Trap 17: the refusal at InitProducerId shows the chain."""
    cluster.fail("init_transactions", InvalidTransactionTimeoutError())
    with pytest.raises(ValueError, match=r"transaction\.max\.timeout\.ms"):
        make_session(cluster)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"commit_interval_ms": 10_000}, "commit_interval_ms"),
        ({"transaction_timeout_ms": 60_000}, "transaction_timeout_ms"),
        ({"session_timeout_ms": 400_000}, "max_poll_interval_ms"),
        ({"revoke_budget_ms": 300_000}, "revoke_budget_ms"),
    ],
)
def test_time_limits_that_contradict_are_refused(changes: dict[str, int], field: str) -> None:
    """Trap 17: commit interval < transaction timeout <= session timeout, numbers in the message."""
    with pytest.raises(ValueError, match=f"^{field}=.*chain is commit_interval_ms="):
        make_config(**changes)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"topics": "in"}, "topics"),
        ({"group_id": ""}, "group_id"),
        ({"slot": ""}, "slot"),
        ({"start_from": "now"}, "start_from"),
        ({"commit_interval_ms": 0}, "commit_interval_ms"),
        ({"auto_offset_reset": "now"}, "auto_offset_reset"),
        ({"consumer_settings": {"isolation_level": "read_uncommitted"}}, "isolation_level"),
        ({"client": {"isolation.level": "read_uncommitted"}}, "isolation_level"),
        ({"enable_auto_commit": True}, "enable_auto_commit"),
        ({"producer_settings": {"acks": 1}}, "acks"),
        ({"enable_idempotence": False}, "enable_idempotence"),
    ],
)
def test_settings_that_break_exactly_once_are_refused(
    changes: dict[str, object], field: str
) -> None:
    """Traps 30, 38, 41: isolation, acks and reset policy are not left to chance."""
    with pytest.raises(ValueError, match=f"^{field}="):
        make_config(**changes)


def test_commit_is_due_after_the_interval(cluster: FakeCluster) -> None:
    """Commit interval counts from the first uncommitted record."""
    session = make_session(cluster, commit_interval_ms=1)
    assert not session.commit_due
    step(session)
    while not session.commit_due:
        pass
    session.commit()
    assert not session.commit_due


def test_records_of_a_poll_that_raises_are_not_lost(cluster: FakeCluster) -> None:
    """Trap 50: what a rebalance callback complains about costs no record of kept partitions."""
    session = make_session(cluster, IN0, IN1)
    cluster.put("in", "x", partition=1)
    step(session)
    cluster.fail("flush", RecordTooLargeError())
    cluster.rebalance([IN0])
    with pytest.raises(RecordTooLargeError):
        step(session)
    assert step(session) == ["a", "b", "c"]
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C"]


def test_after_an_unknown_outcome_reading_waits_for_the_committed_offsets(
    cluster: FakeCluster,
) -> None:
    """Trap 13: what may be committed is not done again on a guess."""
    session = make_session(cluster)
    step(session)
    cluster.fail("commit_transaction", RequestTimedOutError(), after=True)
    cluster.fail("committed", RequestTimedOutError(), times=3)
    with pytest.raises(CommitOutcomeUnknownError):
        session.commit()
    with pytest.raises(RequestTimedOutError):
        session.poll()
    cluster.put("in", "d")
    assert step(session) == ["d"]
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C", "D"]


def test_start_that_could_not_be_looked_up_is_looked_up_again(cluster: FakeCluster) -> None:
    session = make_session(cluster, start_from="latest")
    cluster.fail("committed", CoordinatorNotAvailableError())
    with pytest.raises(CoordinatorNotAvailableError):
        session.poll()
    assert step(session) == []
    cluster.put("in", "d")
    assert step(session) == ["d"]


@pytest.mark.parametrize("offset", [4, 1_000_000, -1])
def test_offsets_that_were_not_polled_are_not_committed(cluster: FakeCluster, offset: int) -> None:
    """They would pass over records that nobody saw."""
    session = make_session(cluster)
    step(session)
    with pytest.raises(IllegalStateError, match=r"cannot commit offset .* of in-0: .* to 3"):
        session.commit({IN0: offset})
    assert session.commit({IN0: 3})
    assert cluster.values("out") == ["A", "B", "C"]


class Interruption(BaseException):
    """As KeyboardInterrupt, or the cancellation of an asyncio task."""


STEPS_OF_A_COMMIT = (
    ("flush", False),
    ("send_offsets_to_transaction", False),
    ("send_offsets_to_transaction", True),
    ("ensure_membership", False),
    ("commit_transaction", False),
    ("commit_transaction", True),
)


@pytest.mark.parametrize(("call", "after"), STEPS_OF_A_COMMIT)
def test_interrupted_within_a_rebalance_outputs_go_with_their_offsets(
    cluster: FakeCluster, call: str, after: bool
) -> None:
    """The next owner of a revoked partition does again what has no committed offset."""
    cluster.put("in", "d", partition=1)
    session = make_session(cluster, IN0, IN1)
    assert step(session) == ["a", "b", "c", "d"]
    cluster.rebalance([IN0])
    cluster.fail(call, Interruption(), after=after)
    with pytest.raises(Interruption):
        session.poll()
    cluster.put("in", "e")
    for _ in range(3):
        step(session)
        session.commit()
    got_through = call == "commit_transaction" and after
    assert cluster.offset("in", 0) == 4
    assert cluster.offset("in", 1) == (1 if got_through else None)
    expected = ["A", "B", "C", "D", "E"] if got_through else ["A", "B", "C", "E"]
    assert sorted(map(str, cluster.values("out"))) == expected


@pytest.mark.parametrize(("call", "after"), STEPS_OF_A_COMMIT)
def test_an_interrupted_commit_is_found_out_about(
    cluster: FakeCluster, call: str, after: bool
) -> None:
    session = make_session(cluster)
    step(session)
    cluster.fail(call, Interruption(), after=after)
    with pytest.raises(Interruption):
        session.commit()
    assert session.commit() is False
    assert session.last_abort is not None
    assert session.last_abort.reason is AbortReason.INTERRUPTED
    cluster.put("in", "d")
    step(session)
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C", "D"]
    assert cluster.offset("in") == 4


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupted_beginning_leaves_no_transaction_unseen(
    cluster: FakeCluster, after: bool
) -> None:
    session = make_session(cluster)
    cluster.fail("begin_transaction", Interruption(), after=after)
    with pytest.raises(Interruption):
        step(session)
    assert session.commit() is False
    assert step(session) == ["a", "b", "c"]
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C"]
    assert cluster.offset("in") == 3


# Loops over single records -------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["refused", "fenced"])
def test_a_loop_goes_on_with_what_is_read_again_after_an_abort(
    cluster: FakeCluster, reason: str
) -> None:
    """After a commit that became an abort the rest of the poll comes again, and only once."""
    error = TransactionAbortableError() if reason == "refused" else ProducerFencedError()
    session = make_session(cluster)
    cluster.fail("commit_transaction", error)
    seen = []
    for record in session.records():
        seen.append(record.value)
        session.send("out", record.value)
        done = session.commit()
        if done and record.value == "c":
            break
    assert seen == ["a", "a", "b", "c"]
    assert cluster.values("out") == ["a", "b", "c"]


def test_an_abort_within_a_loops_poll_leaves_nothing_handed_out(cluster: FakeCluster) -> None:
    """The poll that aborts in its rebalance returns the records again; then one is taken."""
    cluster.put("in", "d", "e", partition=1)
    session = make_session(cluster, IN0, IN1, IN2)
    loop = session.records()
    assert [next(loop).value for _ in range(5)] == ["a", "b", "c", "d", "e"]
    session.send("out", "aborted")
    cluster.rebalance([IN0, IN1])
    cluster.fail("flush", TransactionAbortableError())
    assert next(loop).value == "a"
    session.send("out", "A")
    assert session.commit()
    assert (cluster.offset("in", 0), cluster.offset("in", 1)) == (1, None)
    assert cluster.values("out") == ["A"]


def test_a_commit_in_a_loop_may_not_name_what_the_loop_was_not_given(cluster: FakeCluster) -> None:
    """The position is behind the whole poll; naming it would pass over the rest."""
    session = make_session(cluster)
    loop = session.records()
    assert next(loop).value == "a"
    session.send("out", "A")
    with pytest.raises(IllegalStateError, match=r"cannot commit offset 3 of in-0: .* from 0 to 1"):
        session.commit({IN0: session.position(IN0)})
    assert session.commit({IN0: 1})
    assert [next(loop).value for _ in range(2)] == ["b", "c"]
    assert session.commit({IN0: 3})
    assert cluster.offset("in") == 3


def test_threads_that_send_at_once_begin_one_transaction(cluster: FakeCluster) -> None:
    """A thread that sends while another one begins must wait; its record had no transaction."""
    session = make_session(cluster)
    session.poll()
    failures: list[BaseException] = []

    def send() -> None:
        try:
            session.send("out", "B")
        except BaseException as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    other = threading.Thread(target=send)

    def while_it_begins() -> None:
        other.start()
        other.join(0.1)  # It waits for us; without that it would fail at once.

    cluster.do("begin_transaction", while_it_begins)
    session.send("out", "A")
    other.join()
    assert failures == []
    assert session.commit()
    assert sorted(map(str, cluster.values("out"))) == ["A", "B"]
    assert cluster.calls.count("begin_transaction") == 1


@pytest.mark.parametrize(
    "offsets", [{"in": 3}, {IN0: "3"}, {IN0: True}, {IN0: 2.0}, {IN0: None}, [IN0], "in"]
)
def test_what_is_no_offset_is_refused_and_leaves_the_work_open(
    cluster: FakeCluster, offsets: object
) -> None:
    """It became an abort, or an AttributeError."""
    session = make_session(cluster)
    step(session)
    with pytest.raises(ConfigError, match=r"offsets=.*must map each TopicPartition"):
        session.commit(offsets)  # type: ignore[arg-type]
    assert session.commit()
    assert cluster.values("out") == ["A", "B", "C"]


def test_a_closed_session_says_that_it_is_closed(cluster: FakeCluster) -> None:
    """It said that poll() would make a consumer."""
    session = make_session(cluster)
    step(session)
    session.close()
    for call in (
        session.poll,
        session.assignment,
        lambda: session.commit({IN0: 1}),
        lambda: session.position(IN0),
        lambda: session.pause([IN0]),
        lambda: session.send("out", "x"),
    ):
        with pytest.raises(ClientClosedError) as refused:
            call()
        assert "is closed; make a new one" in str(refused.value)
