"""Goal: all calls that follow from one record reach the outside together, or none does.

Method: applications whose functions share a topic or take each other's results, in the test driver
and over the in-memory cluster; a call fails at each place, with each policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from processor_worlds import World

from onceflow.processors import (
    App,
    Context,
    MapState,
    Output,
    ProcessingError,
    Retries,
    State,
)
from onceflow.processors.testing import TestDriver
from onceflow.sdk.model.partitions import TopicPartition


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, "in")


def test_several_functions_read_one_topic() -> None:
    app = App("several")

    @app.processor("in", to="loud")
    def loud(value: str) -> str:
        return value.upper()

    @app.processor("in", to="counts")
    def count(value: str, seen: State[int] = State(0)) -> int:  # noqa: B008 - declares its start
        seen.value += 1
        return seen.value

    driver = TestDriver(app)
    for value in "ab":
        driver.send("in", value, key="k")
    assert (driver.values("loud"), driver.values("counts", int)) == ([b"A", b"B"], [1, 2])


def test_functions_in_a_row_keep_order_key_time_and_headers() -> None:
    app = App("row")
    seen: list[object] = []

    @app.processor("in")
    def words(value: str) -> Iterator[object]:
        yield from value.split()
        yield Output(len(value), headers=[("h", b"1")], timestamp_ms=77)

    @app.processor(words)
    def twice(value: object, headers: object) -> list[object]:
        seen.append(headers)
        return [value, value]

    @app.processor(twice, to="out")
    def show(value: object, key: str, context: Context) -> str:
        return f"{key}:{value}:{context.record_id}"

    driver = TestDriver(app)
    driver.send("in", "a b", key="k", timestamp_ms=5)
    shown = ["a", "a", "b", "b", "3", "3"]
    assert driver.values("out", str) == [f"k:{value}:in-0-0" for value in shown]
    assert [record.timestamp_ms for record in driver.outputs("out")] == [5, 5, 5, 5, 77, 77]
    assert seen == [(), (), [("h", b"1")]]


def test_a_function_may_feed_others_and_write_a_topic() -> None:
    app = App("both")

    @app.processor("in", to="middle")
    def first(value: str) -> str:
        return value + "1"

    @app.processor(first, to="left")
    def left(value: str) -> str:
        return value + "l"

    @app.processor(first, to="right")
    async def right(value: str) -> str:
        return value + "r"

    driver = TestDriver(app)
    driver.send("in", "a")
    found = [driver.values(topic) for topic in ("middle", "left", "right")]
    assert found == [[b"a1"], [b"a1l"], [b"a1r"]]


def chain(fail_at: str, times: int = 99, **options: object) -> App:
    """Two functions on one topic; the first feeds a third. One raises after its writes."""
    app = App("chain")
    left = {"times": times}

    def fail(name: str, value: str) -> None:
        if name == fail_at and value.startswith("bad") and left["times"] > 0:
            left["times"] -= 1
            raise ValueError(name)

    @app.processor("in", to="a-out", **options)  # type: ignore[arg-type]
    def a(value: str, seen: State[int], map: MapState[str, int]) -> list[str]:
        seen.set(seen.get(0) + 1)
        map[value] = 1
        fail("a", value)
        return [value, value + "'"]

    @app.processor(a, to="b-out", **options)  # type: ignore[arg-type]
    def b(value: str, count: State[int]) -> str:
        count.set(count.get(0) + 1)
        fail("b", value)
        return f"{value}{count.get()}"

    @app.processor("in", to="c-out", **options)  # type: ignore[arg-type]
    def c(value: str, seen: State[int]) -> str:
        seen.set(seen.get(0) + 1)
        fail("c", value)
        return f"{value}{seen.get()}"

    return app


ALL = {
    "a-out": [b"x", b"x'", b"bad", b"bad'", b"y", b"y'"],
    "b-out": [b"x1", b"x'2", b"bad3", b"bad'4", b"y5", b"y'6"],
    "c-out": [b"x1", b"bad2", b"y3"],
}


@pytest.mark.parametrize("place", ["a", "b", "c"])
def test_call_that_fails_for_a_while_repeats_itself_alone(world: World, place: str) -> None:
    world.cluster.put("in", b"x", b"bad", b"y", key=b"k")
    world.run(chain(place, times=2, retries=Retries(2, backoff_ms=5_000, backoff_max_ms=5_000)))
    assert {topic: world.cluster.values(topic) for topic in ALL} == ALL


@pytest.mark.parametrize("place", ["a", "b", "c"])
def test_stop_leaves_nothing_of_the_record(world: World, place: str) -> None:
    """Also what its other functions gave: the record comes again after a restart."""
    world.cluster.put("in", b"x", b"bad", b"y", key=b"k")
    with pytest.raises(ProcessingError, match=f"{place} failed at in-0@1"):
        world.run(chain(place))
    assert world.cluster.offset("in") == 1
    found = {topic: world.cluster.values(topic) for topic in ALL}
    assert found == {topic: values[: len(values) // 3] for topic, values in ALL.items()}
    world.run(chain("nowhere"))
    assert {topic: world.cluster.values(topic) for topic in ALL} == ALL


@pytest.mark.parametrize("policy", ["skip", "dead letter"])
@pytest.mark.parametrize("place", ["a", "b", "c"])
def test_call_that_is_given_up_leaves_the_others(world: World, place: str, policy: str) -> None:
    options = {"on_error": "skip"} if policy == "skip" else {"dead_letter": "dead"}
    world.cluster.put("in", b"x", b"bad", b"y", key=b"k")
    world.run(chain(place, **options))
    wanted = dict(ALL)
    if place == "a":  # Nothing of it, and nothing that would follow from it.
        wanted["a-out"] = [b"x", b"x'", b"y", b"y'"]
        wanted["b-out"] = [b"x1", b"x'2", b"y3", b"y'4"]
    elif place == "b":
        wanted["b-out"] = [b"x1", b"x'2", b"y3", b"y'4"]
    else:
        wanted["c-out"] = [b"x1", b"y2"]
    assert {topic: world.cluster.values(topic) for topic in ALL} == wanted
    letters = 0 if policy == "skip" else 2 if place == "b" else 1
    assert world.cluster.values("dead") == [b"bad"] * letters
    assert world.cluster.offset("in") == 3


def test_record_in_hand_is_dropped_with_its_partition(world: World) -> None:
    """Its first calls are done, a later one waits: nothing of it is committed by the old owner."""
    world.cluster.put("in", b"x", b"bad", key=b"k")
    app = chain("c", times=1, retries=Retries(1, backoff_ms=60_000, backoff_max_ms=60_000))
    app.configure(commit_interval_ms=1_000)
    for _ in range(4):
        world.cluster.do("poll", lambda: None)
    world.cluster.do("poll", lambda: world.cluster.rebalance([]))
    world.run(app)
    assert world.cluster.offset("in") == 1
    assert world.cluster.values("a-out") == [b"x", b"x'"]
    world.run(chain("nowhere"))
    assert world.cluster.values("c-out") == [b"x1", b"bad2"]


def test_changed_key_does_not_reach_state(world: World) -> None:
    """Its state lies with another partition: a topic in between brings it there."""
    app = App("keys")

    @app.processor("in")
    def change(value: str) -> Output:
        return Output(value, key="other" if value == "bad" else "k")

    @app.processor(change, to="out", dead_letter="dead")
    def count(value: str, seen: State[int]) -> str:
        seen.set(seen.get(0) + 1)
        return f"{value}{seen.get()}"

    world.cluster.put("in", b"a", b"bad", b"b", key=b"k")
    world.run(app)
    assert world.cluster.values("out") == [b"a1", b"b2"]
    (letter,) = world.cluster.logs[TopicPartition("dead", 0)]
    message = dict(letter.headers)["onceflow.error.message"]  # type: ignore[call-overload]
    assert b"the key was changed to b'other'" in message


def test_outputs_that_the_brokers_refuse_concern_the_whole_record(world: World) -> None:
    from onceflow.sdk.errors import MessageTooLargeError

    cluster = world.cluster
    cluster.put("in", b"x", b"bad", b"y", key=b"k")

    def refuse_bad() -> None:
        log = cluster.logs[TopicPartition("b-out", 0)]
        if any(entry.value == b"bad3" and entry.state == "open" for entry in log):
            raise MessageTooLargeError()

    for _ in range(50):
        cluster.do("flush", refuse_bad)
    world.run(chain("nowhere", dead_letter="dead"))
    assert cluster.values("dead") == [b"bad", b"bad"]  # One of each function that read it.
    assert cluster.values("a-out") == [b"x", b"x'", b"y", b"y'"]
    assert cluster.offset("in") == 3
