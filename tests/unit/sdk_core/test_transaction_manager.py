"""Goal: a producer's transaction states allow what Kafka allows, and a failure cannot be missed.

Method: the state machine by itself; what each error does to an open transaction; and the flows to
the coordinators with answers written by hand, without a driver.
"""

from __future__ import annotations

import pytest
from producer_flows import play

from onceflow.sdk.core.flow import Coordinator, Forget, Send, Sleep
from onceflow.sdk.core.produce.transaction_flows import (
    add_partitions,
    check_group,
    commit_offsets,
    end_transaction,
    init_producer_id,
)
from onceflow.sdk.core.produce.transaction_manager import (
    TRANSITIONS,
    TransactionManager,
    TransactionState,
)
from onceflow.sdk.core.produce.transaction_reclaim import Owner, owner_of
from onceflow.sdk.core.retry import Backoff
from onceflow.sdk.errors import (
    BrokerConnectionError,
    ClusterAuthorizationFailedError,
    IllegalGenerationError,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    KafkaError,
    ProducerFencedError,
    RemoteProtocolError,
    RequestTimedOutError,
    TransactionAbortableError,
    UnknownProducerIdError,
    UnsupportedVersionError,
)
from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdentity,
    TopicPartition,
)
from onceflow.sdk.protocol.api.cluster import CoordinatorType
from onceflow.sdk.protocol.api.group_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from onceflow.sdk.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

S = TransactionState
BACKOFF = Backoff(100, 1_000, lambda: 0.5)
ME = ProducerIdentity("x", 7, 3)
TRANSACTIONS = Coordinator("x", CoordinatorType.TRANSACTION)
GROUP = ConsumerGroupMetadata("g", 4, "member", None)


def ready(transactional_id: str | None = "x", version: int = 2) -> TransactionManager:
    """A producer with an identity."""
    manager = TransactionManager(transactional_id)
    manager.move(S.INITIALIZING)
    manager.initialized(7, 3, version)
    return manager


def begun(version: int = 2) -> TransactionManager:
    """A producer in a transaction."""
    manager = ready(version=version)
    manager.begin(0)
    return manager


# states


def test_every_state_is_in_the_table_and_only_the_fatal_one_is_an_end() -> None:
    assert set(TRANSITIONS) == set(S)
    assert [state for state, after in TRANSITIONS.items() if not after] == [S.FATAL_ERROR]
    reached = {state for after in TRANSITIONS.values() for state in after}
    assert reached == set(S)


def test_sending_outside_of_a_transaction_says_what_to_call() -> None:
    with pytest.raises(IllegalStateError, match=r"begin_transaction\(\) first"):
        ready().require(S.IN_TRANSACTION, what="send()")


def test_beginning_twice_is_refused() -> None:
    manager = begun()
    with pytest.raises(IllegalStateError, match="commit or abort"):
        manager.begin(0)


def test_an_empty_transaction_ends_without_the_broker() -> None:
    manager = begun()
    assert not manager.begin_end(committed=True)
    manager.ended()
    assert manager.state is S.READY


def test_what_others_produced_counts_as_content() -> None:
    manager = begun()
    manager.note_partitions([])
    assert not manager.has_content
    manager.note_partitions([TopicPartition("t", 0)])
    assert manager.begin_end(committed=True)


def test_after_others_produced_the_epoch_is_raised_unless_the_end_did() -> None:
    manager = begun(version=1)
    manager.note_partitions([TopicPartition("t", 0)])
    manager.begin_end(committed=True)
    manager.ended()
    assert manager.bump_required
    manager = begun()
    manager.note_partitions([TopicPartition("t", 0)])
    manager.begin_end(committed=True)
    manager.ended(7, 4)
    assert not manager.bump_required
    assert manager.identity == ProducerIdentity("x", 7, 4)


def test_a_failure_sticks_until_the_abort() -> None:
    manager = begun()
    first = UnknownProducerIdError()
    manager.fail(first)
    manager.fail(KafkaError("second"))
    for _ in range(2):
        with pytest.raises(UnknownProducerIdError):
            manager.begin_end(committed=True)
    manager.begin_end(committed=False)
    manager.ended(7, 4)
    assert manager.error is None
    manager.begin(0)


@pytest.mark.parametrize(
    "error",
    [
        InvalidProducerEpochError(),
        InvalidTxnStateError(),
        TransactionAbortableError(),
        IllegalGenerationError(),
        KafkaError("delivery timed out"),
    ],
)
def test_an_abort_heals(error: KafkaError) -> None:
    manager = begun()
    manager.fail(error)
    assert manager.state is S.ABORTABLE_ERROR


@pytest.mark.parametrize(
    "error", [ProducerFencedError(), ClusterAuthorizationFailedError(), UnsupportedVersionError()]
)
def test_nothing_heals(error: KafkaError) -> None:
    manager = begun()
    manager.fail(error)
    assert manager.state is S.FATAL_ERROR
    manager.fail(KafkaError("later"))
    for call in (lambda: manager.begin(0), lambda: manager.begin_end(committed=False)):
        with pytest.raises(type(error)):
            call()


def test_a_failure_outside_of_a_transaction_does_not_touch_it() -> None:
    manager = ready()
    manager.fail(KafkaError("late answer"))
    assert manager.state is S.READY


def test_a_joined_producer_neither_commits_nor_aborts() -> None:
    manager = TransactionManager("x", is_joined=True)
    manager.adopt(ME, 2, 0)
    assert manager.may_send
    for committed in (True, False):
        with pytest.raises(IllegalStateError, match="another producer owns"):
            manager.begin_end(committed=committed)


def test_an_adopted_transaction_is_open_and_asks_for_its_end() -> None:
    manager = TransactionManager("x")
    manager.adopt(ME, 1, 0)
    assert manager.identity == ME
    assert manager.begin_end(committed=True)


# group metadata


@pytest.mark.parametrize(
    "group",
    [
        ConsumerGroupMetadata("g", 4, "", None),
        ConsumerGroupMetadata("g", -1, "member", None),
        ConsumerGroupMetadata("", -1, "", None),
    ],
)
def test_half_a_membership_is_refused(group: ConsumerGroupMetadata) -> None:
    with pytest.raises(IllegalStateError):
        check_group(group)


def test_a_group_without_members_and_a_whole_membership_are_taken() -> None:
    check_group(ConsumerGroupMetadata("g"))
    check_group(GROUP)


# flows


def test_getting_an_identity_waits_out_concurrent_transactions() -> None:
    flow = init_producer_id("x", 60_000, BACKOFF)
    result, steps = play(
        flow,
        InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS),
        InitProducerIdResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS),
        InitProducerIdResponse(producer_id=7, producer_epoch=1),
    )
    assert result == (7, 1)
    assert [step.delay_ms for step in steps if isinstance(step, Sleep)] == [2, 4]
    assert {step.target for step in steps if isinstance(step, Send)} == {TRANSACTIONS}


@pytest.mark.parametrize(
    "trouble",
    [
        InitProducerIdResponse(error_code=ErrorCode.NOT_COORDINATOR),
        InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE),
        BrokerConnectionError("lost"),
        RequestTimedOutError("slow"),
    ],
)
def test_a_coordinator_that_moved_is_found_again(trouble: InitProducerIdResponse) -> None:
    result, steps = play(
        init_producer_id("x", 60_000, BACKOFF),
        trouble,
        InitProducerIdResponse(producer_id=7, producer_epoch=1),
    )
    assert result == (7, 1)
    assert Forget(TRANSACTIONS) in steps


@pytest.mark.parametrize("fields", [{"producer_id": -1}, {"producer_epoch": -1}])
def test_an_identity_that_is_none_is_refused(fields: dict[str, int]) -> None:
    answer = InitProducerIdResponse(**{"producer_id": 7, "producer_epoch": 1, **fields})
    with pytest.raises(RemoteProtocolError, match="begin at 0"):
        play(init_producer_id("x", 60_000, BACKOFF), answer)


def test_a_loading_coordinator_is_asked_again_and_not_forgotten() -> None:
    """Trap 57."""
    _, steps = play(
        init_producer_id("x", 60_000, BACKOFF),
        InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        InitProducerIdResponse(producer_id=7, producer_epoch=1),
    )
    assert Forget(TRANSACTIONS) not in steps


def test_the_idempotent_producer_asks_any_broker() -> None:
    result, steps = play(
        init_producer_id(None, 60_000, BACKOFF),
        InitProducerIdResponse(producer_id=1, producer_epoch=0),
    )
    assert result == (1, 0)
    assert isinstance(steps[0], Send)
    assert steps[0].target is None


def test_raising_an_epoch_that_somebody_took_is_being_fenced() -> None:
    with pytest.raises(ProducerFencedError, match="took over"):
        play(
            init_producer_id("x", 60_000, BACKOFF, current=ME),
            InitProducerIdResponse(error_code=ErrorCode.PRODUCER_FENCED),
        )


def test_raising_an_epoch_sends_the_present_one() -> None:
    _, steps = play(
        init_producer_id("x", 60_000, BACKOFF, current=ME),
        InitProducerIdResponse(producer_id=7, producer_epoch=4),
    )
    assert isinstance(steps[0], Send)
    request = steps[0].request
    assert isinstance(request, InitProducerIdRequest)
    assert (request.producer_id, request.producer_epoch) == (7, 3)


def test_a_refused_timeout_is_told_at_once() -> None:
    with pytest.raises(InvalidTransactionTimeoutError):
        play(
            init_producer_id("x", 10**9, BACKOFF),
            InitProducerIdResponse(error_code=ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        )


def _partitions_answer(*codes: int) -> AddPartitionsToTxnResponse:
    topic = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
        name="t",
        results_by_partition=[
            AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                partition_index=number, partition_error_code=code
            )
            for number, code in enumerate(codes)
        ],
    )
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[topic])


def test_partitions_are_added_in_the_clients_own_version() -> None:
    _, steps = play(
        add_partitions(ME, [TopicPartition("t", 0), TopicPartition("t", 1)], BACKOFF),
        _partitions_answer(ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        _partitions_answer(0, 0),
    )
    first = steps[0]
    assert isinstance(first, Send)
    assert first.max_version == 3
    assert isinstance(first.request, AddPartitionsToTxnRequest)
    assert first.request.v3_and_below_topics[0].partitions == [0, 1]


def test_the_cause_wins_over_partitions_that_were_not_attempted() -> None:
    with pytest.raises(KafkaError) as caught:
        play(
            add_partitions(ME, [TopicPartition("t", 0), TopicPartition("t", 1)], BACKOFF),
            _partitions_answer(
                ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.TOPIC_AUTHORIZATION_FAILED
            ),
        )
    assert getattr(caught.value, "code", 0) == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _offsets_answer(**codes: int) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                        partition_index=0, error_code=code
                    )
                ],
            )
            for topic, code in codes.items()
        ]
    )


OFFSETS = {
    TopicPartition("a", 0): OffsetAndMetadata(5),
    TopicPartition("b", 0): OffsetAndMetadata(6),
}


def test_version_one_announces_the_group_first() -> None:
    _, steps = play(
        commit_offsets(ME, OFFSETS, GROUP, BACKOFF, protocol_version=1),
        AddOffsetsToTxnResponse(),
        _offsets_answer(a=0, b=0),
    )
    announce, commit = (step for step in steps if isinstance(step, Send))
    assert isinstance(announce.request, AddOffsetsToTxnRequest)
    assert announce.target == TRANSACTIONS
    assert commit.max_version == 4
    assert commit.target == Coordinator("g", CoordinatorType.GROUP)


def test_version_two_commits_offsets_at_once_with_the_membership() -> None:
    _, steps = play(
        commit_offsets(ME, OFFSETS, GROUP, BACKOFF, protocol_version=2), _offsets_answer(a=0, b=0)
    )
    (commit,) = steps
    assert isinstance(commit, Send)
    request = commit.request
    assert isinstance(request, TxnOffsetCommitRequest)
    assert (request.generation_id, request.member_id) == (4, "member")


def test_only_the_offsets_that_were_not_taken_are_sent_again() -> None:
    _, steps = play(
        commit_offsets(ME, OFFSETS, GROUP, BACKOFF, protocol_version=2),
        _offsets_answer(a=0, b=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        _offsets_answer(b=0),
    )
    again = [step.request for step in steps if isinstance(step, Send)][1]
    assert isinstance(again, TxnOffsetCommitRequest)
    assert [topic.name for topic in again.topics] == ["b"]


@pytest.mark.parametrize(
    "code",
    [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID],
)
def test_a_zombies_offsets_are_refused_for_good(code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as caught:
        play(
            commit_offsets(ME, OFFSETS, GROUP, BACKOFF, protocol_version=2),
            _offsets_answer(a=code, b=code),
        )
    assert getattr(caught.value, "code", 0) == code


def test_a_lost_end_is_asked_for_again_with_the_same_identity() -> None:
    result, steps = play(
        end_transaction(ME, BACKOFF, committed=True, protocol_version=2),
        BrokerConnectionError("lost"),
        EndTxnResponse(error_code=ErrorCode.CONCURRENT_TRANSACTIONS),
        EndTxnResponse(producer_id=7, producer_epoch=4),
    )
    assert result == (7, 4)
    requests = [step.request for step in steps if isinstance(step, Send)]
    assert len(requests) == 3
    for request in requests:
        assert isinstance(request, EndTxnRequest)
        assert (request.producer_epoch, request.committed) == (3, True)


def test_when_time_runs_out_the_last_answer_is_named() -> None:
    flow = end_transaction(ME, BACKOFF, committed=True, protocol_version=2)
    next(flow)
    flow.throw(BrokerConnectionError("the connection to b1 was closed"))
    step = next(flow)
    assert isinstance(step, Sleep)
    with pytest.raises(RequestTimedOutError, match="connection to b1 was closed"):
        flow.throw(RequestTimedOutError("gave up"))


@pytest.mark.parametrize(
    ("version", "producer_id", "epoch", "state", "owner"),
    [
        (1, 7, 3, "Ongoing", Owner.OURS),
        (1, 7, 4, "CompleteAbort", Owner.ABORTED),
        (2, 7, 4, "PrepareEpochFence", Owner.ABORTED),
        (1, 7, 4, "Ongoing", Owner.TAKEN),
        (2, 7, 4, "Empty", Owner.TAKEN),  # It began with InitProducerId; no end leaves Empty.
        (1, 7, 4, "CompleteCommit", Owner.TAKEN),
        (2, 7, 4, "CompleteCommit", Owner.COMMITTED),
        (2, 7, 4, "PrepareCommit", Owner.COMMITTED),
        (2, 7, 5, "CompleteCommit", Owner.TAKEN),
        (2, 7, 5, "Empty", Owner.TAKEN),
        (1, 8, 0, "Empty", Owner.TAKEN),
    ],
)
def test_a_takeover_shows_in_the_epoch_and_the_state(
    version: int, producer_id: int, epoch: int, state: str, owner: Owner
) -> None:
    answer = DescribeTransactionsResponse(
        transaction_states=[
            DescribeTransactionsResponse.TransactionState(
                transactional_id="x",
                producer_id=producer_id,
                producer_epoch=epoch,
                transaction_state=state,
            )
        ]
    )
    result, _ = play(owner_of(ME, BACKOFF, protocol_version=version), answer)
    assert result is owner


def test_an_old_broker_cannot_say_who_has_the_id() -> None:
    result, _ = play(
        owner_of(ME, BACKOFF, protocol_version=2), UnsupportedVersionError("no such request")
    )
    assert result is Owner.UNSAID
