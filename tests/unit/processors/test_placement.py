"""Goal: tasks go to workers that have their state, copies to other state directories, loads even
out by way of copies that catch up first, and no task is ever given to two workers.

Method: the pure function by examples, and by random groups that change: in each round members come,
go and report what they hold, as workers do; the rules are checked after each round.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from onceflow.processors import App, State
from onceflow.processors.placement import Placement, PlacementRules, Seat, place
from onceflow.processors.task import TaskId
from onceflow.processors.task_assignor import Given, MemberFacts, TaskAssignor
from onceflow.sdk import MemberSubscription
from onceflow.sdk.model.partitions import TopicPartition

PART = "in"
RULES = PlacementRules(1, 100, 2)


def tasks(count: int) -> list[TaskId]:
    return [TaskId(PART, number) for number in range(count)]


def seat(name: str, claims: Sequence[TaskId] = (), **told: object) -> Seat:
    given = {"host": name, "generation_id": 1, **told}
    return Seat(name, (False, name), frozenset([PART]), frozenset(claims), **given)  # type: ignore[arg-type]


def placed(count: int, seats: Sequence[Seat], rules: PlacementRules = RULES) -> Placement:
    return place(dict.fromkeys(tasks(count), True), seats, rules)


def test_the_copy_takes_over_when_the_owner_is_gone() -> None:
    a, b, c, d = tasks(4)
    seats = [
        seat("x", [a, b], sums={a: 900, b: 900, d: 850}),
        seat("y", [], sums={c: 850}),
    ]
    found = placed(4, seats)
    assert found.active == {"x": [a, b, d], "y": [c]}, "where the copies are"
    assert found.warmups == {"x": [], "y": [d]}, "and later evenly"


def test_a_task_does_not_move_to_a_worker_without_its_state() -> None:
    a, b = tasks(2)
    seats = [seat("x", [a, b], sums={a: 1_000, b: 1_000}), seat("y")]
    found = placed(2, seats)
    assert found.active == {"x": [a, b], "y": []}
    assert found.warmups == {"x": [], "y": [b]}
    assert found.copies == {"x": [], "y": [a, b]}
    caught_up = [seats[0], seat("y", sums={b: 950, a: 10})]
    found = placed(2, caught_up)
    assert found.active == {"x": [a], "y": []}, "its former owner gives it up first"
    assert b in found.copies["y"], "and the copy is followed meanwhile"
    given_up = [seat("x", [a], sums={a: 1_000, b: 1_000}), seat("y", sums={b: 950, a: 10})]
    found = placed(2, given_up)
    assert found.active == {"x": [a], "y": [b]}
    assert found.copies == {"x": [b], "y": [a]}


def test_workers_of_one_directory_hold_no_copies_of_each_other() -> None:
    a, b = tasks(2)
    seats = [
        seat("x", [a], host="one", sums={a: 5}),
        seat("y", [b], host="one", sums={b: 5}),
    ]
    assert placed(2, seats).copies == {"x": [], "y": []}
    found = placed(2, [*seats, seat("z", host="two")])
    assert found.copies["z"] == [a, b]
    left = [seat("w", host="two"), seat("y", [b], host="one", sums={b: 500})]
    left.append(seat("z", host="one", sums={a: 500}))
    assert placed(2, left).active == {"w": [], "y": [b], "z": [a]}, "the directory has both"


def test_two_claims_of_one_generation_count_for_nothing() -> None:
    (a,) = tasks(1)
    found = placed(1, [seat("x", [a]), seat("y", [a])])
    assert found.active == {"x": [], "y": []}, "both give it up first"
    found = placed(1, [seat("x", [a]), seat("y", [a], generation_id=2)])
    assert found.active == {"x": [], "y": []}
    assert found.copies == {"x": [a], "y": [a]}, "y is to have it; x follows"


def test_without_any_state_tasks_are_spread_evenly() -> None:
    found = placed(5, [seat("x"), seat("y")])
    assert sorted(map(len, found.active.values())) == [2, 3]
    assert sorted(map(len, found.copies.values())) == [2, 3]


def test_no_more_copies_are_warmed_up_than_allowed() -> None:
    every = tasks(9)
    seats = [seat("x", every, sums=dict.fromkeys(every, 1_000)), seat("y"), seat("z")]
    found = placed(9, seats, PlacementRules(0, 100, 2))
    assert len(found.active["x"]) == 9
    assert sum(map(len, found.warmups.values())) == 2
    assert found.warmups == found.copies


@pytest.mark.parametrize("seed", range(60))
def test_groups_that_change_become_even_and_never_share_a_task(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randrange(1, 9)
    stateful = {task: chance.random() < 0.7 for task in tasks(count)}
    rules = PlacementRules(chance.randrange(3), 100, chance.randrange(1, 3))
    names = [f"m{number}" for number in range(5)]
    held: dict[str, dict[TaskId, int]] = {}
    owned: dict[str, set[TaskId]] = {}
    end = 1_000
    alive: list[str] = []
    for round in range(60):
        if round % 20 == 0:  # Members come and go; those that go lose what they own.
            alive = chance.sample(names, chance.randrange(1, 5))
            for name in names:
                if name not in alive:
                    owned.pop(name, None)
                    if chance.random() < 0.5:
                        held.pop(name, None)  # with its disk
        seats = [
            seat(
                name,
                sorted(owned.get(name, set())),
                generation_id=round,
                sums={t: o for t, o in held.get(name, {}).items() if stateful[t]},
            )
            for name in alive
        ]
        found = place(stateful, seats, rules)
        given = [task for assigned in found.active.values() for task in assigned]
        assert len(given) == len(set(given)), "a task has two owners"
        for name, assigned in found.active.items():
            for other in alive:
                assert other == name or not owned.get(other, set()) & set(assigned), "not given up"
            assert not set(found.copies[name]) & set(assigned)
            owned[name] = set(assigned)
            followed = {*assigned, *found.copies[name]}
            held[name] = {task: end for task in followed if stateful[task]}  # It catches up.
        if round % 20 == 19:
            assert sorted(given) == sorted(stateful), f"no owner: {set(stateful) - set(given)}"
            loads = sorted(map(len, found.active.values()))
            assert loads[-1] - loads[0] <= 1, loads
            for task, has_state in stateful.items():
                copies = sum(task in each for each in found.copies.values())
                assert copies == (min(rules.copies, len(alive) - 1) if has_state else 0)
            again = place(stateful, [*seats], rules)
            assert again == found, "it stands still"


def application() -> App:
    app = App("placed")

    @app.processor("in", to="out")
    def count(value: str, seen: State[int]) -> str:
        return value

    return app


def member(name: str, user_data: bytes, owned: Sequence[int] = ()) -> MemberSubscription:
    held = tuple(TopicPartition("in", number) for number in owned)
    return MemberSubscription(name, frozenset(["in"]), held, 1, name, user_data)


def test_what_members_tell_and_hear() -> None:
    task = TaskId("in", 0)
    assignors = [
        TaskAssignor(
            application().topology(), RULES, MemberFacts(f"host {n}", f"{n}:80", {task: 5 * n})
        )
        for n in range(3)
    ]
    members = [
        member(f"m{n}", assignor.subscription_user_data()) for n, assignor in enumerate(assignors)
    ]
    divided, told = assignors[0].assign_informed({"in": 1}, members)
    assert divided == {"m0": [TopicPartition("in", 0)], "m1": [], "m2": []}, "all have caught up"
    assignors[1].on_assignment(told["m1"])
    assert assignors[1].given.servers == {task: "0:80"}
    assert assignors[1].given.number == 1
    assert [_heard(told[f"m{n}"]).copies for n in range(3)] == [(), (task,), ()]


def _heard(data: bytes) -> Given:
    assignor = TaskAssignor(application().topology(), RULES, MemberFacts())
    assignor.on_assignment(data)
    return assignor.given


@pytest.mark.parametrize("data", [b"", b"\xff\x00", b"\x81\xa1v\xa1x", bytes(40)])
def test_members_that_tell_nothing_or_nonsense_take_part(data: bytes) -> None:
    assignor = TaskAssignor(application().topology(), RULES, MemberFacts())
    divided = assignor.assign({"in": 2}, [member("a", data), member("b", data)])
    assert sorted(map(len, divided.values())) == [1, 1]
    assert _heard(data) == Given(1)


def test_a_rebalance_is_asked_for_once() -> None:
    assignor = TaskAssignor(application().topology(), RULES, MemberFacts())
    assert assignor.rejoin_reason() is None
    assignor.rejoin("a copy has caught up")
    assert assignor.rejoin_reason() == "a copy has caught up"
    assert assignor.rejoin_reason() is None
