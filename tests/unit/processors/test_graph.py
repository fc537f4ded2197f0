"""Goal: an application is a graph that can be read, and wrong ones are refused in time.

Method: applications are declared and looked at; nothing is connected.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from onceflow.processors import App, DeclarationError, Output, State
from onceflow.processors.assign import CoPartitioned
from onceflow.processors.testing import TestDriver
from onceflow.sdk import CooperativeStickyAssignor, MemberSubscription
from onceflow.sdk.model.partitions import TopicPartition


def shop() -> App:
    app = App("shop")

    @app.processor("orders")
    def parse(order: str) -> Iterator[int]:
        yield len(order)

    @app.processor(parse, to="totals", dead_letter="broken")
    def total(length: int, seen: State[int]) -> int:
        return length

    @app.processor("orders", to="copies")
    async def copy(order: bytes) -> bytes:
        return order

    @app.processor("totals")
    def look(value: int) -> None:
        return None

    return app


def test_functions_that_share_a_topic_or_results_are_one_task() -> None:
    topology = shop().topology()
    first, second = topology.sub_topologies
    assert (first.name, first.input_topics) == ("orders", ("orders",))
    assert [node.name for node in first.functions] == ["parse", "total", "copy"]
    assert [node.name for node in second.functions] == ["look"]
    assert [state.name for state in first.states] == ["total.seen"]
    assert topology.input_topics == ["orders", "totals"]
    assert sorted(topology.output_topics) == ["broken", "copies", "totals"]
    assert topology.is_async
    assert [node.name for node in first.children("topic orders")] == ["parse", "copy"]


def test_branches_are_part_of_the_topology() -> None:
    app = App("shop")
    branches = {"large": "large-orders", "small": "small-orders"}

    @app.processor("orders", branches=branches, dead_letter="dead")
    def split(cents: int) -> Output:
        return Output(cents, branch="large" if cents > 100 else "small" if cents else "other")

    assert app.topology().output_topics == ["large-orders", "small-orders", "dead"]
    assert "writes       large-orders, small-orders" in str(app.topology())
    driver = TestDriver(app)
    for cents in (500, 5, 0):
        driver.send("orders", cents)
    assert (driver.values("large-orders"), driver.values("small-orders")) == ([b"500"], [b"5"])
    (letter,) = driver.dead_letters("dead")
    assert b"branch='other'" in dict(letter.headers)["onceflow.error.message"]


@pytest.mark.parametrize(
    ("branches", "message"),
    [
        (["a"], "must be a dictionary of topics"),
        ({"a": 1}, "must be a dictionary of topics"),
        ({"a": "in"}, "branch 'a': what it sends to its own input topic 'in'"),
        ({"a": "x/y"}, "branch 'a': to='x/y' is not a valid topic name"),
    ],
)
def test_branches_that_cannot_work(branches: object, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):

        @App("shop").processor("in", branches=branches)  # type: ignore[arg-type]
        def split(value: int) -> None: ...


def test_text() -> None:
    assert str(shop().topology()).splitlines() == [
        "application shop",
        "  sub-topology 0: orders",
        "    processor parse",
        "      reads        orders",
        "      writes       (only what names a topic)",
        "      retries      none",
        "      then         stop before the record",
        "    processor total",
        "      takes from   parse",
        "      writes       totals",
        "      state        seen: int in lmdb, changelog shop-total-seen-changelog",
        "      retries      none",
        "      then         dead letter to broken",
        "    async processor copy",
        "      reads        orders",
        "      writes       copies",
        "      retries      none",
        "      then         stop before the record",
        "  sub-topology 1: totals",
        "    processor look",
        "      reads        totals",
        "      writes       (only what names a topic)",
        "      retries      none",
        "      then         stop before the record",
    ]


def test_json_and_mermaid() -> None:
    topology = shop().topology()
    found = json.loads(topology.to_json())
    assert (found["app"], found["group"]) == ("shop", "shop")
    nodes = {node["name"]: node for node in found["nodes"]}
    assert nodes["total"]["states"] == [
        {"name": "total.seen", "type": "int", "changelog": "shop-total-seen-changelog"}
    ]
    assert nodes["topic orders"] | {"writes": []} == nodes["topic orders"]
    assert {
        "source": "parse",
        "target": "total",
        "value": "collections.abc.Iterator[int]",
    } in found["edges"]
    assert [part["name"] for part in found["sub_topologies"]] == ["orders", "totals"]
    drawn = topology.to_mermaid().splitlines()
    assert drawn[0] == "flowchart LR"
    assert '    t1[("totals")]' in drawn
    assert any("parse" in line for line in drawn)
    assert any("dead letters" in line for line in drawn)
    ids = {line.split("[")[0].strip() for line in drawn if "[" in line}
    for line in drawn:
        if "-->" in line:
            source, target = line.replace("|", " ").split()[0], line.split()[-1]
            assert {source, target} <= ids


def test_results_go_only_where_they_fit() -> None:
    app = App("flow")

    @app.processor("in")
    def numbers(value: str) -> list[int]:
        return [1]

    def text(value: str) -> None: ...
    def number(value: int | None) -> None: ...
    def anything(value: object) -> None: ...

    with pytest.raises(DeclarationError, match="text takes value: str, but numbers gives int"):
        app.processor(numbers)(text)
    app.processor(numbers)(number)
    app.processor(numbers)(anything)
    with pytest.raises(
        DeclarationError, match=r"topic=.*must be a topic, a list of topics, or a function"
    ):
        app.processor(text)(number)


def test_an_output_says_nothing_of_its_value() -> None:
    app = App("outputs")

    @app.processor("in")
    def first(value: str) -> Output:
        return Output(value)

    @app.processor(first, to="out")
    def second(value: str) -> str:
        return value

    assert [node.name for node in app.topology().functions] == ["first", "second"]


def test_rings_through_declared_outputs_are_refused() -> None:
    app = App("ring")

    @app.processor("a", to="b")
    def there(value: str) -> str:
        return value

    with pytest.raises(DeclarationError, match="leads from input topic"):

        @app.processor("b", to="a")
        def back(value: str) -> str:
            return value

    @app.processor("b")  # It ends by itself: said by naming the topic in the output.
    def sometimes(value: str) -> Output | None:
        return Output(value, topic="a") if value else None


def test_names_are_given_once() -> None:
    app = App("names")
    app.processor("a", name="one")(lambda value: None)
    with pytest.raises(DeclarationError, match="two processors of names have the name 'one'"):
        app.processor("b", name="one")(lambda value: None)
    assert len(app.topology().functions) == 1


def test_functions_that_share_an_output_are_separate_tasks() -> None:
    app = App("shared")

    @app.processor("a", to="out")
    def one(value: str) -> str:
        return value

    @app.processor("b", to="out")
    def two(value: str) -> str:
        return value

    assert [part.name for part in app.topology().sub_topologies] == ["a", "b"]


# Assignment ----------------------------------------------------------------------------------


def member(name: str, *owned: tuple[str, int], topics: str = "abx") -> MemberSubscription:
    return MemberSubscription(
        name, frozenset(topics), tuple(TopicPartition(*tp) for tp in owned), generation_id=1
    )


class Joined:
    """A topology in which a and b are the inputs of one task."""

    class Part:
        def __init__(self, name: str, *topics: str) -> None:
            self.name = name
            self.input_topics = topics

    sub_topologies = (Part("a", "a", "b"), Part("x", "x"))


def test_inputs_of_a_task_go_to_one_member() -> None:
    assignor = CoPartitioned(Joined())  # type: ignore[arg-type]
    counts = {"a": 4, "b": 4, "x": 3}
    found = assignor.assign(counts, [member("m1"), member("m2"), member("m3")])
    assert sorted(tp for tps in found.values() for tp in tps) == sorted(
        TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)
    )
    for assigned in found.values():
        numbers = [{tp.partition for tp in assigned if tp.topic == topic} for topic in "ab"]
        assert numbers[0] == numbers[1]
        assert 2 <= len(numbers[0]) + sum(tp.topic == "x" for tp in assigned) <= 3


def test_a_task_that_moves_is_given_up_first() -> None:
    """Cooperative (KIP-429): whoever holds one input of it may be working on it."""
    assignor = CoPartitioned(Joined())  # type: ignore[arg-type]
    counts = {"a": 2, "b": 2}
    old = member("m1", ("a", 0), ("b", 0), ("a", 1), ("b", 1), topics="ab")
    found = assignor.assign(counts, [old, member("m2", topics="ab")])
    assert found["m2"] == []
    (kept,) = {tp.partition for tp in found["m1"]}
    assert found["m1"] == [TopicPartition("a", kept), TopicPartition("b", kept)]
    half = member("m1", ("a", kept), ("b", kept), topics="ab")
    still = member("m3", ("b", 1 - kept), topics="ab")  # A stale claim to one input.
    found = assignor.assign(counts, [half, still, member("m2", topics="ab")])
    assert TopicPartition("a", 1 - kept) not in found["m2"]


def test_single_inputs_are_divided_as_by_the_sticky_assignor() -> None:
    topology = shop().topology()
    counts = {"orders": 5, "totals": 4}
    members = [member(f"m{n}", topics="") for n in range(3)]
    members = [
        MemberSubscription(m.member_id, frozenset(counts), (), generation_id=1) for m in members
    ]
    assert CoPartitioned(topology).assign(counts, members) == CooperativeStickyAssignor().assign(
        counts, members
    )
