"""Goal: a signal at any point of a session's call loses no record and repeats no output.

Method: a session over an in-memory cluster (``processor_fakes``). A call is made again and again,
each time interrupted at the next point at which CPython runs signal handlers. Then the program goes
on, and every input record must have one committed output.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from interruptions import POINTS_MAX, InterruptAt
from processor_fakes import FakeClients, FakeCluster, FakeConsumer

from onceflow.sdk.errors import (
    CommitOutcomeUnknownError,
    InvalidProducerEpochError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
)
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions import SessionConfig, TransactionSession

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # Of coroutines.
    pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning"),
]

IN0, IN1 = TopicPartition("in", 0), TopicPartition("in", 1)


class Program:
    """A session with two partitions in work, of which every record was sent on."""

    def __init__(self, setting: str = "earliest") -> None:
        self.polled: dict[TopicPartition, list[ConsumerRecord[bytes | None, bytes | None]]] = {}
        self.cluster = FakeCluster()
        self.session = TransactionSession(
            SessionConfig(
                topics=["in"], bootstrap_servers="unused:1", group_id="g", start_from=setting
            ),
            clients=FakeClients(self.cluster, (IN0, IN1)),
        )

    def put(self) -> None:
        self.cluster.put("in", "a", "b", "c")
        self.cluster.put("in", "x", "y", partition=1)

    def poll(self) -> None:
        self.polled = self.session.poll()

    def process(self) -> None:
        polled, self.polled = self.polled, {}
        for records in polled.values():
            for record in records:
                self.session.send("out", record.value)

    def step(self) -> None:
        self.poll()
        self.process()

    def go_on(self) -> None:
        for _ in range(4):
            self.step()
            self.session.commit()

    def missing(self) -> list[str]:
        """Processed input without its output, or with two; of IN1 only what is committed."""
        upto = self.cluster.offset("in", 1) or 0
        owned = IN1 in self.session.assignment()
        log = self.cluster.logs
        given = [e.value for e in log[IN0]]
        given += [e.value for e in (log[IN1] if owned else log[IN1][:upto])]
        done = self.cluster.values("out")
        return [str(v) for v in {*given, *done} if given.count(v) != done.count(v)]


def abort_for(error: KafkaError | None) -> Callable[[Program], None]:
    return lambda program: program.session.abort(error)


def commit_with(call: str, error: KafkaError, *, after: bool = False) -> Callable[[Program], None]:
    def run(program: Program) -> None:
        program.cluster.fail(call, error, after=after, times=2)
        program.session.commit()

    return run


def poll_that_gives_up(error: KafkaError | None, *, lost: bool) -> Callable[[Program], None]:
    def run(program: Program) -> None:
        program.cluster.rebalance([IN0], lost=lost)
        if error is not None:
            program.cluster.fail("flush", error)
        program.poll()

    return run


CALLS = {
    "commit": lambda program: program.session.commit(),
    "abort": abort_for(None),
    "abort for a refusal": abort_for(TransactionAbortableError()),
    "abort for a fence": abort_for(ProducerFencedError()),
    "abort for an epoch": abort_for(InvalidProducerEpochError()),
    "refused commit": commit_with("send_offsets_to_transaction", TransactionAbortableError()),
    "fenced commit": commit_with("send_offsets_to_transaction", ProducerFencedError()),
    "lost commit": commit_with("commit_transaction", CommitOutcomeUnknownError("lost")),
    "lost answer": commit_with("commit_transaction", CommitOutcomeUnknownError("lost"), after=True),
    "revocation": poll_that_gives_up(None, lost=False),
    "refused revocation": poll_that_gives_up(TransactionAbortableError(), lost=False),
    "fenced revocation": poll_that_gives_up(ProducerFencedError(), lost=False),
    "lost partitions": poll_that_gives_up(None, lost=True),
}


@pytest.mark.parametrize("then", ["commit", "poll", "abort"])
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupted_call_loses_nothing_and_repeats_nothing(name: str, then: str) -> None:
    """An abort that forgot its work before the positions were set skipped all of it."""
    for point in range(POINTS_MAX):
        program = Program()
        program.put()
        program.step()
        interrupt = InterruptAt(point)
        call = CALLS[name]
        interrupt.run(lambda call=call, program=program: call(program))
        program.cluster.forget_faults()
        program.process()
        if then == "commit":
            program.session.commit()
        elif then == "abort":
            program.session.abort()
        program.go_on()
        assert program.missing() == [], point
        if not interrupt.happened:
            break
    assert not interrupt.happened, "every point was tried"


def test_the_commit_after_an_interrupted_call_says_that_the_records_come_again() -> None:
    """The interrupted call may have ended the work; "committed" would be wrong for an abort."""
    for point in range(POINTS_MAX):
        program = Program()
        program.put()
        program.step()
        interrupt = InterruptAt(point)
        interrupt.run(program.session.abort)
        if not interrupt.happened:
            break
        if program.session.commit():  # It had not begun to abort.
            assert sorted(map(str, program.cluster.values("out"))) == ["a", "b", "c", "x", "y"]
    assert not interrupt.happened, "every point was tried"


@pytest.mark.parametrize("partitions", [[IN0], [IN0, IN1]])
def test_interrupted_putting_back_loses_nothing(partitions: list[TopicPartition]) -> None:
    for point in range(POINTS_MAX):
        program = Program()
        program.put()
        program.session.poll()
        interrupt = InterruptAt(point)
        interrupt.run(lambda p=program: p.session.put_back(partitions))
        if interrupt.happened:
            program.session.abort()
        else:
            program.session.put_back([IN0, IN1])
        program.go_on()
        assert program.missing() == [], point
        if not interrupt.happened:
            break
    assert not interrupt.happened, "every point was tried"


@pytest.mark.parametrize("kind", ["abort for a fence", "fenced commit"])
def test_an_interrupted_replacement_leaves_no_member_behind(kind: str) -> None:
    """A member that nobody polls would hold its partitions until max_poll_interval_ms is over."""
    for point in range(POINTS_MAX):
        program = Program()
        program.put()
        program.step()
        interrupt = InterruptAt(point)
        interrupt.run(lambda p=program: CALLS[kind](p))
        program.cluster.forget_faults()
        program.go_on()
        owners = [c for c in program.cluster.clients if isinstance(c, FakeConsumer) and c.owned]
        assert len(owners) == 1, point
        if not interrupt.happened:
            break
    assert not interrupt.happened, "every point was tried"


def test_an_interrupted_commit_of_starts_is_found_out_about() -> None:
    """Without a note the next poll would go on in a transaction that is being committed."""
    for point in range(POINTS_MAX):
        program = Program("latest")
        program.cluster.fail("flush", TransactionAbortableError())
        program.session.poll()  # Its rebalance could not commit the starts.
        interrupt = InterruptAt(point)
        interrupt.run(program.session.poll)
        program.session.poll()
        program.put()
        program.go_on()
        assert program.missing() == [], point
        if not interrupt.happened:
            break
    assert not interrupt.happened, "every point was tried"


def test_a_start_at_the_end_survives_an_interrupted_assignment() -> None:
    """A partition whose start was not set began at its beginning after the interruption."""
    for point in range(POINTS_MAX):
        program = Program("latest")
        program.cluster.put("in", "old")
        interrupt = InterruptAt(point)
        interrupt.run(program.session.poll)
        program.go_on()
        assert program.cluster.values("out") == [], point
        program.put()
        program.go_on()
        assert sorted(map(str, program.cluster.values("out"))) == ["a", "b", "c", "x", "y"], point
        if not interrupt.happened:
            break
    assert not interrupt.happened, "every point was tried"
