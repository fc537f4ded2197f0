"""Goal: a session tells whose fault an error is, keeps notes, and commits only what it tracks.

Method: a session over the in-memory cluster of ``processor_fakes``; one call fails, or partitions
move, at one moment.
"""

from __future__ import annotations

import pytest
from processor_fakes import FakeClients, FakeCluster, FakeConsumer

from onceflow.sdk.errors import (
    BufferExhaustedError,
    ConcurrentTransactionsError,
    ConfigError,
    CorruptMessageError,
    DeliveryTimeoutError,
    InvalidProducerEpochError,
    KafkaError,
    MessageTooLargeError,
    OutOfOrderSequenceNumberError,
    ProducerFencedError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    TransactionAbortableError,
    TransactionAbortedError,
    UnknownProducerIdError,
)
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition
from onceflow.transactions import (
    AbortReason,
    AsyncTransactionSession,
    SessionConfig,
    TransactionSession,
)
from onceflow.transactions.listener import NoListener, Offsets
from onceflow.transactions.offset_notes import NOTE_BYTES_MAX

IN0 = TopicPartition("in", 0)
IN1 = TopicPartition("in", 1)


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.put("in", "a", "b", "c")
    return cluster


def make(
    cluster: FakeCluster,
    *partitions: TopicPartition,
    listener: NoListener | None = None,
    **changes: object,
) -> TransactionSession:
    settings: dict[str, object] = {
        "topics": ["in"],
        "bootstrap_servers": "unused:1",
        "group_id": "g",
    }
    config = SessionConfig(**(settings | changes))  # type: ignore[arg-type]
    return TransactionSession(
        config, listener=listener, clients=FakeClients(cluster, partitions or (IN0,))
    )


def member(cluster: FakeCluster) -> FakeConsumer:
    return cluster.members[-1]


# What is committed ---------------------------------------------------------------------------


def test_commit_that_names_a_partition_without_work_aborts(cluster: FakeCluster) -> None:
    """Outputs of records that were read under an earlier assignment never become visible."""
    session = make(cluster, IN0, IN1)
    session.poll()
    member(cluster).pending.append(({IN1}, True, 2))  # in-0 is lost: its work is aborted
    session.poll()
    session.send("out", "of the first assignment")
    assert session.commit({IN0: 3}) is False
    assert session.last_abort is not None
    assert session.last_abort.reason is AbortReason.PARTITIONS_LOST
    assert cluster.values("out") == []
    assert cluster.offset("in") is None


def test_commit_of_an_offset_that_is_committed_already_is_fine(cluster: FakeCluster) -> None:
    session = make(cluster)
    session.poll()
    assert session.commit({IN0: 3})
    assert session.commit({IN0: 3})
    session.send("out", "more")
    assert session.commit({IN0: 3})
    assert cluster.values("out") == ["more"]


class Progressing(NoListener):
    """Tells a progress of the test's choice."""

    def __init__(self, offsets: Offsets) -> None:
        self.offsets = offsets

    def progress(self) -> Offsets | None:
        return self.offsets


def test_progress_of_a_partition_without_work_aborts_in_a_rebalance(cluster: FakeCluster) -> None:
    session = make(cluster, IN0, IN1, listener=Progressing({IN1: 7}))
    session.poll()
    session.send("out", "x")
    member(cluster).pending.append(({IN1}, False, 2))
    session.poll()
    assert cluster.values("out") == []
    assert cluster.offset("in") is None


# Notes ---------------------------------------------------------------------------------------


def test_note_reaches_the_next_owner(cluster: FakeCluster) -> None:
    session = make(cluster)
    session.poll()
    assert session.note(IN0) is None
    assert session.commit({IN0: OffsetAndMetadata(2, "stream time 17; and more")})
    assert cluster.offset("in") == 2
    session.close()
    other = make(cluster)
    other.poll()
    assert other.note(IN0) == "stream time 17; and more"
    assert other.commit()  # without a note
    other.close()
    third = make(cluster)
    third.poll()
    assert third.note(IN0) == ""


@pytest.mark.parametrize(
    "foreign", ["", "by hand", "onceflow:12:1", "onceflow2:a;b", "onceflow1:a"]
)
def test_foreign_metadata_reads_as_no_note(cluster: FakeCluster, foreign: str) -> None:
    cluster.committed[IN0] = OffsetAndMetadata(1, foreign)
    session = make(cluster)
    session.poll()
    assert session.note(IN0) is None


def test_note_that_kafka_would_refuse_is_refused_first(cluster: FakeCluster) -> None:
    session = make(cluster)
    session.poll()
    with pytest.raises(ConfigError, match="keep at most 4000 bytes"):
        session.commit({IN0: OffsetAndMetadata(3, "ü" * (NOTE_BYTES_MAX // 2 + 1))})
    assert cluster.offset("in") is None
    assert session.commit({IN0: OffsetAndMetadata(3, "x" * NOTE_BYTES_MAX)})


# Where reading starts ------------------------------------------------------------------------


def test_start_at_the_end_is_committed_with_the_assignment(cluster: FakeCluster) -> None:
    """Records that arrive between a stop before the first commit and the next start are read."""
    session = make(cluster, start_from="latest")
    session.poll()
    assert cluster.offset("in") == 3
    session.close()
    cluster.put("in", "while it was down")
    session = make(cluster, start_from="latest")
    (records,) = session.poll().values()
    assert [record.value for record in records] == ["while it was down"]


@pytest.mark.parametrize(
    "call", ["flush", "send_offsets_to_transaction", "ensure_membership", "commit_transaction"]
)
def test_start_that_could_not_be_committed_is_committed_at_the_next_poll(
    cluster: FakeCluster, call: str
) -> None:
    cluster.fail(call, TransactionAbortableError())
    session = make(cluster, start_from="latest")
    session.poll()
    assert cluster.offset("in") is None
    session.poll()
    assert cluster.offset("in") == 3


def test_start_is_part_of_a_commit_of_other_partitions(cluster: FakeCluster) -> None:
    """A partition comes while work is open: the work and the start are committed together."""
    session = make(cluster, IN0, start_from="earliest")
    cluster.put("in", "x", "y", partition=1)
    session.poll()
    session._core._positions._start_from = "latest"
    member(cluster).pending.append(({IN0, IN1}, False, 2))
    session.poll()
    assert cluster.offset("in", 1) is None
    assert session.commit()
    assert (cluster.offset("in", 0), cluster.offset("in", 1)) == (3, 2)


def test_start_from_the_beginning_commits_nothing(cluster: FakeCluster) -> None:
    session = make(cluster)
    member(cluster).paused.add(IN0)
    session.poll()
    assert "begin_transaction" not in cluster.calls


# Places --------------------------------------------------------------------------------------


def test_error_of_reading_is_the_inputs(cluster: FakeCluster) -> None:
    session = make(cluster)
    session.poll(max_records=1)
    session.send("out", "A")
    cluster.fail("poll", CorruptMessageError("in-0 at offset 1"))
    result = session.poll_result()
    assert isinstance(result.input_error, CorruptMessageError)
    assert (result.records, result.unit_error) == ({}, None)
    assert session.in_transaction
    assert session.commit()
    assert cluster.values("out") == ["A"]


def test_error_of_a_commit_within_a_rebalance_is_the_units(cluster: FakeCluster) -> None:
    session = make(cluster, IN0, IN1)
    session.poll()
    session.send("out", "too large")
    cluster.fail("flush", MessageTooLargeError("out"))
    member(cluster).pending.append(({IN1}, False, 2))
    result = session.poll_result()
    assert isinstance(result.unit_error, MessageTooLargeError)
    assert (result.records, result.input_error) == ({}, None)
    assert cluster.values("out") == []


def test_poll_raises_what_poll_result_tells(cluster: FakeCluster) -> None:
    session = make(cluster)
    session.poll()
    cluster.fail("poll", CorruptMessageError("in-0 at offset 1"))
    with pytest.raises(CorruptMessageError):
        session.poll()


GOES_ON = [
    TransactionAbortableError(),
    DeliveryTimeoutError("late"),
    BufferExhaustedError("full"),
    RequestTimedOutError("no metadata"),
    InvalidProducerEpochError(),
    ProducerFencedError(),
    OutOfOrderSequenceNumberError(),
    UnknownProducerIdError(),
    ConcurrentTransactionsError(),
    TransactionAbortedError("timed out"),
]
RAISES = [MessageTooLargeError("out"), TopicAuthorizationFailedError("out")]


@pytest.mark.parametrize("call", ["send", "flush", "begin_transaction"])
@pytest.mark.parametrize("error", GOES_ON, ids=lambda error: type(error).__name__)
def test_abortable_error_of_a_send_aborts_and_the_session_goes_on(
    cluster: FakeCluster, call: str, error: KafkaError
) -> None:
    session = make(cluster)
    session.poll()
    cluster.fail(call, error)

    def first_attempt() -> None:
        session.send("out", "first attempt")
        session.flush()

    with pytest.raises(type(error)) as caught:
        first_attempt()
    session.abort(caught.value)
    assert cluster.values("out") == []
    for _ in range(3):
        for records in session.poll().values():
            for record in records:
                session.send("out", record.value)
    assert session.commit()
    assert cluster.values("out") == ["a", "b", "c"]
    assert cluster.offset("in") == 3


@pytest.mark.parametrize("error", RAISES, ids=lambda error: type(error).__name__)
def test_error_that_would_come_again_is_raised_after_the_abort(
    cluster: FakeCluster, error: KafkaError
) -> None:
    session = make(cluster)
    session.poll()
    cluster.fail("send", error)
    with pytest.raises(type(error)) as caught:
        session.send("out", "x")
    with pytest.raises(type(error)):
        session.abort(caught.value)
    (records,) = session.poll().values()
    assert [record.value for record in records] == ["a", "b", "c"]


# The end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", [True, False])
def test_close_leaves_the_group_as_told(cluster: FakeCluster, leave: bool) -> None:
    session = make(cluster)
    session.poll()
    consumer = member(cluster)
    session.close(leave_group=leave)
    assert consumer.left_group is leave


class Refusing(NoListener):
    """Cannot tell its progress."""

    def progress(self) -> Offsets | None:
        raise ValueError("no progress")


@pytest.mark.parametrize("listener", [Progressing({IN0: 3}), Refusing()])
def test_closing_commits_nothing_in_the_revocation_that_it_causes(
    cluster: FakeCluster, listener: NoListener
) -> None:
    """What is not committed by then is aborted, whatever the listener has."""
    session = make(cluster, listener=listener)
    session.poll()
    session.send("out", "open")
    consumer = member(cluster)
    session.close()
    assert consumer.closed
    assert cluster.values("out") == []
    assert cluster.offset("in") is None


class Awaited:
    """Makes asyncio clients of the fake ones, as far as this file needs."""

    def __init__(self, clients: FakeClients) -> None:
        self.clients = clients

    async def producer(self, config):  # type: ignore[no-untyped-def]
        return self.clients.producer(config)

    async def consumer(self, config, hooks):  # type: ignore[no-untyped-def]
        return self.clients.consumer(config, hooks)


async def test_the_asyncio_face_knows_the_same(cluster: FakeCluster) -> None:
    config = SessionConfig(topics=["in"], bootstrap_servers="unused:1", group_id="g")
    session = AsyncTransactionSession(config, clients=Awaited(FakeClients(cluster, (IN0,))))
    await session.start()
    assert (await session.poll_result()).records
    cluster.fail("send", TransactionAbortableError())
    with pytest.raises(TransactionAbortableError) as caught:
        await session.send("out", "x")
    await session.abort(caught.value)
    assert (await session.poll_result()).records
    await session.send("out", "y")
    await session.flush()
    assert await session.commit({IN0: OffsetAndMetadata(2, "two")})
    consumer = member(cluster)
    await session.close(leave_group=False)
    assert consumer.left_group is False
    again = AsyncTransactionSession(config, clients=Awaited(FakeClients(cluster, (IN0,))))
    async with again:
        await again.poll()
        assert again.note(IN0) == "two"
    assert cluster.values("out") == ["y"]
