"""Goal: an assignor can tell the leader of its member, and the leader's each member, as with
Kafka's ``ConsumerPartitionAssignor``.

Method: two consumers with such an assignor in one group, polled in turn, on our broker and on
Apache Kafka. What was told and heard is noted by the assignors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest
from consumer_worlds import BROKERS, fresh, make_topic, running_broker

from onceflow.sdk import Consumer, CooperativeStickyAssignor, MemberSubscription
from onceflow.sdk.model.partitions import TopicPartition

ROUNDS = 400


@pytest.fixture(params=BROKERS)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from running_broker(request)


class Telling:
    """Cooperative sticky, and notes what it hears."""

    name = "telling"
    cooperative = True
    sends_owned_in_user_data = False

    def __init__(self, told: bytes) -> None:
        self.told = told
        self.heard: list[bytes] = []
        self.reason: str | None = None

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> dict[str, list[TopicPartition]]:
        return self.assign_informed(partition_counts, members)[0]

    def assign_informed(
        self, partition_counts: Mapping[str, int], members: Sequence[MemberSubscription]
    ) -> tuple[dict[str, list[TopicPartition]], Mapping[str, bytes]]:
        all_told = b"+".join(sorted(member.user_data for member in members))
        divided = CooperativeStickyAssignor().assign(partition_counts, members)
        return divided, {m.member_id: b"to " + m.user_data + b": " + all_told for m in members}

    def subscription_user_data(self) -> bytes:
        return self.told

    def on_assignment(self, user_data: bytes) -> None:
        self.heard.append(user_data)

    def rejoin_reason(self) -> str | None:
        reason, self.reason = self.reason, None
        return reason


def test_members_tell_and_hear(address: str) -> None:
    topic, group = make_topic(address, 2), fresh("told")
    assignors = [Telling(b"a"), Telling(b"b")]
    consumers = [
        Consumer(
            bootstrap_servers=address,
            group_id=group,
            partition_assignment_strategy=[assignor],
            heartbeat_interval_ms=100,
        )
        for assignor in assignors
    ]
    try:
        for consumer in consumers:
            consumer.subscribe([topic])

        def until(heard: Sequence[bytes]) -> None:
            for _ in range(ROUNDS):
                for consumer in consumers:
                    consumer.poll(25)
                latest = [assignor.heard[-1:] for assignor in assignors]
                owned = [len(consumer.assignment()) for consumer in consumers]
                if latest == [[each] for each in heard] and owned == [1, 1]:
                    return
            raise AssertionError(f"{latest} {owned}")

        until([b"to a: a+b", b"to b: a+b"])
        assignors[1].told = b"c"
        assignors[1].reason = "something new to tell"
        until([b"to a: a+c", b"to c: a+c"])
    finally:
        for consumer in consumers:
            consumer.close()
