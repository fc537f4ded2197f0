"""Tests that every sink must pass: crashes at each step, lost answers, zombies, changed offsets.

Derive a test class for pytest and say how to make the sink and how to read what it stored::

    class TestMySink(SinkConformance):
        def make(self, observer=None):
            return MySink(self.address, observer=observer)

        def rows(self):
            return [...]  # what readers see, from outside of the sink

Each test begins with an empty target. The sink calls ``observer("before NAME")`` and
``observer("after NAME")`` around each of its steps (``Steps``); one of them is named "commit".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions.sinks.errors import (
    SinkFencedError,
    SinkOffsetsMovedError,
    SinkOutcomeUnknownError,
    SinkTopicReplacedError,
)
from onceflow.transactions.sinks.ledger import Batch, Entries, Move, Row
from onceflow.transactions.sinks.sink import Observer, Sink

GROUP = "conformance"
FIRST = TopicPartition("input", 0)
SECOND = TopicPartition("input", 1)


class Died(BaseException):
    """Stands for the death of the process; the sink's code must not handle it."""


class SinkConformance:
    """The tests; derive from it and give ``make`` and ``rows``."""

    def make(self, observer: Observer | None = None) -> Sink:
        """Return a new sink on the target of this test.

        Args:
            observer: For the sink's steps.
        """
        raise NotImplementedError("return a new sink on the target of this test")

    def rows(self) -> Sequence[Row]:
        """Return the rows that readers of the target see, in any order."""
        raise NotImplementedError("return what readers of the target see")

    def row(self, number: int) -> Row:
        """Return a row with this number; other numbers make other rows.

        Args:
            number: From 0 to 999.
        """
        return {"id": number, "text": f"row {number}"}

    # Support -------------------------------------------------------------------------------

    def opened(self, observer: Observer | None = None) -> Sink:
        """Return an open sink.

        Args:
            observer: For the sink's steps.
        """
        sink = self.make(observer)
        sink.open(GROUP)
        return sink

    def batch(self, owner: str, entries: Entries, rows: Sequence[int], upto: int) -> Batch:
        """Return a batch that moves all claimed partitions.

        Args:
            owner: The writer.
            entries: Its claims.
            rows: Numbers of the rows.
            upto: The offset to store.
        """
        moves = {tp: Move(entry.epoch, entry.offset, upto) for tp, entry in entries.items()}
        records = [ConsumerRecord(*FIRST, number, 0) for number in rows]
        return Batch(owner, moves, [self.row(number) for number in rows], records)

    def expect(self, sink: Sink, numbers: Sequence[int], offset: int | None) -> None:
        """Compare what readers see, and the offset of the first partition."""
        found = sorted(self.rows(), key=repr)
        wanted = sorted((dict(self.row(number)) for number in numbers), key=repr)
        assert [dict(row) for row in found] == wanted, f"{found} is stored, not {wanted}"
        entry = sink.stored([FIRST]).get(FIRST)
        stored = None if entry is None else entry.offset
        assert stored == offset, f"offset {stored} is stored, not {offset}"

    def steps(self) -> list[str]:
        """Return the moments of one write, as an observer sees them."""
        moments: list[str] = []
        sink = self.opened(moments.append)
        entries = sink.claim([FIRST], "counter")
        del moments[:]
        stored = entries[FIRST].offset or 0
        sink.write(self.batch("counter", entries, [], stored))
        sink.close()
        assert {"before commit", "after commit"} <= set(moments), "no step is named commit"
        return moments

    # Tests ---------------------------------------------------------------------------------

    def test_a_topic_that_was_made_again_is_not_claimed(self) -> None:
        """The stored offset belongs to a topic id; without one it is kept as it is."""
        sink = self.opened()
        entries = sink.claim([FIRST], "a", {FIRST.topic: "old"})
        sink.write(self.batch("a", entries, [1], 5))
        assert sink.claim([FIRST], "b")[FIRST].offset == 5
        for _ in range(2):
            try:
                sink.claim([FIRST], "c", {FIRST.topic: "new"})
            except SinkTopicReplacedError:
                continue
            raise AssertionError("offset 5 of the old topic was given for the new one")
        assert sink.stored([FIRST])[FIRST].owner == "b", "the refused claim was stored"
        assert sink.claim([FIRST], "c", {FIRST.topic: "old"})[FIRST].offset == 5
        self.expect(sink, [1], 5)
        sink.close()

    def test_rows_and_offsets_are_stored_together(self) -> None:
        """A batch and the offsets of its partitions are there for the next owner."""
        sink = self.opened()
        claims = sink.claim([FIRST, SECOND], "a")
        assert [claims[tp].offset for tp in (FIRST, SECOND)] == [None, None]
        sink.write(self.batch("a", claims, [1, 2], 7))
        sink.close()
        after = self.opened()
        self.expect(after, [1, 2], 7)
        again = after.claim([FIRST, SECOND], "b")
        assert {tp: entry.offset for tp, entry in again.items()} == {FIRST: 7, SECOND: 7}
        assert again[FIRST].epoch > claims[FIRST].epoch
        after.close()

    def test_death_at_each_step_stores_all_or_nothing(self) -> None:
        """Wherever a writer dies, the next one continues exactly after the stored rows."""
        done: list[int] = []
        offset: int | None = None
        for number, moment in enumerate(self.steps()):
            raiser = _Raiser(moment, Died("killed"))
            dying = self.opened(raiser)
            claims = dying.claim([FIRST], "dying")
            raiser.armed = True
            offset = claims[FIRST].offset
            try:
                dying.write(self.batch("dying", claims, [number], number + 1))
            except Died:
                pass
            else:
                raise AssertionError(f"the sink handled the death {moment}")
            dying.close()  # What the system does for a dead process.
            heir = self.opened()
            found = heir.claim([FIRST], "heir")
            if found[FIRST].offset == offset:
                heir.write(self.batch("heir", found, [number], number + 1))
            done.append(number)
            self.expect(heir, done, number + 1)
            heir.close()

    def test_lost_answer_is_told_and_a_claim_tells_the_outcome(self) -> None:
        """A commit without an answer is neither repeated nor taken for a failure."""
        for number, moment in enumerate(("before commit", "after commit")):
            raiser = _Raiser(moment, OSError("connection reset"))
            sink = self.opened(raiser)
            claims = sink.claim([FIRST], "a")
            raiser.armed = True
            try:
                sink.write(self.batch("a", claims, [number], number + 1))
            except SinkOutcomeUnknownError:
                pass
            else:
                raise AssertionError(f"an answer lost {moment} raised no error")
            raiser.armed = False
            found = sink.claim([FIRST], "a")
            if moment == "after commit":
                assert found[FIRST].offset == number + 1, "a commit that happened was undone"
            else:
                assert found[FIRST].offset == claims[FIRST].offset
                sink.write(self.batch("a", found, [number], number + 1))
            self.expect(sink, list(range(number + 1)), number + 1)
            sink.close()

    def test_zombie_writes_nothing(self) -> None:
        """An owner that was replaced is refused, before and after its successor's first write."""
        zombie, owner = self.opened(), self.opened()
        old = zombie.claim([FIRST], "a")
        new = owner.claim([FIRST], "b")
        _refused(SinkFencedError, lambda: zombie.write(self.batch("a", old, [1], 1)))
        self.expect(owner, [], None)
        owner.write(self.batch("b", new, [2], 2))
        _refused(SinkFencedError, lambda: zombie.write(self.batch("a", old, [1], 1)))
        self.expect(owner, [2], 2)
        zombie.close()
        owner.close()

    def test_same_owner_is_fenced_by_its_own_later_claim(self) -> None:
        """The epoch decides, also where two claims carry one name."""
        earlier, later = self.opened(), self.opened()
        old = earlier.claim([FIRST], "a")
        later.claim([FIRST], "a")
        _refused(SinkFencedError, lambda: earlier.write(self.batch("a", old, [1], 1)))
        self.expect(later, [], None)
        earlier.close()
        later.close()

    def test_one_fenced_partition_refuses_the_whole_batch(self) -> None:
        """A batch over two partitions is refused when one of them has a newer owner."""
        zombie, owner = self.opened(), self.opened()
        old = zombie.claim([FIRST, SECOND], "a")
        owner.claim([SECOND], "b")
        _refused(SinkFencedError, lambda: zombie.write(self.batch("a", old, [1], 1)))
        self.expect(owner, [], None)
        zombie.close()
        owner.close()

    def test_partition_goes_away_and_comes_back(self) -> None:
        """After a rebalance away and back, only the latest claim of the same owner counts."""
        first, second = self.opened(), self.opened()
        old = first.claim([FIRST], "a")
        first.write(self.batch("a", old, [1], 1))
        second.write(self.batch("b", second.claim([FIRST], "b"), [2], 2))
        back = first.claim([FIRST], "a")
        assert back[FIRST].offset == 2
        _refused(SinkFencedError, lambda: first.write(self.batch("a", old, [9], 9)))
        first.write(self.batch("a", back, [3], 3))
        self.expect(second, [1, 2, 3], 3)
        first.close()
        second.close()

    def test_repeated_batch_is_refused(self) -> None:
        """The same batch a second time changes nothing."""
        sink = self.opened()
        batch = self.batch("a", sink.claim([FIRST], "a"), [1], 1)
        sink.write(batch)
        _refused(SinkOffsetsMovedError, lambda: sink.write(batch))
        self.expect(sink, [1], 1)
        sink.close()

    def test_offsets_never_go_back(self) -> None:
        """A batch that would lower the stored offset is refused."""
        sink = self.opened()
        claims = sink.claim([FIRST], "a")
        sink.write(self.batch("a", claims, [1], 5))
        moves = {FIRST: Move(claims[FIRST].epoch, 5, 4)}
        _refused(SinkOffsetsMovedError, lambda: sink.write(Batch("a", moves, [self.row(2)])))
        self.expect(sink, [1], 5)
        sink.close()

    def test_groups_share_nothing(self) -> None:
        """Another group in the same target has its own offsets and claims."""
        sink, other = self.opened(), self.make()
        other.open("another")
        claims = sink.claim([FIRST], "a")
        assert other.claim([FIRST], "b")[FIRST].offset is None
        sink.write(self.batch("a", claims, [1], 1))
        self.expect(sink, [1], 1)
        assert other.stored([FIRST])[FIRST].offset is None
        sink.close()
        other.close()


class _Raiser:
    """An observer that raises an error at a moment, once it is armed."""

    def __init__(self, moment: str, error: BaseException) -> None:
        self.armed = False
        self._moment = moment
        self._error = error

    def __call__(self, moment: str) -> None:
        if self.armed and moment == self._moment:
            raise self._error


def _refused(kind: type[Exception], write: Callable[[], None]) -> None:
    try:
        write()
    except kind:
        return
    raise AssertionError(f"the write was not refused with {kind.__name__}")
