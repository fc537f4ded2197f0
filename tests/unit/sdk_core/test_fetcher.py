"""Goal: the fetcher asks for the right things and hands out exactly what may be seen, once.

Method: the machine is driven with answers made from a model log; a property compares read_committed
and read_uncommitted with the model for any cut of the log into answers. Time is a number.
"""

from __future__ import annotations

from uuid import UUID

import pytest
from consumer_logs import LogBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from onceflow.sdk.core.connection.metadata import (
    ClusterMetadata,
    Node,
    PartitionMetadata,
    TopicMetadata,
)
from onceflow.sdk.core.consume.fetch_buffer import make_deserializer
from onceflow.sdk.core.consume.fetch_plan import FetchOutcome, FetchPlan, FetchSettings
from onceflow.sdk.core.consume.fetcher import Fetcher
from onceflow.sdk.core.consume.record_cursor import RecordCursor
from onceflow.sdk.core.consume.subscription import PartitionPhase, Subscription
from onceflow.sdk.errors import (
    CorruptMessageError,
    NoOffsetForPartitionError,
    RecordError,
    SerializationError,
    TopicAuthorizationFailedError,
)
from onceflow.sdk.model.partitions import IsolationLevel, TopicPartition
from onceflow.sdk.protocol.api.fetch import FetchResponse
from onceflow.sdk.protocol.batch_header import pack_batch, parse_batch_header
from onceflow.sdk.protocol.compression import Codec
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.serde import LookupNeeded

TOPIC = "t"
TOPIC_ID = UUID(int=7)
P0, P1 = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
NEWEST = 17


def cluster(
    leader_epoch: int = 0, leader_id: int = 1, topic_id: UUID = TOPIC_ID
) -> ClusterMetadata:
    partitions = {p: PartitionMetadata(p, leader_id, leader_epoch, (1,), (1,)) for p in (0, 1)}
    return ClusterMetadata(
        nodes={1: Node(1, "h", 1), 2: Node(2, "h", 2)},
        topics={TOPIC: TopicMetadata(TOPIC, topic_id, False, 0, partitions)},
    )


class Rig:
    """A fetcher with its subscription, a clock and a model log per partition."""

    def __init__(self, *partitions: TopicPartition, reset: str = "earliest", **options: object):
        self.subscription = Subscription(reset)
        self.subscription.assign_manually(partitions or (P0,))
        for partition in partitions or (P0,):
            self.subscription.seek(partition, 0)
        self.settings = FetchSettings(**options)  # type: ignore[arg-type]
        self.fetcher = Fetcher(self.settings, self.subscription)
        self.cluster = cluster()
        self.now_ms = 0
        self.version = NEWEST

    def plan(self) -> FetchPlan | None:
        plans = self.fetcher.plan(self.cluster, self.now_ms, lambda _: self.version)
        return plans[0] if plans else None

    def must_plan(self) -> FetchPlan:
        plan = self.plan()
        assert plan is not None, "nothing to fetch"
        return plan

    def answer(
        self, plan: FetchPlan, *partitions: FetchResponse.PartitionData, session_id: int = 5
    ) -> FetchOutcome:
        by_id = bool(plan.request.topics) and plan.request.topics[0].topic_id == TOPIC_ID
        topic = FetchResponse.FetchableTopicResponse(partitions=list(partitions))
        if by_id or self.version >= 13:
            topic.topic_id = TOPIC_ID
        else:
            topic.topic = TOPIC
        response = FetchResponse(session_id=session_id, responses=[topic])
        return self.fetcher.on_response(plan, response, self.now_ms)

    def refuse(self, plan: FetchPlan, code: ErrorCode, partition: int = 0) -> FetchOutcome:
        data = FetchResponse.PartitionData(partition_index=partition, error_code=code)
        return self.answer(plan, data)

    def take(self, limit: int = 1_000) -> list[tuple[int, object]]:
        taken = self.fetcher.take(limit, self.now_ms)
        self.fail_without(taken)
        return [(record.offset, record.value) for records in taken.values() for record in records]

    def fail_without(self, taken: object) -> None:
        """As a poll does that has no records to return."""
        failure = None if taken else self.fetcher.unreadable.take_failure()
        if failure is not None:
            raise failure

    def take_form(self, form: str, limit: int) -> list[tuple[int, object]]:
        """Take records as records, or field by field."""
        if form == "records":
            return self.take(limit)
        columns = self.fetcher.take_columns(limit, self.now_ms, values_only=form == "values")
        self.fail_without(columns)
        for run in columns.values():
            assert form == "values" or not run.values_only
            assert [record.offset for record in run] == list(run.offsets)
        return [
            pair for run in columns.values() for pair in zip(run.offsets, run.values, strict=True)
        ]

    def asked(self, plan: FetchPlan) -> dict[int, int]:
        return {p.partition: p.fetch_offset for t in plan.request.topics for p in t.partitions}


# --- what may be seen ---


@st.composite
def logs(draw: st.DrawFn) -> LogBuilder:
    log = LogBuilder()
    for step in range(draw(st.integers(1, 25))):
        producer_id = draw(st.integers(1, 3))
        action = draw(st.sampled_from(["plain", "send", "send", "commit", "abort"]))
        values = [b"%d-%d" % (step, i) for i in range(draw(st.integers(1, 3)))]
        if action == "plain":
            log.records(*values)
        elif action == "send":
            log.records(*values, producer_id=producer_id, transactional=True)
        else:
            log.end(producer_id, committed=action == "commit")
    return log


@settings(max_examples=150)
@given(
    log=logs(),
    read_committed=st.booleans(),
    batch_count=st.sampled_from([1, 2, 3, None]),
    start=st.integers(0, 8),
    limit=st.sampled_from([1, 2, 1_000]),
    reverse_aborted=st.booleans(),
    forms=st.lists(st.sampled_from(["records", "columns", "values"]), min_size=1, max_size=5),
)
def test_a_reader_sees_what_the_model_says_for_any_cut_into_answers(
    log: LogBuilder,
    read_committed: bool,
    batch_count: int | None,
    start: int,
    limit: int,
    reverse_aborted: bool,
    forms: list[str],
) -> None:
    isolation = IsolationLevel(int(read_committed))
    rig = Rig(isolation_level=isolation)
    end = log.last_stable_offset if read_committed else log.next_offset
    start = min(start, end)
    rig.subscription.seek(P0, start)
    seen = []
    state = rig.subscription.state(P0)
    for turn in range(200):
        plan = rig.plan()
        if plan is not None:
            answer = log.fetch_answer(
                state.fetch_offset,
                read_committed=read_committed,
                batch_count=batch_count,
                reverse_aborted=reverse_aborted,
            )
            rig.answer(plan, answer)
        seen += rig.take_form(forms[turn % len(forms)], limit)
        if state.position >= end:
            break
    # FC-17: the position steps over markers and aborted records at the end of the log.
    assert state.position == end
    assert seen == log.visible(start, end, read_committed=read_committed)
    assert rig.fetcher.buffered_bytes == 0


def test_a_marker_without_an_entry_does_not_end_a_later_transaction() -> None:
    log = LogBuilder()
    log.end(1, committed=False)
    log.records(b"hidden", producer_id=1, transactional=True)
    log.end(1, committed=False)
    log.records(b"seen")
    rig = Rig()
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    assert rig.take() == [(3, b"seen")]


def test_an_aborted_transaction_hides_nothing_that_was_written_after_its_marker() -> None:
    log = LogBuilder()
    log.records(b"aborted", producer_id=1, transactional=True)
    log.end(1, committed=False)
    log.records(b"committed", producer_id=1, transactional=True)
    log.end(1, committed=True)
    rig = Rig()
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    assert rig.take() == [(2, b"committed")]
    assert rig.subscription.state(P0).position == 4


def test_a_marker_whose_record_is_gone_by_compaction_only_moves_the_position() -> None:
    log = LogBuilder()
    log.end(1, committed=False)
    base_offset, marker = log.batches.pop()
    emptied = pack_batch(parse_batch_header(marker)._replace(records_count=0), b"")
    log.batches.append((base_offset, bytes(emptied)))
    log.records(b"a")
    rig = Rig()
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    assert rig.take() == [(1, b"a")]


@pytest.mark.parametrize("codec", list(Codec))
def test_records_before_the_offset_asked_for_are_dropped(codec: Codec) -> None:
    log = LogBuilder()
    log.records(*(b"%d" % i for i in range(10)), codec=codec)
    rig = Rig()
    rig.subscription.seek(P0, 7)
    rig.answer(rig.must_plan(), log.fetch_answer(7))
    assert rig.take() == [(7, b"7"), (8, b"8"), (9, b"9")]


def test_the_cut_end_of_an_answer_is_fetched_again() -> None:
    log = LogBuilder()
    log.records(b"a")
    log.records(b"b")
    rig = Rig()
    answer = log.fetch_answer(0)
    assert answer.records is not None
    answer.records = bytes(answer.records)[:-3]
    rig.answer(rig.must_plan(), answer)
    assert rig.take() == [(0, b"a")]
    assert rig.asked(rig.must_plan()) == {0: 1}


def test_limits_are_kept_and_nothing_is_lost_between_takes() -> None:
    log = LogBuilder()
    log.records(*(b"%d" % i for i in range(5)))
    log.records(*(b"%d" % i for i in range(5, 9)))
    rig = Rig()
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    assert [len(rig.take(4)) for _ in range(3)] == [4, 4, 1]
    assert rig.subscription.state(P0).position == 9


# --- what cannot be read ---


def damaged(answer: FetchResponse.PartitionData, at: int = -2) -> FetchResponse.PartitionData:
    """The answer with one bit of its bytes flipped."""
    assert answer.records is not None
    data = bytearray(answer.records)
    data[at] ^= 1
    answer.records = bytes(data)
    return answer


def test_an_answer_that_was_damaged_on_its_way_is_asked_for_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = LogBuilder()
    log.records(b"fine")
    log.records(b"flipped")
    rig = Rig(retry_backoff_ms=100)
    rig.answer(rig.must_plan(), damaged(log.fetch_answer(0)))
    assert rig.take() == [(0, b"fine")]
    assert rig.take() == [], "the application hears nothing of it yet"
    assert "cannot read t-0 at offset 1" in caplog.text
    assert rig.fetcher.buffered_bytes == 0
    assert rig.plan() is None, "asked again after a pause"
    assert rig.fetcher.next_retry_ms(rig.now_ms) == 100
    rig.now_ms = 100
    plan = rig.must_plan()
    assert rig.asked(plan) == {0: 1}
    rig.answer(plan, log.fetch_answer(1))
    assert rig.take() == [(1, b"flipped")]
    assert not rig.fetcher.unreadable.has_failure


def test_a_batch_that_stays_damaged_is_told_once_for_each_try() -> None:
    log = LogBuilder()
    log.records(b"fine")
    log.records(b"broken", b"broken")
    log.records(b"behind")
    rig = Rig(retry_backoff_ms=100, retry_backoff_max_ms=400)
    end = log.fetch_answer(0)
    assert end.records is not None
    middle = len(end.records) - len(log.fetch_answer(3).records or b"") - 1
    pauses = []
    for told in range(5):
        answer = damaged(log.fetch_answer(rig.subscription.state(P0).position), -1)
        if told == 0:
            answer = damaged(log.fetch_answer(0), middle)
        else:
            assert answer.records is not None
            data = bytearray(log.fetch_answer(1).records or b"")
            data[70] ^= 1
            answer.records = bytes(data)
        rig.answer(rig.must_plan(), answer)
        if told == 0:
            assert rig.take() == [(0, b"fine")]
            assert rig.take() == []
        else:
            with pytest.raises(RecordError, match="checksum") as caught:
                rig.take()
            assert caught.value.place == (*P0, 1)
            assert "cannot read t-0 at offset 1:" in str(caught.value)
            assert "seek to 3 to go on without the batch" in str(caught.value)
            assert rig.take() == [], "once for each try"
        due_ms = rig.fetcher.next_retry_ms(rig.now_ms)
        assert due_ms is not None
        pauses.append(due_ms - rig.now_ms)
        rig.now_ms = due_ms
    assert pauses == [100, 200, 400, 400, 400]
    assert rig.subscription.state(P0).position == 1
    rig.subscription.seek(P0, 3)
    rig.answer(rig.must_plan(), log.fetch_answer(3))
    assert rig.take() == [(3, b"behind")]


def test_other_partitions_go_on_beside_a_damaged_one() -> None:
    bad, good = LogBuilder(), LogBuilder()
    bad.records(b"bad")
    good.records(b"0")
    rig = Rig(P0, P1)
    for number in range(4):
        answer = good.fetch_answer(number)
        answer.partition_index = 1
        plan = rig.must_plan()
        answers = [answer]
        if P0 in plan.asked:
            answers.append(damaged(bad.fetch_answer(0)))
        rig.answer(plan, *answers)
        assert rig.take() == [(number, b"%d" % number)]
        if number:
            with pytest.raises(RecordError):
                rig.take()
        good.records(b"%d" % (number + 1))
        rig.now_ms += 1_000


def test_damage_behind_what_was_read_ahead_is_told_when_the_application_is_there() -> None:
    """It would lose the records in between if it sought past the place before."""
    log = LogBuilder()
    log.records(b"0")
    rig = Rig()
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    log.records(b"1")
    for _ in range(3):
        rig.answer(rig.must_plan(), damaged(log.fetch_answer(1), 16))  # The format's number.
        assert not rig.fetcher.unreadable.has_failure
        rig.now_ms += 1_000
    cursor = RecordCursor(rig.subscription)
    cursor.load(rig.fetcher.take(10, rig.now_ms))
    assert not rig.fetcher.unreadable.has_failure
    assert cursor.next() is not None
    assert rig.fetcher.unreadable.has_failure
    with pytest.raises(RecordError, match=r"cannot read t-0 at offset 1: .*seek past it"):
        rig.take()


@pytest.mark.parametrize("kept", [1, 60, 61, 64])
def test_an_answer_that_ends_within_its_first_batch_is_damaged(kept: int) -> None:
    """KIP-74: brokers answer with one whole batch at least, or with nothing."""
    log = LogBuilder()
    log.records(b"0")
    rig = Rig()
    for _ in range(2):
        answer = log.fetch_answer(0)
        answer.records = bytes(answer.records or b"")[:kept]
        rig.answer(rig.must_plan(), answer)
        assert rig.plan() is None, "not asked for again at once"
        rig.now_ms += 1_000
    with pytest.raises(RecordError, match=r"cannot read t-0 at offset 0: .*cut"):
        rig.take()


def test_what_comes_before_a_batch_with_a_damaged_header_is_delivered() -> None:
    log = LogBuilder()
    log.records(b"fine")
    first = len(log.fetch_answer(0).records or b"")
    log.records(b"damaged")
    rig = Rig()
    rig.answer(rig.must_plan(), damaged(log.fetch_answer(0), first + 16))
    assert rig.take() == [(0, b"fine")]
    assert rig.asked(rig.must_plan()) == {0: 1}


def test_a_record_that_cannot_be_deserialized_stops_there_until_a_seek() -> None:
    log = LogBuilder()
    log.records(b"1", b"x", b"3")
    deserialize = make_deserializer(None, lambda data: int(data))
    rig = Rig(deserialize=deserialize)
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    assert rig.take() == [(0, 1)]
    for _ in range(2):
        with pytest.raises(SerializationError, match=r"offset 1 of t-0.*seek to 2") as caught:
            rig.take()
        assert caught.value.place == (*P0, 1)
        assert rig.take() == []
        rig.now_ms += 1_000
    rig.subscription.seek(P0, 2)
    rig.answer(rig.must_plan(), log.fetch_answer(2))
    assert rig.take() == [(2, 3)]


def test_a_record_that_cannot_be_deserialized_holds_up_its_own_partition_only() -> None:
    refused = {b"x"}

    def read(data: bytes) -> bytes:
        if data in refused:
            raise ValueError("refused")
        return data

    bad, good = LogBuilder(), LogBuilder()
    bad.records(b"x", b"y")
    good.records(*(b"%d" % number for number in range(5)))
    answer = good.fetch_answer(0)
    answer.partition_index = 1
    rig = Rig(P0, P1, deserialize=make_deserializer(None, read), retry_backoff_ms=100)
    rig.answer(rig.must_plan(), bad.fetch_answer(0), answer)
    assert rig.take(2) == [(0, b"0"), (1, b"1")]
    with pytest.raises(SerializationError):
        raise rig.fetcher.unreadable.take_failure() or AssertionError("nothing failed")
    assert rig.take(2) == [(2, b"2"), (3, b"3")]
    assert rig.take(2) == [(4, b"4")]
    assert rig.fetcher.next_retry_ms(rig.now_ms) == 100
    assert rig.plan() is not None, "the others are fetched as ever"
    refused.clear()
    rig.now_ms = 100
    assert rig.take() == [(0, b"x"), (1, b"y")]


def test_a_look_up_holds_up_its_own_partition_only() -> None:
    known: set[bytes] = set()

    def read(data: bytes) -> bytes:
        if data not in known and data.startswith(b"x"):
            raise LookupNeeded(lambda: known.add(data))
        return data

    needs, plain = LogBuilder(), LogBuilder()
    needs.records(b"x")
    plain.records(b"0")
    answer = plain.fetch_answer(0)
    answer.partition_index = 1
    rig = Rig(P0, P1, deserialize=make_deserializer(None, read))
    rig.answer(rig.must_plan(), needs.fetch_answer(0), answer)
    assert rig.take() == [(0, b"0")]
    (needed,) = rig.fetcher.lookups.values()
    assert needed.where == "offset 0 of t-0"
    rig.fetcher.hold(P0, SerializationError("the registry is down"), rig.now_ms)
    with pytest.raises(SerializationError, match="registry"):
        rig.take()
    assert not rig.fetcher.lookups, "it waits"
    needed.load()
    rig.now_ms += 1_000
    assert rig.take() == [(0, b"x")]
    assert not rig.fetcher.lookups


# --- stamps ---


def test_records_of_a_partition_that_was_sought_meanwhile_are_not_delivered() -> None:
    log = LogBuilder()
    log.records(b"0", b"1", b"2")
    rig = Rig()
    buffered, late = rig.must_plan(), None
    rig.answer(buffered, log.fetch_answer(0))
    rig.subscription.seek(P0, 2)
    assert rig.take() == []
    late = rig.must_plan()
    rig.subscription.seek(P0, 1)
    rig.answer(late, log.fetch_answer(2))
    assert rig.take() == []
    rig.answer(rig.must_plan(), log.fetch_answer(1))
    assert rig.take() == [(1, b"1"), (2, b"2")]


def test_an_answer_for_a_former_ownership_is_void_after_the_partition_came_back() -> None:
    log = LogBuilder()
    log.records(b"0")
    rig = Rig()
    plan = rig.must_plan()
    rig.subscription.remove([P0])
    rig.subscription.assign_manually([P0])
    rig.subscription.seek(P0, 0)
    rig.answer(plan, log.fetch_answer(0))
    assert rig.take() == []


def test_nothing_is_delivered_of_a_partition_that_is_being_revoked() -> None:
    log = LogBuilder()
    log.records(b"0")
    rig = Rig()
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    rig.subscription.mark_revoking([P0])
    assert rig.take() == []
    assert rig.subscription.state(P0).position == 0


def test_a_paused_partition_keeps_what_was_fetched() -> None:
    log = LogBuilder()
    log.records(b"0")
    rig = Rig()
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    rig.subscription.state(P0).paused = True
    assert rig.take() == []
    assert rig.plan() is None
    rig.subscription.state(P0).paused = False
    assert rig.take() == [(0, b"0")]


# --- errors ---


@pytest.mark.parametrize(("reset", "timestamp"), [("earliest", -2), ("latest", -1)])
def test_an_offset_out_of_range_is_reset_by_policy(reset: str, timestamp: int) -> None:
    rig = Rig(reset=reset)
    rig.refuse(rig.must_plan(), ErrorCode.OFFSET_OUT_OF_RANGE)
    state = rig.subscription.state(P0)
    assert (state.phase, state.reset_timestamp) == (PartitionPhase.RESETTING, timestamp)


def test_without_a_policy_an_offset_out_of_range_names_itself_until_a_seek() -> None:
    rig = Rig(reset="none")
    rig.subscription.seek(P0, 10)
    rig.refuse(rig.must_plan(), ErrorCode.OFFSET_OUT_OF_RANGE)
    for _ in range(2):
        failure = rig.subscription.failure()
        assert isinstance(failure, NoOffsetForPartitionError)
        assert "offset 10 of t-0" in str(failure)
        assert rig.plan() is None
    rig.subscription.seek(P0, 50)
    assert rig.subscription.failure() is None
    assert rig.asked(rig.must_plan()) == {0: 50}


def test_what_was_read_before_the_end_of_range_is_delivered_first() -> None:
    log = LogBuilder()
    log.records(b"0")
    rig = Rig(reset="none")
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    rig.refuse(rig.must_plan(), ErrorCode.OFFSET_OUT_OF_RANGE)
    assert rig.subscription.failure() is None
    assert rig.take() == [(0, b"0")]
    rig.now_ms = 1_000
    rig.refuse(rig.must_plan(), ErrorCode.OFFSET_OUT_OF_RANGE)
    assert rig.subscription.failure() is not None


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
    ],
)
def test_a_moved_leader_asks_for_metadata_and_waits(code: ErrorCode) -> None:
    rig = Rig()
    assert rig.refuse(rig.must_plan(), code).refresh_metadata
    assert rig.plan() is None
    assert rig.fetcher.next_retry_ms(0) == rig.settings.retry_backoff_ms
    rig.now_ms = rig.settings.retry_backoff_ms
    assert set(rig.must_plan().asked) == {P0}


def test_a_leader_named_in_the_refusal_is_passed_on() -> None:
    rig = Rig()
    data = FetchResponse.PartitionData(
        partition_index=0,
        error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER,
        current_leader=FetchResponse.LeaderIdAndEpoch(leader_id=2, leader_epoch=4),
    )
    assert rig.answer(rig.must_plan(), data).leaders == {P0: (2, 4)}


def test_a_refusal_that_does_not_pass_reaches_the_application() -> None:
    rig = Rig()
    for _ in range(2):
        rig.refuse(rig.must_plan(), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        with pytest.raises(TopicAuthorizationFailedError, match="t-0 at offset 0") as caught:
            rig.take()
        assert caught.value.place == (*P0, 0)
        assert rig.plan() is None
        rig.now_ms += 1_000
    rig.refuse(rig.must_plan(), ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    rig.now_ms += 1_000
    rig.answer(rig.must_plan(), LogBuilder().fetch_answer(0))
    assert rig.take() == [], "it was granted before the application asked"


def test_a_batch_that_the_broker_calls_corrupt_is_asked_for_once_more() -> None:
    rig = Rig()
    rig.refuse(rig.must_plan(), ErrorCode.CORRUPT_MESSAGE)
    assert rig.take() == []
    rig.now_ms += 1_000
    rig.refuse(rig.must_plan(), ErrorCode.CORRUPT_MESSAGE)
    with pytest.raises(CorruptMessageError, match="t-0 at offset 0; seek past it"):
        rig.take()


def test_a_changed_leader_epoch_holds_the_partition_for_validation() -> None:
    log = LogBuilder(leader_epoch=3)
    log.records(b"0")
    rig = Rig()
    rig.cluster = cluster(leader_epoch=3)
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    rig.cluster = cluster(leader_epoch=4)
    assert rig.plan() is None
    state = rig.subscription.state(P0)
    assert state.phase is PartitionPhase.VALIDATING
    rig.subscription.apply_epoch_end(P0, 3, 1, 4)
    assert rig.asked(rig.must_plan()) == {0: 1}


def test_an_epoch_that_the_leader_does_not_know_has_the_metadata_looked_at() -> None:
    rig = Rig()
    rig.cluster = cluster(leader_epoch=4)
    outcome = rig.refuse(rig.must_plan(), ErrorCode.UNKNOWN_LEADER_EPOCH)
    assert (outcome.refresh_metadata, outcome.failure) == (True, None)
    assert rig.subscription.state(P0).retry_at_ms > rig.now_ms


def test_a_position_is_validated_also_where_the_leader_epoch_went_back() -> None:
    log = LogBuilder(leader_epoch=2)
    log.records(b"0")
    rig = Rig()
    rig.cluster = cluster(leader_epoch=4)
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    rig.cluster = cluster(leader_epoch=3)
    assert rig.plan() is None
    assert rig.subscription.state(P0).phase is PartitionPhase.VALIDATING
    rig.subscription.apply_epoch_end(P0, 2, 1, 3)
    assert rig.asked(rig.must_plan()) == {0: 1}


def test_a_log_that_was_cut_below_the_position_goes_on_at_the_cut() -> None:
    log = LogBuilder(leader_epoch=3)
    log.records(b"0", b"1", b"2")
    rig = Rig()
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    rig.take()
    rig.cluster = cluster(leader_epoch=5)
    assert rig.plan() is None
    rig.subscription.apply_epoch_end(P0, 3, 2, 5)
    assert rig.asked(rig.must_plan()) == {0: 2}


def test_a_cut_log_without_a_policy_is_an_error() -> None:
    rig = Rig(reset="none")
    rig.subscription.seek(P0, 9, 3)
    rig.cluster = cluster(leader_epoch=5)
    assert rig.plan() is None
    rig.subscription.apply_epoch_end(P0, 3, 2, 5)
    assert "cut at 2, below the offset 9" in str(rig.subscription.failure())


# --- requests ---


def test_one_fetch_at_a_time_to_a_broker_and_again_after_a_failure() -> None:
    rig = Rig()
    plan = rig.must_plan()
    assert rig.plan() is None
    assert rig.fetcher.on_failure(plan, 0).refresh_metadata
    assert rig.plan() is None
    rig.now_ms = 100
    assert rig.must_plan().request.session_epoch == 0


def test_topics_are_named_for_old_brokers_and_given_by_id_to_new_ones() -> None:
    rig = Rig()
    plan = rig.must_plan()
    assert (plan.request.topics[0].topic_id, plan.max_version) == (TOPIC_ID, None)
    rig = Rig()
    rig.version = 12
    plan = rig.must_plan()
    assert (plan.request.topics[0].topic, plan.max_version) == (TOPIC, 12)


def test_a_node_whose_version_is_unknown_is_left_out_and_named() -> None:
    rig = Rig()
    assert rig.fetcher.plan(rig.cluster, 0, lambda _: None) == []
    assert rig.fetcher.unknown_nodes == {1}


def test_a_session_names_only_what_changed() -> None:
    log = LogBuilder()
    log.records(b"0")
    rig = Rig(P0, P1)
    first = rig.must_plan()
    assert (first.request.session_id, first.request.session_epoch) == (0, 0)
    rig.answer(first, log.fetch_answer(0), at_end(1, 0))
    rig.take()
    second = rig.must_plan()
    assert (second.request.session_id, second.request.session_epoch) == (5, 1)
    assert rig.asked(second) == {0: 1}
    rig.answer(second)
    rig.subscription.state(P1).paused = True
    third = rig.must_plan()
    assert rig.asked(third) == {}
    assert [f.partitions for f in third.request.forgotten_topics_data] == [[1]]


def at_end(partition: int, offset: int) -> FetchResponse.PartitionData:
    return FetchResponse.PartitionData(
        partition_index=partition, high_watermark=offset, last_stable_offset=offset, records=b""
    )


@pytest.mark.parametrize("answered", ["before", "after"])
def test_the_end_of_a_partition_that_came_back_is_asked_for_again(answered: str) -> None:
    """In a session the broker tells it only when it changes, and it told it the former owner."""
    rig = Rig(P0, P1)
    plan = rig.must_plan()
    if answered == "before":
        rig.answer(plan, at_end(0, 0), at_end(1, 0))
    rig.subscription.remove([P1])
    rig.subscription.assign_manually([P0, P1])
    rig.subscription.seek(P1, 0)
    if answered == "after":
        rig.answer(plan, at_end(0, 0), at_end(1, 0))
    again = rig.must_plan()
    assert again.request.session_epoch == 0
    assert rig.asked(again) == {0: 0, 1: 0}
    rig.answer(again, at_end(0, 0), at_end(1, 0))
    assert rig.subscription.state(P1).lag(IsolationLevel.READ_UNCOMMITTED) == 0
    assert rig.asked(rig.must_plan()) == {}


def test_the_end_of_a_partition_that_was_paused_is_asked_for_again() -> None:
    """Also when the broker has heard of neither the pause nor its end."""
    rig = Rig(P0, P1)
    rig.answer(rig.must_plan(), at_end(0, 0), at_end(1, 0))
    state = rig.subscription.state(P1)
    state.paused = True
    state.resume()
    again = rig.must_plan()
    assert again.request.session_epoch == 0
    rig.answer(again, at_end(0, 0), at_end(1, 0))
    assert state.lag(IsolationLevel.READ_UNCOMMITTED) == 0


@pytest.mark.parametrize(
    ("code", "kept_id"),
    [(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0), (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 5)],
)
def test_a_lost_session_is_begun_anew_at_once(code: ErrorCode, kept_id: int) -> None:
    rig = Rig()
    rig.answer(rig.must_plan())
    plan = rig.must_plan()
    rig.fetcher.on_response(plan, FetchResponse(error_code=code, responses=[]), 0)
    again = rig.must_plan()
    assert (again.request.session_id, again.request.session_epoch) == (kept_id, 0)
    assert rig.asked(again) == {0: 0}


def test_a_broker_without_session_slots_gets_full_requests() -> None:
    rig = Rig()
    for _ in range(2):
        plan = rig.must_plan()
        assert plan.request.session_epoch == 0
        rig.answer(plan, session_id=0)


def test_a_topic_made_anew_is_asked_for_under_its_new_id() -> None:
    rig = Rig()
    rig.answer(rig.must_plan())
    rig.cluster = cluster(topic_id=UUID(int=8))
    plan = rig.must_plan()
    assert [t.topic_id for t in plan.request.topics] == [UUID(int=8)]
    assert [t.topic_id for t in plan.request.forgotten_topics_data] == [TOPIC_ID]


# --- reading ahead ---


def test_a_partition_with_much_unread_data_is_not_fetched() -> None:
    log = LogBuilder()
    log.records(*(b"x" * 100 for _ in range(20)))
    rig = Rig(partition_max_bytes=1_000)
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    assert rig.plan() is None
    rig.take()
    assert rig.plan() is not None


def test_the_next_answer_is_asked_for_while_the_application_works_on_one() -> None:
    log = LogBuilder()
    log.records(*(b"x" * 100 for _ in range(8)))
    size = len(bytes(log.fetch_answer(0).records or b""))
    rig = Rig(partition_max_bytes=size)
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    assert rig.asked(rig.must_plan()) == {0: 8}, "a whole answer waits, and no more than that"
    rig = Rig(partition_max_bytes=size - 1)
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    assert rig.plan() is None


def test_errors_behind_whole_batches_lose_none_of_them() -> None:
    log = LogBuilder()
    for number in range(3):
        log.records(b"%d" % number, b"x")
    answer = log.fetch_answer(0)
    broken = bytearray(answer.records or b"")
    broken[-1] ^= 1
    answer.records = bytes(broken)
    for form in ("records", "columns", "values"):
        rig = Rig()
        rig.answer(rig.must_plan(), answer)
        assert rig.take_form(form, 3) == [(0, b"0"), (1, b"x"), (2, b"1")]
        assert rig.take_form(form, 100) == [(3, b"x")]
        assert rig.subscription.state(P0).position == 4
        assert rig.take_form(form, 100) == []
        rig.now_ms += 1_000
        rig.answer(rig.must_plan(), damaged(log.fetch_answer(4), -1))
        with pytest.raises(RecordError):
            rig.take_form(form, 100)
        assert rig.subscription.state(P0).position == 4


def test_fetching_ahead_never_waits_at_the_broker_while_others_have_data() -> None:
    log = LogBuilder()
    log.records(*(b"x" * 100 for _ in range(20)))
    rig = Rig(P0, P1, partition_max_bytes=1_000)
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    ahead = rig.must_plan()
    assert (ahead.request.max_wait_ms, ahead.request.min_bytes) == (0, 0)
    assert set(ahead.asked) == {P1}
    rig.answer(ahead)
    assert rig.plan() is None, "an idle partition must not be asked for over and over"
    assert rig.fetcher.next_retry_ms(0) == 500
    rig.now_ms = 500
    again = rig.must_plan()
    assert (again.request.max_wait_ms, set(again.asked)) == (0, {P1})
    rig.answer(again)
    rig.take()
    assert rig.must_plan().request.max_wait_ms == 500


def test_what_a_paused_partition_holds_does_not_stop_the_others() -> None:
    log = LogBuilder()
    log.records(*(b"x" * 100 for _ in range(20)))
    rig = Rig(P0, P1, partition_max_bytes=1_000, max_bytes=1_500)
    rig.answer(rig.must_plan(), log.fetch_answer(0))
    assert rig.plan() is None
    rig.subscription.state(P0).paused = True
    assert set(rig.must_plan().asked) == {P1}


def test_partitions_take_turns() -> None:
    log = LogBuilder()
    for _ in range(4):
        log.records(b"x")
    rig = Rig(P0, P1)
    plan = rig.must_plan()
    rig.answer(plan, log.fetch_answer(0), log.fetch_answer(0, partition=1))
    served = [next(iter(rig.fetcher.take(1, 0))).partition for _ in range(4)]
    assert served == [0, 1, 0, 1]


@pytest.mark.parametrize("way", ["refused", "no answer", "no connection"])
def test_a_preferred_replica_is_used_until_it_fails(way: str) -> None:
    rig = Rig(rack="r")
    data = LogBuilder().fetch_answer(0)
    data.preferred_read_replica = 2
    rig.answer(rig.must_plan(), data)
    if way == "no connection":
        rig.fetcher.on_unreachable(2)
    else:
        follower = rig.must_plan()
        assert follower.node_id == 2
        if way == "refused":
            rig.refuse(follower, ErrorCode.OFFSET_OUT_OF_RANGE)
        else:
            rig.fetcher.on_failure(follower, rig.now_ms)
    rig.now_ms = 1_000
    assert rig.must_plan().node_id == 1
    assert rig.subscription.state(P0).phase is PartitionPhase.READY
