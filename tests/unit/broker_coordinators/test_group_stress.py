"""Seeded random members join, sync, beat, leave, vanish and return; invariants hold at each step.

Method: members are small machines that act on their last answers, as clients do, on a hand-moved
clock. After every step: one leader at most per generation, only the leader sees the members, no
assignment from another generation, every parked answer belongs to a member that waits, and in the
end, when everybody behaves, the group becomes stable with all of them. A failing seed is in the
test's name.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from coordinator_bench import Bench, done, is_parked

from onceflow.broker_lite.coordinators.classic.group import JoinResult, SyncResult
from onceflow.broker_lite.coordinators.settings import GroupSettings
from onceflow.broker_lite.purgatory import Deferred
from onceflow.sdk.protocol.error_codes import ErrorCode

STEPS = 250
SESSION_MS = 10_000


@dataclass
class Client:
    """One client: what it knows, and the request it waits for."""

    name: str
    static: bool
    version: int
    member_id: str = ""
    generation_id: int = -1
    leads: list[str] = field(default_factory=list)
    parked: Deferred[JoinResult] | Deferred[SyncResult] | None = None
    joined: bool = False
    synced: bool = False
    fenced: bool = False

    @property
    def instance(self) -> str | None:
        return self.name if self.static else None

    def forget(self) -> None:
        self.joined = self.synced = False
        self.generation_id = -1


class World:
    """Clients of one group, and what was promised to whom."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        delay_ms = self.random.choice([0, 500])
        self.bench = Bench(
            group_settings=GroupSettings(initial_rebalance_delay_ms=delay_ms), seed=seed
        )
        self.clients = [
            Client(f"c{index}", self.random.random() < 0.3, self.random.choice([3, 5, 9]))
            for index in range(self.random.randint(2, 6))
        ]
        self.leaders: dict[int, str] = {}
        self.shares: dict[int, dict[str, bytes]] = {}

    # --- what clients do

    def join(self, client: Client) -> None:
        client.forget()
        result = self.bench.join(
            client.member_id,
            instance=client.instance,
            version=client.version,
            session_ms=SESSION_MS,
            rebalance_ms=20_000,
            client_id=client.name,
        )
        self._wait(client, result)

    def sync(self, client: Client) -> None:
        shares = {}
        if client.leads:
            shares = {
                member_id: f"{client.generation_id}/{member_id}".encode()
                for member_id in client.leads
            }
        result = self.bench.sync(
            client.member_id, client.generation_id, shares, instance=client.instance
        )
        self._wait(client, result)

    def _wait(
        self,
        client: Client,
        result: JoinResult | SyncResult | Deferred[JoinResult] | Deferred[SyncResult],
    ) -> None:
        if is_parked(result):
            assert isinstance(result, Deferred)
            client.parked = result
        else:
            self._answered(client, done(result))

    def _answered(self, client: Client, answer: JoinResult | SyncResult) -> None:
        client.parked = None
        code = answer.error_code
        if code is ErrorCode.MEMBER_ID_REQUIRED:
            assert isinstance(answer, JoinResult)
            client.member_id = answer.member_id
            return
        if code is not ErrorCode.NONE:
            client.forget()
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                client.member_id = ""
            elif code is ErrorCode.FENCED_INSTANCE_ID:
                client.member_id = ""
                client.fenced = True
            else:
                assert code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION)
            return
        if isinstance(answer, JoinResult):
            self._joined(client, answer)
        else:
            client.synced = True
            expected = f"{client.generation_id}/{client.member_id}".encode()
            share = self.shares_of(client)
            assert answer.assignment in (expected, share, b""), "assignment of another generation"

    def shares_of(self, client: Client) -> bytes:
        """A static member that came back has the share that was made for its former id."""
        for member in self.bench.groups.admin.describe("g").members:
            if member.member_id == client.member_id:
                assert member.member_assignment.split(b"/")[0] in (
                    b"",
                    str(client.generation_id).encode(),
                )
                return member.member_assignment
        return b""

    def _joined(self, client: Client, answer: JoinResult) -> None:
        client.member_id = answer.member_id
        client.generation_id = answer.generation_id
        client.joined = True
        is_leader = answer.leader == answer.member_id
        client.leads = (
            [member.member_id for member in answer.members]
            if is_leader and not answer.skip_assignment
            else []
        )
        if is_leader:
            assert answer.member_id in {member.member_id for member in answer.members}
            leader = self.leaders.setdefault(answer.generation_id, client.name)
            assert leader == client.name, "two leaders in one generation"
        else:
            assert not answer.members

    def collect(self) -> None:
        """Hand over the parked answers that came."""
        for client in self.clients:
            if client.parked is not None and client.parked.completed:
                self._answered(client, done(client.parked))  # type: ignore[arg-type]

    def act(self, client: Client) -> None:
        """One random deed."""
        deed = self.random.random()
        if client.parked is not None:
            if deed < 0.05:
                client.parked.disconnect()
                client.parked = None
                client.forget()
                if not client.static and self.random.random() < 0.5:
                    client.member_id = ""  # the process died
            return
        if deed < 0.05 and client.member_id:
            self.bench.leave(client.member_id, instance=client.instance)
            client.member_id = ""
            client.forget()
        elif deed < 0.10:
            client.member_id = ""  # dies without a word and starts again
            client.forget()
        elif deed < 0.15:
            self.join(client)
        else:
            self.behave(client)

    def behave(self, client: Client) -> None:
        """What a well-behaved client does next."""
        if client.parked is not None:
            return
        if not client.joined:
            self.join(client)
        elif not client.synced:
            self.sync(client)
        else:
            code = self.bench.heartbeat(
                client.member_id, client.generation_id, instance=client.instance
            )
            if code is not ErrorCode.NONE:
                client.forget()
            if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
                client.member_id = ""

    # --- what must hold

    def check(self) -> None:
        group = self.bench.groups._table.get("g")  # the parked answers are nobody else's business
        if group is None:
            assert all(client.parked is None or client.parked.completed for client in self.clients)
            return
        waiting = {
            id(parked)
            for member in group.members.values()
            for parked in (member.awaiting_join, member.awaiting_sync)
            if parked is not None and not parked.completed
        }
        for client in self.clients:
            if client.parked is not None and not client.parked.completed:
                assert id(client.parked) in waiting, f"{client.name} waits for nothing"
        if group.members:
            assert group.leader in group.members
        for instance, member_id in group.static_members.items():
            assert group.members[member_id].group_instance_id == instance
        assert group.pending_sync <= set(group.members)
        if group.state.value == "Stable":
            assert not any(member.awaiting_sync for member in group.members.values())

    def settle(self) -> None:
        """Everybody behaves from now on: the group must become stable with all of them."""
        for _ in range(200):
            for client in self.clients:
                self.behave(client)
                self.collect()
            self.bench.pass_ms(1_000)
            self.collect()
            self.check()
            if all(client.synced for client in self.clients):
                generations = {client.generation_id for client in self.clients}
                members = self.bench.groups.admin.describe("g").members
                if len(generations) == 1 and len(members) == len(self.clients):
                    return
        raise AssertionError(f"never stable: {self.clients}")


@pytest.mark.parametrize("seed", range(40))
def test_random_members(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.act(world.random.choice(world.clients))
        world.collect()
        world.check()
        world.bench.pass_ms(world.random.choice([0, 10, 300, 1_500]))
        world.collect()
        world.check()
    world.settle()
