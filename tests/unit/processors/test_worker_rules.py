"""Goal: a worker keeps records, outputs, state and offsets together whatever interrupts it.

Method: real worker, ledger, session, tasks and LMDB stores over an in-memory cluster with a virtual
clock (``processor_worlds``). Numbers in the docstrings are the traps that the test stands for.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from processor_worlds import FakeChangelogReader, World

from onceflow.processors import (
    App,
    Context,
    DeadLetterLimits,
    OnError,
    Output,
    ProcessingError,
    Retries,
    State,
    StateMismatchError,
    TooManyAbortsError,
    TooManyDeadLettersError,
    TopicSetupError,
)
from onceflow.processors.assign import CoPartitioned
from onceflow.processors.provisioning import TopicFacts
from onceflow.processors.state.codec import ValueCodec
from onceflow.sdk.errors import (
    CommitOutcomeUnknownError,
    ConfigError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    RequestTimedOutError,
    TransactionAbortableError,
    UnreleasedInstanceIdError,
)
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions import SessionConfig

IN0 = TopicPartition("in", 0)
IN1 = TopicPartition("in", 1)
CHANGELOG = TopicPartition("counts-count-seen-changelog", 0)


def stored(count: int, key: bytes = b"k") -> bytes:
    """A count as a worker writes it to the changelog."""
    return ValueCodec(int, "test").encode(key, count)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "in")


def counting(**options: object) -> App:
    app = App("counts")

    @app.processor("in", to="out", **options)  # type: ignore[arg-type]
    def count(value: str, seen: State[int]) -> str:
        seen.set(seen.get(0) + 1)
        return f"{value}{seen.get(0)}"

    return app


def flaky(failures: dict[str, int], **options: object) -> App:
    """Raises on named values, as often as told."""
    app = App("flaky")

    @app.processor("in", to="out", **options)  # type: ignore[arg-type]
    def shout(value: str) -> str:
        if failures.get(value, 0) > 0:
            failures[value] -= 1
            raise ValueError(f"not {value}")
        return value.upper()

    return app


def test_every_record_gives_its_output_once(world: World) -> None:
    world.cluster.put("in", b"a", b"b", b"c")
    world.run(flaky({}))
    assert world.cluster.values("out") == [b"A", b"B", b"C"]
    assert world.cluster.offset("in") == 3


def test_failure_stops_before_the_record_and_keeps_what_precedes(world: World) -> None:
    """Traps 35, 60; field case 68, default policy."""
    world.cluster.put("in", *(str(n).encode() for n in range(1, 7)))
    with pytest.raises(ProcessingError, match=r"shout failed at in-0@2 after 1 attempt:") as caught:
        world.run(flaky({"3": 99}))
    assert caught.value.offset == 2
    assert world.cluster.offset("in") == 2
    assert world.cluster.values("out") == [b"1", b"2"]
    world.run(flaky({}))
    assert world.cluster.values("out") == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert world.cluster.offset("in") == 6


def test_retries_wait_as_a_member_and_without_a_transaction(world: World) -> None:
    """Traps 48, 51: backoff polls (paused), and nothing stays open meanwhile."""
    world.cluster.put("in", b"a", b"b", b"c")
    open_while_waiting = []
    polls = []
    app = flaky({"b": 2}, retries=Retries(3, backoff_ms=5_000, backoff_max_ms=60_000))

    def watch() -> None:
        polls.append(set(world.cluster.members[0].paused))
        open_while_waiting.append(bool(world.cluster.open))

    for _ in range(8):
        world.cluster.do("poll", watch)
    world.run(app)
    assert world.cluster.values("out") == [b"A", b"B", b"C"]
    assert any(paused == {IN0} for paused in polls)
    assert open_while_waiting.count(True) <= 1  # What preceded the record, until it was due.


def test_retry_holds_up_its_own_partition_only(tmp_path: Path) -> None:
    """Trap 80, and the kind: one record that waits must not stop the worker."""
    world = World(tmp_path, "in", partitions=3)
    world.cluster.put("in", b"bad", b"after", partition=0)
    app = flaky({"bad": 1}, retries=Retries(1, backoff_ms=60_000, backoff_max_ms=60_000))
    seen: list[tuple[int, list[object]]] = []

    def others_come() -> None:
        world.cluster.put("in", b"x", partition=1)
        world.cluster.put("in", b"y", partition=2)

    def look() -> None:
        seen.append((world.now_ms, list(world.cluster.values("out"))))

    world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", others_come)
    for _ in range(6):
        world.cluster.do("poll", look)
    world.run(app)
    assert (1_001_000, [b"X", b"Y"]) in [(now // 1000 * 1000, out) for now, out in seen]
    assert world.cluster.values("out") == [b"X", b"Y", b"BAD", b"AFTER"]
    assert [world.cluster.offset("in", number) for number in range(3)] == [2, 1, 1]


def test_attempts_go_on_being_counted_over_an_abort(world: World) -> None:
    """The record is read again after an abort of its unit; it gets no further attempts by that."""
    world.cluster.put("in", b"a", b"bad")
    calls: list[int] = []
    app = App("counted")

    @app.processor("in", to="out", dead_letter="dead", retries=Retries(2, backoff_ms=1_000))
    def handle(value: str, context: Context) -> str:
        if value == "bad":
            calls.append(context.attempt)
            raise ValueError(value)
        return value

    world.cluster.fail("send_offsets_to_transaction", TransactionAbortableError())
    world.run(app)
    assert calls == [1, 2, 3]
    assert world.cluster.values("out") == [b"a"]
    assert world.cluster.values("dead") == [b"bad"]


def test_retries_exhausted_stops(world: World) -> None:
    """Field case 68: retry twice, then stop before the record."""
    world.cluster.put("in", b"1", b"2", b"3", b"4")
    with pytest.raises(ProcessingError, match="after 3 attempts"):
        world.run(flaky({"3": 99}, retries=2))
    assert world.cluster.offset("in") == 2
    assert world.cluster.values("out") == [b"1", b"2"]


def test_retry_only_what_is_declared(world: World) -> None:
    world.cluster.put("in", b"1")
    with pytest.raises(ProcessingError, match="after 1 attempt:"):
        world.run(flaky({"1": 1}, retries=Retries(5, only=(OSError,))))


def test_skip_goes_on_behind_the_record(world: World) -> None:
    """Field case 68: skip."""
    world.cluster.put("in", *(str(n).encode() for n in range(1, 7)))
    world.run(flaky({"3": 99}, on_error=OnError.SKIP))
    assert world.cluster.values("out") == [b"1", b"2", b"4", b"5", b"6"]
    assert world.cluster.offset("in") == 6


def test_dead_letter_is_part_of_the_transaction(world: World) -> None:
    """Traps 77, 78; field case 68: original bytes, key, headers, and what went wrong."""
    world.cluster.put("in", b"1", b"2", b"3", key=b"k")
    world.run(flaky({"2": 99}, dead_letter="dead", retries=1))
    assert world.cluster.values("out") == [b"1", b"3"]
    assert world.cluster.offset("in") == 3
    (letter,) = world.cluster.logs[TopicPartition("dead", 0)]
    assert (letter.key, letter.value, letter.state) == (b"k", b"2", "committed")
    headers = dict(letter.headers)  # type: ignore[call-overload]
    assert headers["onceflow.error.offset"] == b"1"
    assert headers["onceflow.error.attempts"] == b"2"
    assert headers["onceflow.error.message"] == b"not 2"
    assert b"Traceback" in headers["onceflow.error.traceback"]


def test_bytes_that_do_not_fit_go_the_same_way_without_retries(world: World) -> None:
    """Trap 77: poison pill at deserialization."""
    app = App("typed")

    @app.processor("in", to="out", dead_letter="dead", retries=5)
    def double(number: int) -> int:
        return number * 2

    world.cluster.put("in", b"1", b"junk", b"3")
    world.run(app)
    assert world.cluster.values("out") == [b"2", b"6"]
    assert world.cluster.values("dead") == [b"junk"]


def test_flood_of_dead_letters_stops(world: World) -> None:
    """Trap 79."""
    world.cluster.put("in", *(b"x" for _ in range(10)))
    app = flaky({"x": 99}, dead_letter="dead", limits=DeadLetterLimits(consecutive_max=3))
    with pytest.raises(TooManyDeadLettersError, match="4 dead letters in a row, the limit is 3"):
        world.run(app)
    assert len(world.cluster.values("dead")) == 3
    assert world.cluster.offset("in") == 3


def test_limit_of_dead_letters_in_a_run(world: World) -> None:
    world.cluster.put("in", *(b"x" if number % 3 == 0 else b"good" for number in range(30)))
    app = flaky({"x": 99}, dead_letter="dead", limits=DeadLetterLimits(run_max=4))
    with pytest.raises(TooManyDeadLettersError, match="5 dead letters in this run, the limit is 4"):
        world.run(app)
    assert len(world.cluster.values("dead")) == 4
    assert world.cluster.offset("in") == 12


def test_dead_letters_of_aborted_units_do_not_count_against_the_limits(world: World) -> None:
    world.cluster.put("in", b"x", b"x", b"x")
    world.cluster.fail("flush", TransactionAbortableError(), times=4)
    limits = DeadLetterLimits(consecutive_max=3, run_max=3)
    world.run(flaky({"x": 99}, dead_letter="dead", limits=limits))
    assert world.cluster.values("dead") == [b"x"] * 3
    assert world.cluster.offset("in") == 3


def test_failed_record_leaves_neither_output_nor_state(world: World) -> None:
    """Trap 60: the savepoint of a record covers sends, yields and state."""
    app = App("savepoint")

    @app.processor("in", to="out", on_error="skip")
    def handle(value: str, seen: State[int], context: Context) -> object:
        seen.set(seen.get(0) + 1)
        context.send("side", value)
        yield value
        if value == "bad":
            raise ValueError("late")
        yield f"{value}:{seen.get()}"

    world.cluster.put("in", b"a", b"bad", b"c", key=b"k")
    world.run(app)
    assert world.cluster.values("out") == [b"a", b"a:1", b"c", b"c:2"]
    assert world.cluster.values("side") == [b"a", b"c"]


def test_state_is_dropped_on_abort(world: World) -> None:
    """Trap 52: overlay of uncommitted writes; the redone batch counts once."""
    world.cluster.put("in", b"a", b"b", key=b"k")
    world.cluster.fail("send_offsets_to_transaction", TransactionAbortableError())
    world.run(counting())
    assert world.cluster.values("out") == [b"a1", b"b2"]


def test_state_survives_a_restart_from_disk_and_from_the_changelog(
    world: World, tmp_path: Path
) -> None:
    """Traps 53, 55, 56."""
    world.cluster.put("in", b"a", key=b"k")
    world.run(counting())
    world.cluster.put("in", b"b", key=b"k")
    world.run(counting())
    world.state_dir = tmp_path / "another-host"
    world.cluster.put("in", b"c", key=b"k")
    world.run(counting())
    assert world.cluster.values("out") == [b"a1", b"b2", b"c3"]


def test_commit_that_was_answered_late_reaches_the_store(world: World) -> None:
    """Traps 13, 52: a commit found by its token applies the state."""
    world.cluster.put("in", b"a", key=b"k")
    world.cluster.fail("commit_transaction", CommitOutcomeUnknownError("lost"), after=True)
    world.run(counting())
    world.cluster.put("in", b"b", key=b"k")
    world.run(counting())
    assert world.cluster.values("out") == [b"a1", b"b2"]


def test_crash_between_commit_and_store_is_repaired_from_the_changelog(world: World) -> None:
    """Trap 53: full values, replayed from the stored offset."""
    world.cluster.put("in", b"a", key=b"k")
    world.run(counting())
    assert len(world.cluster.logs[CHANGELOG]) == 1
    # Another worker committed a change that this disk has not seen.
    world.cluster.put(CHANGELOG.topic, stored(9), key=b"k")
    world.cluster.put("in", b"b", key=b"k")
    world.run(counting())
    assert world.cluster.values("out") == [b"a1", b"b10"]


def spoil_changelog(world: World, damage: str) -> None:
    """Do to the changelog what loses state."""
    log = world.cluster.logs[CHANGELOG]
    if damage == "truncated":
        world.cluster.put(CHANGELOG.topic, stored(7), stored(7), key=b"k")
        world.log_starts[CHANGELOG] = len(log) - 1
    elif damage == "cut":
        del log[-1]
    else:  # made again
        log.clear()
        world.topics[CHANGELOG.topic] = TopicFacts(1, "another id")


DAMAGES = {"truncated": b"c8", "cut": b"c1", "made again": b"c1"}
"""What loses state, and what a worker gives that goes on with what is left."""


@pytest.mark.parametrize("disk", ["same disk", "another disk"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_changelog_that_does_not_fit_stops(world: World, damage: str, disk: str) -> None:
    """Trap 57: state that was lost is an error, also where only the offsets remember it."""
    world.cluster.put("in", b"a", b"b", key=b"k")
    world.run(counting())
    spoil_changelog(world, damage)
    if disk == "another disk":
        world.state_dir = world.state_dir / "elsewhere"
    world.cluster.put("in", b"c", key=b"k")
    outputs = world.cluster.values("out")
    for _ in range(2):  # It does not go away by starting again.
        with pytest.raises(StateMismatchError, match=r"state count\.seen.*changelog.*Either"):
            world.run(counting())
    assert world.cluster.values("out") == outputs
    assert world.cluster.offset("in") == 2


@pytest.mark.parametrize("damage", DAMAGES)
def test_changelog_that_does_not_fit_is_gone_on_with_where_told(world: World, damage: str) -> None:
    world.cluster.put("in", b"a", b"b", key=b"k")
    world.run(counting())
    spoil_changelog(world, damage)
    world.cluster.put("in", b"c", key=b"k")
    app = counting()
    app.configure(on_state_gap="continue")
    world.run(app)
    assert world.cluster.values("out")[-1] == DAMAGES[damage]
    world.cluster.put("in", b"d", key=b"k")
    world.run(counting())  # Once is enough.


@pytest.mark.parametrize("damage", ["truncated", "made again"])
def test_changelog_that_changes_while_it_is_replayed(
    world: World, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap 57, in the middle of a restoration: no gap, and no waiting for an end that is gone."""
    world.cluster.put("in", b"a", b"b", key=b"k")
    world.run(counting())
    world.state_dir = world.state_dir / "elsewhere"
    whole_poll, polls = FakeChangelogReader.poll, []

    def poll(reader: FakeChangelogReader, timeout_ms: int) -> object:
        polls.append(timeout_ms)
        if len(polls) > 1:
            return whole_poll(reader, timeout_ms)
        spoil_changelog(world, damage)
        raise OffsetOutOfRangeError("position 0")

    monkeypatch.setattr(FakeChangelogReader, "poll", poll)
    world.cluster.put("in", b"c", key=b"k")
    with pytest.raises(StateMismatchError):
        world.run(counting())
    assert world.cluster.values("out") == [b"a1", b"b2"]


def test_restoration_waits_for_a_transaction_that_is_still_open(world: World) -> None:
    """Trap 55: the high watermark is the bound, not the last stable offset."""
    world.cluster.put("in", b"a", b"b", key=b"k")
    world.run(counting())
    world.cluster.put(CHANGELOG.topic, stored(5), key=b"k")
    entry = world.cluster.logs[CHANGELOG][-1]
    entry.state = "open"
    for _ in range(3):
        world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", lambda: setattr(entry, "state", "committed"))
    world.cluster.put("in", b"c", key=b"k")
    world.run(counting())
    assert world.cluster.values("out") == [b"a1", b"b2", b"c6"]


def test_old_disk_is_not_trusted(world: World) -> None:
    """Trap 58: tombstones may be compacted away, after the topic's ``delete.retention.ms``."""
    world.cluster.put("in", b"a", key=b"k")
    world.run(counting())
    world.configs[CHANGELOG.topic]["delete.retention.ms"] = "3600000"
    world.cluster.logs[CHANGELOG][0].state = "aborted"  # Deleted and compacted, its offset stays.
    world.now_ms += 2 * 3600 * 1000
    world.cluster.put("in", b"b", key=b"k")
    world.run(counting())
    assert world.cluster.values("out") == [b"a1", b"b1"]


def test_partition_count_that_changed_refuses_to_start(world: World) -> None:
    """Trap 64."""
    world.run(counting())
    world.topics["in"] = TopicFacts(3, "id-in")
    with pytest.raises(TopicSetupError, match="has 1 partitions but input in has 3"):
        world.run(counting())


def test_changelog_that_expires_refuses_to_start(world: World) -> None:
    """Trap 59."""
    world.run(counting())
    for policy in ("delete", "compact,delete"):
        world.configs[CHANGELOG.topic] = {"cleanup.policy": policy}
        with pytest.raises(TopicSetupError, match=f"cleanup.policy={policy}: state would expire"):
            world.run(counting())


def test_partition_count_that_no_topic_takes_is_refused(world: World) -> None:
    """It would do nothing, in silence."""
    app = counting()
    app.configure(partitions=4)
    with pytest.raises(TopicSetupError, match=r"partitions=4, but no input .*: in has 1"):
        world.run(app)
    world.topics["in"] = TopicFacts(4, "id-in")
    world.run(app)
    created = World(world.state_dir)
    app.configure(create_inputs=True)
    created.run(app)
    assert created.topics["in"].partitions == 4


def test_missing_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(TopicSetupError, match="input topics do not exist: in"):
        World(tmp_path).run(flaky({}))


def test_record_whose_output_is_refused_is_found_and_follows_the_policy(world: World) -> None:
    """Traps 81, 83: the batch shrinks to one record, which then goes to the dead letters."""
    world.cluster.put("in", b"a", b"big", b"c")
    cluster = world.cluster

    def refuse_big() -> None:
        if any(e.value == b"BIG" and e.state == "open" for e in cluster.logs[OUT0]):
            raise MessageTooLargeError()

    for _ in range(50):
        cluster.do("flush", refuse_big)
    world.run(flaky({}, dead_letter="dead"))
    assert cluster.values("out") == [b"A", b"C"]
    assert cluster.values("dead") == [b"big"]
    assert cluster.offset("in") == 3


OUT0 = TopicPartition("out", 0)


def test_dead_letter_whose_transaction_is_aborted_is_sent_again(world: World) -> None:
    """That the unit of a dead letter was aborted says nothing of the letter."""
    world.cluster.put("in", b"big")
    world.cluster.fail("flush", MessageTooLargeError())
    world.cluster.fail("flush", TransactionAbortableError(), times=2)
    world.run(flaky({}, dead_letter="dead"))
    assert world.cluster.values("dead") == [b"big"]
    assert world.cluster.offset("in") == 1


def test_record_whose_dead_letter_is_refused_too_stops(world: World) -> None:
    """Trap 78: the offset does not move past it."""
    world.cluster.put("in", b"a")
    world.cluster.fail("flush", MessageTooLargeError(), times=10)
    with pytest.raises(ProcessingError, match="neither the outputs of in-0@0 nor its dead letter"):
        world.run(flaky({}, dead_letter="dead"))
    assert world.cluster.offset("in") is None


def test_endless_aborts_end_with_the_cause(world: World) -> None:
    """Trap 81: not for ever."""
    world.cluster.put("in", b"a", b"b")
    world.cluster.fail("flush", TransactionAbortableError(), times=100)
    with pytest.raises(TooManyAbortsError, match="21 transactions aborted in a row"):
        world.run(flaky({}))
    assert world.cluster.offset("in") is None


def test_brokers_that_go_while_a_worker_starts_are_waited_for(world: World) -> None:
    """It has met them before, so the address is right."""
    world.cluster.put("in", b"a", key=b"k")
    world.cluster.fail("init_transactions", RequestTimedOutError(), times=3)
    world.run(counting())
    assert world.cluster.values("out") == [b"a1"]


def test_start_that_never_succeeds_ends_with_the_cause(world: World) -> None:
    world.cluster.fail("init_transactions", RequestTimedOutError(), times=100)
    with pytest.raises(TooManyAbortsError, match="REQUEST_TIMED_OUT"):
        world.run(counting())


def test_instance_id_of_a_killed_predecessor_is_waited_for(world: World) -> None:
    """It is released when the predecessor's session times out."""
    world.cluster.put("in", b"a")
    world.cluster.fail("poll", UnreleasedInstanceIdError(), times=3)
    world.run(flaky({}))
    assert world.cluster.values("out") == [b"A"]


def test_brokers_that_come_back_are_met_again_in_place(world: World) -> None:
    """Trap 20: a coordinator that cannot be reached for a while does not end the process."""
    world.cluster.put("in", b"a", key=b"k")
    world.cluster.fail("flush", RequestTimedOutError())
    world.cluster.fail("abort_transaction", RequestTimedOutError())
    world.cluster.do("init_transactions", lambda: None)
    world.cluster.fail("init_transactions", RequestTimedOutError(), times=2)
    world.run(counting())
    assert world.cluster.values("out") == [b"a1"]


def test_revoked_partition_is_committed_and_its_store_closed(tmp_path: Path) -> None:
    """Traps 44, 47: commit in the callback, then the successor can open the store."""
    world = World(tmp_path, "in", partitions=2)
    world.cluster.put("in", b"a", partition=0, key=b"k")
    world.cluster.put("in", b"x", partition=1, key=b"k")
    app = counting()
    app.configure(commit_interval_ms=5_000)
    for _ in range(3):
        world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", lambda: world.cluster.rebalance([IN0]))
    world.cluster.do("poll", lambda: world.cluster.put("in", b"b", partition=0, key=b"k"))
    world.run(app)
    assert world.cluster.offset("in", 1) == 1
    world.owned = [IN1]
    world.cluster.put("in", b"y", partition=1, key=b"k")
    world.run(counting())
    assert sorted(world.cluster.values("out")) == [b"a1", b"b2", b"x1", b"y2"]


def test_lost_partition_is_aborted(world: World) -> None:
    """Trap 6: the next owner does the work again."""
    world.cluster.put("in", b"a", key=b"k")
    app = counting()
    app.configure(commit_interval_ms=5_000)
    for _ in range(2):
        world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", lambda: world.cluster.rebalance([], lost=True))
    world.run(app)
    assert world.cluster.offset("in") is None
    world.run(counting())
    assert world.cluster.values("out") == [b"a1"]


def test_partition_lost_while_a_record_waits_for_its_retry(world: World) -> None:
    """Traps 6, 46: the record is left to the next owner."""
    world.cluster.put("in", b"a", b"b")
    app = flaky({"b": 1}, retries=Retries(1, backoff_ms=60_000, backoff_max_ms=60_000))
    world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", lambda: world.cluster.rebalance([], lost=True))
    world.run(app)
    assert world.cluster.values("out") == []  # Lost before the unit was due: all of it is void.
    world.run(flaky({}))
    assert world.cluster.values("out") == [b"A", b"B"]


def test_commits_follow_the_record_limit(world: World) -> None:
    world.cluster.put("in", *(b"%d" % n for n in range(10)))
    app = flaky({})
    app.configure(commit_records=4)
    world.run(app)
    assert world.cluster.calls.count("commit_transaction") == 3
    assert world.cluster.offset("in") == 10


def test_slow_handlers_commit_within_a_batch(world: World) -> None:
    """Trap 18: the transaction's age counts, not the batch."""
    app = App("slow")

    @app.processor("in", to="out")
    def slow(value: str) -> str:
        world.now_ms += 150
        return value

    world.cluster.put("in", b"a", b"b", b"c")
    world.run(app)
    assert world.cluster.calls.count("commit_transaction") == 3


def test_outputs_to_many_topics_with_own_keys_and_headers(world: World) -> None:
    """Field case 64: every way of output is in the transaction."""
    app = App("ways")

    @app.processor("in", to="out")
    def ways(value: str, key: str, context: Context) -> list[object]:
        context.send("sent", value, headers=[("h", b"1")])
        return [value, Output(value, topic="second", key="own"), Output(None)]

    world.cluster.put("in", b"v", key=b"k")
    world.run(app)
    entries = world.cluster.logs
    out = [(e.key, e.value, e.state) for e in entries[OUT0]]
    assert out == [(b"k", b"v", "committed"), (b"k", None, "committed")]
    (second,) = entries[TopicPartition("second", 0)]
    assert (second.key, second.value) == (b"own", b"v")
    (sent,) = entries[TopicPartition("sent", 0)]
    assert sent.headers == [("h", b"1")]


def test_chain_of_processors_in_one_application(world: World) -> None:
    """An output may be the input of another processor; its topic is created like the input."""
    app = App("chain")

    @app.processor("in", to="middle")
    def first(value: str) -> str:
        return value + "1"

    @app.processor("middle", to="out")
    def second(value: str) -> str:
        return value + "2"

    world.cluster.put("in", b"a")
    world.run(app)
    assert world.cluster.values("out") == [b"a12"]


def test_new_incarnation_of_a_worker_takes_the_same_slot(world: World) -> None:
    """Trap 9: the transactional id survives a restart, and two live workers differ."""
    world.run(flaky({}))
    world.run(flaky({}))
    assert len(world.cluster.epochs) == 1
    (only,) = world.cluster.epochs
    assert only.startswith("flaky-")
    assert only.endswith("-0")


@pytest.mark.parametrize(
    ("kind", "value"), [(bytes, b"x" * 400), (list[str], ["x" * 400])], ids=["atom", "object"]
)
def test_uncommitted_state_is_bounded(world: World, kind: object, value: object) -> None:
    """One record may write megabytes, and what is not committed is held in memory."""
    app = App("large", commit_bytes=1_000, commit_interval_ms=5_000)

    def keep(incoming, last):  # type: ignore[no-untyped-def]
        last.set(value)

    keep.__annotations__ = {"incoming": bytes, "last": State[kind]}  # type: ignore[valid-type]
    app.processor("in")(keep)
    world.cluster.put("in", *(b"%d" % number for number in range(9)), key=b"k")
    world.run(app)
    assert world.cluster.calls.count("commit_transaction") == 3


def merging(calls: list[str], **settings: object) -> App:
    app = App("merge", **settings)  # type: ignore[arg-type]

    @app.processor(["in", "other"], to="out")
    def both(value: str, seen: State[int]) -> str:
        calls.append(value)
        seen.set(seen.get(0) + 1)
        return f"{value}{seen.get()}"

    return app


def put_at(world: World, topic: str, *entries: tuple[str, int]) -> None:
    for value, time_ms in entries:
        world.cluster.put(topic, value.encode(), key=b"k")
        world.cluster.logs[TopicPartition(topic, 0)][-1].timestamp_ms = time_ms


def test_several_topics_are_one_input_in_order_of_time(tmp_path: Path) -> None:
    """Trap 74; the state is one, and both offsets are in each commit."""
    world = World(tmp_path, "in", "other")
    put_at(world, "in", ("a", 1), ("c", 3), ("d", 4))
    put_at(world, "other", ("b", 2), ("e", 5))
    calls: list[str] = []
    world.run(merging(calls))
    assert calls == ["a", "b", "c", "d", "e"]
    assert world.cluster.values("out") == [b"a1", b"b2", b"c3", b"d4", b"e5"]
    assert (world.cluster.offset("in"), world.cluster.offset("other")) == (3, 2)
    put_at(world, "other", ("f", 6))
    world.run(merging(calls))
    assert world.cluster.values("out")[-1] == b"f6"


def test_what_comes_while_a_record_waits_for_a_retry_keeps_its_place(tmp_path: Path) -> None:
    """An input that is empty then is read on: its end must not be that of before the wait."""
    world = World(tmp_path, "in", "other")
    put_at(world, "in", ("a", 1), ("d", 4))
    calls: list[str] = []
    app = App("merge")

    @app.processor(["in", "other"], to="out", retries=Retries(1, backoff_ms=2_000))
    def both(value: str) -> str:
        calls.append(value)
        if calls == ["a"]:
            put_at(world, "other", ("b", 2), ("c", 3))
            raise LookupError("for a while")
        return value

    world.run(app)
    assert calls == ["a", "a", "b", "c", "d"]


def test_end_of_an_input_that_was_paused_is_not_believed(tmp_path: Path) -> None:
    """A full input is paused; that it had been read to its end says nothing about what came since,
    which may be earlier than what the other input has."""
    world = World(tmp_path, "in", "other")
    put_at(world, "in", ("a", 1), ("b", 2))
    put_at(world, "other", ("z", 100))
    calls: list[str] = []
    world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", lambda: put_at(world, "in", ("c", 50)))
    world.run(merging(calls, max_poll_records=2))
    assert calls == ["a", "b", "c", "z"]


def test_task_that_loses_one_of_its_inputs_reads_the_others_again(tmp_path: Path) -> None:
    """What was polled of the others and not processed belonged to the task that is gone."""
    world = World(tmp_path, "in", "other")
    in0, other0 = TopicPartition("in", 0), TopicPartition("other", 0)
    world.idle_polls_max = 8
    put_at(world, "in", ("a", 1), ("c", 3))
    put_at(world, "other", ("b", 2), ("z", 9))  # The last one waits for in.
    world.cluster.logs[other0][0].state = "open"  # Not to be had yet: in waits for it.
    calls: list[str] = []
    app = merging(calls, max_task_idle_ms=60_000)
    for _ in range(3):
        world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", lambda: world.cluster.rebalance([in0]))
    for _ in range(2):
        world.cluster.do("poll", lambda: None)

    def comes_back() -> None:
        world.cluster.logs[other0][0].state = "committed"
        world.cluster.rebalance([in0, other0])

    world.cluster.do("poll", comes_back)
    world.run(app)
    assert world.cluster.values("out") == [b"a1", b"b2", b"c3"]
    assert calls == ["a", "b", "c"]


def test_task_that_gets_its_inputs_back_knows_what_was_committed_meanwhile(tmp_path: Path) -> None:
    """Of the input that stayed nobody reads the committed offset again, and its note says more."""
    world = World(tmp_path, "in", "other")
    in0, other0 = TopicPartition("in", 0), TopicPartition("other", 0)
    world.idle_polls_max = 8
    put_at(world, "in", ("a", 1))
    for _ in range(2):
        world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", lambda: world.cluster.rebalance([in0]))

    def comes_back() -> None:
        put_at(world, "other", ("b", 2))
        world.cluster.rebalance([in0, other0])

    world.cluster.do("poll", comes_back)
    world.run(merging([], commit_records=1))
    assert world.cluster.values("out") == [b"a1", b"b2"]


def test_inputs_of_a_task_need_one_partition_count(tmp_path: Path) -> None:
    world = World(tmp_path, "in", "other")
    world.topics["other"] = TopicFacts(3, "id")
    with pytest.raises(
        TopicSetupError, match=r"need the same partition count.*in has 1, other has 3"
    ):
        world.run(merging([]))


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({}, None),
        ({"partition_assignment_strategy": ["range"]}, None),
        ({"partition_assignment_strategy": ["roundrobin"]}, "partition_assignment_strategy"),
        ({"group_protocol": "consumer"}, None),
        (
            {"group_protocol": "consumer", "group_remote_assignor": "uniform"},
            "group_remote_assignor",
        ),
    ],
)
def test_group_gives_the_inputs_of_a_task_to_one_worker(
    tmp_path: Path, settings: dict[str, object], refused: str | None
) -> None:
    app = merging([], consumer_settings=settings)
    joining = CoPartitioned(app.topology())

    def config() -> SessionConfig:
        return app.settings.session_config("merge", ["in", "other"], "0", joining)

    if refused is not None:
        with pytest.raises(ConfigError, match=f"{refused}.*one worker must get all inputs"):
            config()
    elif "group_protocol" in settings:
        assert config().consumer.group_remote_assignor == "range"
    elif not settings:
        assert config().consumer.partition_assignment_strategy == (joining,)
