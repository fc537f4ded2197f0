"""A member of a consumer group (KIP-848) as a client would be it, on the coordinators' bench.

It owns exactly what a client may think that it owns: it takes an assignment only from an answer,
gives up before it says so, and drops everything when it is fenced.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from coordinator_bench import Bench

from onceflow.broker_lite.coordinators.consumer.requests import (
    ConsumerHeartbeat,
    HeartbeatAnswer,
)
from onceflow.sdk.protocol.error_codes import ErrorCode


def beat(bench: Bench, member_id: str, epoch: int, **said: object) -> HeartbeatAnswer:
    """One heartbeat, with nothing said but what is given."""
    group_id = str(said.pop("group_id", "g"))
    request = ConsumerHeartbeat(group_id, member_id, epoch, "c", "/127.0.0.1", **said)  # type: ignore[arg-type]
    return bench.groups.consumers.heartbeat(request, bench.now_ms)


class Peer:
    """One member.

    Attributes:
        epoch: Its member epoch; 0 before it joined.
        owned: What it works on.
        target: What the last answer told it to own.
    """

    def __init__(
        self,
        bench: Bench,
        member_id: str,
        *topics: str,
        instance: str | None = None,
        regex: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int = 60_000,
    ) -> None:
        self.bench = bench
        self.member_id = member_id
        self.topics = topics
        self.instance = instance
        self.regex = regex
        self.assignor = assignor
        self.rebalance_ms = rebalance_ms
        self.epoch = 0
        self.owned: dict[UUID, frozenset[int]] = {}
        self.target: dict[UUID, frozenset[int]] | None = None

    def partitions(self) -> set[tuple[UUID, int]]:
        """What it works on, flat."""
        return {(topic_id, p) for topic_id, parts in self.owned.items() for p in parts}

    def numbers(self) -> list[int]:
        """Partition numbers, where one topic is read."""
        return sorted(p for parts in self.owned.values() for p in parts)

    def give_up(self) -> None:
        """Stop working on what is not in the target."""
        if self.target is None:
            return
        kept = {t: parts & self.target.get(t, frozenset()) for t, parts in self.owned.items()}
        self.owned = {t: parts for t, parts in kept.items() if parts}

    def take(self) -> None:
        """Begin to work on what is in the target."""
        if self.target is not None:
            self.owned = dict(self.target)

    def beat(self, *, lose_answer: bool = False, full: bool = True) -> ErrorCode:
        """A heartbeat, and what its answer tells.

        Args:
            lose_answer: The coordinator answers, and nobody hears it.
            full: Say everything, as a client does after any doubt.
        """
        said: dict[str, object] = {}
        if full or self.epoch == 0:
            said = {
                "topics": self.topics,
                "regex": self.regex,
                "rebalance_timeout_ms": self.rebalance_ms,
                "server_assignor": self.assignor,
                "owned": {} if self.epoch == 0 else self.owned,
            }
        answer = beat(self.bench, self.member_id, self.epoch, instance_id=self.instance, **said)
        if lose_answer:
            return answer.error_code
        code = answer.error_code
        if code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.epoch, self.owned, self.target = 0, {}, None
        elif code is ErrorCode.NONE:
            self.epoch = answer.member_epoch
            if answer.assignment is not None:
                self.target = dict(answer.assignment)
        return code

    def step(self) -> None:
        """A heartbeat, then work on what it says."""
        self.beat()
        self.give_up()
        self.take()

    def leave(self, epoch: int = -1) -> ErrorCode:
        """Say goodbye."""
        code = beat(self.bench, self.member_id, epoch, instance_id=self.instance).error_code
        self.epoch, self.owned, self.target = 0, {}, None
        return code


def settle(peers: Iterable[Peer], rounds: int = 12) -> None:
    """Heartbeats of everybody until nothing moves."""
    peers = list(peers)
    for _ in range(rounds):
        before = [(peer.epoch, dict(peer.owned)) for peer in peers]
        for peer in peers:
            peer.step()
        if before == [(peer.epoch, dict(peer.owned)) for peer in peers]:
            return
    raise AssertionError(f"still moving after {rounds} rounds")
