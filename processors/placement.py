"""Decides which worker processes a task, and which workers keep copies of its state.

After KIP-441, with these differences. The lag of a copy is measured against the copy that is
furthest, which members tell the leader; the leader asks no broker. A worker whose copy has caught
up asks for the next rebalance itself, where Kafka Streams looks every ten minutes
(``probing.rebalance.interval.ms``). Copies go to other state directories than the owner's, without
rack tags. All of it is a pure function of what the members tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from onceflow.processors.task import TaskId


class PlacementRules(NamedTuple):
    """How copies are placed.

    Attributes:
        copies: Copies of each task's state beside its owner's (``num.standby.replicas``).
        lag_max: Offsets by which a copy may be behind and still take over at once
            (``acceptable.recovery.lag``).
        warmups_max: Copies that are made at one time so that tasks can move to them
            (``max.warmup.replicas``).
    """

    copies: int
    lag_max: int
    warmups_max: int


@dataclass(frozen=True)
class Seat:
    """A member of the group, as far as placing is concerned.

    Attributes:
        member_id: Its member id.
        order: Sorts members the same way in each generation.
        parts: Sub-topologies whose inputs it reads.
        claims: Tasks that it says it owns.
        generation_id: The generation of these claims.
        host: Its state directory; members that share it have the same copies.
        sums: For each task whose state it has: offsets of the changelogs that it holds, together.
    """

    member_id: str
    order: tuple[bool, str]
    parts: frozenset[str]
    claims: frozenset[TaskId] = frozenset()
    generation_id: int = -1
    host: str = ""
    sums: Mapping[TaskId, int] = field(default_factory=dict)

    @property
    def place(self) -> str:
        """What must not be lost together with its owner's copy."""
        return self.host or self.member_id


@dataclass
class Placement:
    """Who does what, by member id.

    Attributes:
        active: Tasks to process. What moves is missing until its former owner has given it up.
        copies: Tasks whose state is to be followed.
        warmups: Those of them that the member is to take over when they have caught up.
    """

    active: dict[str, list[TaskId]]
    copies: dict[str, list[TaskId]]
    warmups: dict[str, list[TaskId]]


def place(tasks: Mapping[TaskId, bool], seats: Iterable[Seat], rules: PlacementRules) -> Placement:
    """Place all tasks and their copies.

    Args:
        tasks: All tasks, and whether they have state.
        seats: The members.
        rules: How copies are placed.
    """
    return _Plan(tasks, sorted(seats, key=lambda seat: seat.order), rules).solve()


class _Plan:
    def __init__(
        self, tasks: Mapping[TaskId, bool], seats: Sequence[Seat], rules: PlacementRules
    ) -> None:
        self._tasks = tasks
        self._seats = seats
        self._rules = rules
        self._owner: dict[TaskId, Seat] = {}
        self._load = {seat.member_id: 0 for seat in seats}
        self._warm: dict[TaskId, Seat] = {}
        held: dict[TaskId, dict[str, int]] = {}
        for seat in seats:
            for task, offsets in seat.sums.items():
                places = held.setdefault(task, {})
                places[seat.place] = max(offsets, places.get(seat.place, 0))
        self._held = held

    def solve(self) -> Placement:
        """Keep what has an owner, hand out the rest, even the load out, then place copies."""
        former = _valid_owners(self._seats)
        orphans = []
        for task in sorted(self._tasks):
            owner = former.get(task)
            if owner is None:
                orphans.append(task)
            else:
                self._give(task, owner)
        # Tasks of which few have the state first: the others can go anywhere.
        for task in sorted(orphans, key=lambda each: len(self._ready(each))):
            ready = self._ready(task)
            if ready:
                self._give(task, min(ready, key=self._by_load))
        while self._even_out():
            pass
        return self._placement()

    def _give(self, task: TaskId, seat: Seat) -> None:
        self._owner[task] = seat
        self._load[seat.member_id] += 1

    def _by_load(self, seat: Seat) -> tuple[int, tuple[bool, str]]:
        return self._load[seat.member_id], seat.order

    def _readers(self, task: TaskId) -> list[Seat]:
        return [seat for seat in self._seats if task.part in seat.parts]

    def _offsets(self, seat: Seat, task: TaskId) -> int:
        return self._held.get(task, {}).get(seat.place, 0)

    def _is_ready(self, seat: Seat, task: TaskId) -> bool:
        """Whether a member can take over a task without a long restoration."""
        furthest = max(self._held.get(task, {}).values(), default=0)
        if not self._tasks[task] or not furthest:
            return True
        has = seat.place in self._held[task]
        return has and furthest - self._offsets(seat, task) <= self._rules.lag_max

    def _ready(self, task: TaskId) -> list[Seat]:
        """Return the members that can take over a task; all that read it if none has its state."""
        readers = self._readers(task)
        return [seat for seat in readers if self._is_ready(seat, task)] or readers

    def _even_out(self) -> bool:
        """Move one task from a fuller to an emptier member, now or when its state is there.

        Each move lowers the sum of squared loads, so this ends.
        """
        by_load = sorted(self._seats, key=self._by_load)
        for giver in reversed(by_load):
            for taker in by_load:
                if self._load[giver.member_id] - self._load[taker.member_id] < 2:
                    break
                if self._move(giver, taker):
                    return True
        return False

    def _move(self, giver: Seat, taker: Seat) -> bool:
        movable = [
            task
            for task, owner in self._owner.items()
            if owner is giver and task not in self._warm and task.part in taker.parts
        ]
        if not movable:
            return False
        # The furthest copy waits least; of equal ones the last, as the sticky assignor does.
        ready = [task for task in movable if self._is_ready(taker, task)]
        task = max(ready or movable, key=lambda each: (self._offsets(taker, each), each))
        self._load[giver.member_id] -= 1
        self._load[taker.member_id] += 1
        if ready:
            self._owner[task] = taker
        else:
            self._warm[task] = taker
        return True

    def _placement(self) -> Placement:
        ids = [seat.member_id for seat in self._seats]
        active: dict[str, list[TaskId]] = {id: [] for id in ids}
        copies: dict[str, list[TaskId]] = {id: [] for id in ids}
        warmups: dict[str, list[TaskId]] = {id: [] for id in ids}
        claimants: dict[TaskId, set[str]] = {}
        for seat in self._seats:
            for task in seat.claims:
                claimants.setdefault(task, set()).add(seat.member_id)
        for task, owner in self._owner.items():
            if claimants.get(task, set()) - {owner.member_id}:
                # A stale claim counts too: that member may still process the task.
                if self._tasks[task]:
                    copies[owner.member_id].append(task)
            else:
                active[owner.member_id].append(task)
        for task, taker in list(self._warm.items())[: self._rules.warmups_max]:
            copies[taker.member_id].append(task)
            warmups[taker.member_id].append(task)
        for task, owner in self._owner.items():
            if self._tasks[task]:
                self._place_copies(task, owner, copies)
        for found in (active, copies, warmups):
            for placed in found.values():
                placed.sort()
        return Placement(active, copies, warmups)

    def _place_copies(self, task: TaskId, owner: Seat, copies: dict[str, list[TaskId]]) -> None:
        taken = {owner.place}
        left = self._rules.copies

        def rank(seat: Seat) -> tuple[bool, int, int, tuple[bool, str]]:
            has = seat.place in self._held.get(task, {})
            return not has, len(copies[seat.member_id]), *self._by_load(seat)

        for seat in sorted(self._readers(task), key=rank):
            if seat.place in taken or not left:
                continue
            taken.add(seat.place)
            left -= 1
            if task not in copies[seat.member_id]:
                copies[seat.member_id].append(task)


def _valid_owners(seats: Sequence[Seat]) -> dict[TaskId, Seat]:
    """Which member keeps which task: the claim of the youngest generation, if it is the only one
    (KIP-792)."""
    best: dict[TaskId, tuple[int, Seat | None]] = {}
    for seat in seats:
        for task in seat.claims:
            generation_id, _ = best.get(task, (-2, None))
            if task.part not in seat.parts:
                continue
            if seat.generation_id > generation_id:
                best[task] = seat.generation_id, seat
            elif seat.generation_id == generation_id:
                best[task] = generation_id, None
    return {task: seat for task, (_, seat) in best.items() if seat is not None}
