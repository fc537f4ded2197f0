"""Goal: the client's machine of the consumer protocol (KIP-848) keeps its side of the bargain.

Method: the machine against the bundled broker's coordinator, without sockets and with a clock that
the test moves (`consumer_member_rig`); single answers are made up where the broker would not give
them. The last test is random, with lost requests and answers and restarts of the coordinator.
"""

from __future__ import annotations

import logging
import random
from uuid import UUID

import pytest
from consumer_member_rig import Client
from coordinator_bench import Bench, FakeTopics

from onceflow.sdk.core.group.steps import MemberState, RebalanceKind, Wait
from onceflow.sdk.errors import FencedInstanceIdError, UnsupportedAssignorError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.api.consumer_groups import ConsumerGroupHeartbeatResponse
from onceflow.sdk.protocol.error_codes import ErrorCode

INTERVAL_MS = 5_000


@pytest.fixture
def bench() -> Bench:
    return Bench(topics=FakeTopics(a=4, b=3))


def kinds(client: Client) -> list[str]:
    return [event.kind.value for event in client.told]


def rounds(bench: Bench, *clients: Client, count: int = 4) -> None:
    """Everybody runs, some heartbeat intervals long."""
    for _ in range(count):
        for client in clients:
            client.run()
        bench.pass_ms(INTERVAL_MS)


def refuse(client: Client, code: ErrorCode, message: str = "no") -> None:
    """The next heartbeat gets that answer."""
    client.member.on_response(
        ConsumerGroupHeartbeatResponse(error_code=code, error_message=message),
        client.bench.now_ms,
    )


def test_joins_with_the_first_poll_and_gets_everything(bench: Bench) -> None:
    client = Client(bench, "m1", "a")
    assert client.member.next_step(bench.now_ms) == Wait(None)
    client.run()
    assert client.numbers() == [0, 1, 2, 3]
    assert kinds(client) == ["assigned"]
    assert client.member.metadata() == ("g", 2, "m1", None)


def test_empty_assignment_is_told_too(bench: Bench) -> None:
    client = Client(bench, "m1", "nothing")
    client.run()
    assert kinds(client) == ["assigned"]
    assert client.told[0].partitions == ()


def test_quiet_heartbeats_say_nothing_and_lead_to_no_event(bench: Bench) -> None:
    client = Client(bench, "m1", "a")
    rounds(bench, client)
    last = client.sent[-1]
    assert last.subscribed_topic_names is last.topic_partitions is last.server_assignor is None
    assert last.rebalance_timeout_ms == -1
    assert kinds(client) == ["assigned"]


def test_only_what_has_to_move_is_revoked_and_then_reported(bench: Bench) -> None:
    one, two = Client(bench, "m1", "a"), Client(bench, "m2", "a")
    one.run()
    rounds(bench, two, one)
    assert len(one.numbers()) == len(two.numbers()) == 2
    assert kinds(one) == ["assigned", "revoked"]
    assert len(one.told[1].partitions) == 2


def test_nothing_is_given_up_before_the_application_confirmed(bench: Bench) -> None:
    one, two = Client(bench, "m1", "a"), Client(bench, "m2", "a")
    one.run()
    two.run()
    for _ in range(3):
        bench.pass_ms(INTERVAL_MS)
        while one.drive():  # Heartbeats go on; the application does not poll.
            pass
        two.run()
    assert (one.numbers(), two.numbers()) == ([0, 1, 2, 3], [])
    rounds(bench, one, two)
    assert len(two.numbers()) == 2


def test_partitions_that_were_never_taken_are_given_up_too(bench: Bench) -> None:
    """The coordinator waits to hear of them, although the application has nothing to give up."""
    one = Client(bench, "m1", "a")
    one.poll()
    while one.drive():
        pass
    two = Client(bench, "m2", "a")
    two.run()
    bench.pass_ms(INTERVAL_MS)
    while one.drive():  # A smaller assignment replaces the one that was never carried out.
        pass
    rounds(bench, one, two)
    assert len(one.numbers()) == len(two.numbers()) == 2
    assert kinds(one) == ["assigned"]


def test_lost_is_told_from_revoked_after_a_fence(bench: Bench) -> None:
    client = Client(bench, "m1", "a")
    client.run()
    client.bench.pass_ms(45_000)  # Nobody drives: the session ends.
    while client.drive():
        pass
    assert not client.member.is_member
    client.run()
    assert kinds(client) == ["assigned", "lost", "assigned"]
    assert client.numbers() == [0, 1, 2, 3]


def test_fence_during_a_callback_is_told_after_it(bench: Bench) -> None:
    client = Client(bench, "m1", "a")
    client.poll()
    while client.drive():
        pass
    event = client.member.next_event()
    assert event is not None
    refuse(client, ErrorCode.FENCED_MEMBER_EPOCH)
    client.member.confirm_event(event)
    after = client.member.next_event()
    assert after is not None
    assert after.kind is RebalanceKind.LOST
    assert len(after.partitions) == 4


def test_waiting_for_an_instance_id_is_told_now_and_then(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """KIP-848: a live owner keeps its place, and the newcomer asks every second."""
    caplog.set_level(logging.WARNING, "onceflow.sdk.group")
    owner, newcomer = (Client(bench, name, "a", instance="i") for name in ("s1", "s2"))
    owner.run()
    for _ in range(20):
        owner.run()
        newcomer.run()
        bench.pass_ms(1_000)
    told = [text for text in caplog.messages if "waiting to take over" in text]
    assert len(told) == 5  # after 1, 2, 4, 8 and 16 tries
    assert "'i'; give every running consumer an id of its own" in told[0]
    assert owner.numbers() == [0, 1, 2, 3]


def test_silent_application_is_warned_and_leaves(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "onceflow.sdk.group")
    client = Client(bench, "m1", "a")
    client.run()
    for _ in range(61):
        bench.pass_ms(INTERVAL_MS)
        while client.drive():
            pass
    assert "no poll for" in caplog.text
    assert "has not polled for 300000 ms" in caplog.text
    found = bench.groups.admin.describe_consumer("g")
    assert found is not None
    assert not found.group.members, "it said goodbye"
    client.run()
    assert kinds(client) == ["assigned", "lost", "assigned"]


def test_goodbyes(bench: Bench) -> None:
    dynamic, static = Client(bench, "m1", "a"), Client(bench, "s1", "a", instance="i")
    assert dynamic.member.closing_request() is None
    rounds(bench, dynamic, static)
    for client, leave_group, epoch in (
        (dynamic, None, -1),
        (static, None, -2),
        (static, True, -1),
        (static, False, -2),
    ):
        request = client.member.closing_request(leave_group)
        assert request is not None
        assert request.member_epoch == epoch
    assert dynamic.member.closing_request(False) is None


def test_unsubscribing_leaves_also_while_a_heartbeat_is_on_its_way(bench: Bench) -> None:
    client = Client(bench, "m1", "a")
    client.run()
    epoch = client.member.generation_id
    client.member.forget_owned()
    client.member.subscribe(frozenset())
    late = ConsumerGroupHeartbeatResponse(member_id="m1", member_epoch=epoch)
    client.member.on_response(late, bench.now_ms)
    assert client.member.state is MemberState.LEAVING
    while client.drive():
        pass
    assert client.sent[-1].member_epoch == -1
    assert client.member.state is MemberState.UNJOINED


def test_static_successor_waits_for_the_session_of_the_one_that_died(bench: Bench) -> None:
    dead = Client(bench, "s1", "a", instance="i")
    dead.run()
    heir = Client(bench, "s2", "a", instance="i")
    for _ in range(50):
        heir.run()
        bench.pass_ms(1_000)
    assert heir.numbers() == [0, 1, 2, 3]
    refuse(dead, ErrorCode.FENCED_INSTANCE_ID)
    assert isinstance(dead.member.take_failure(), FencedInstanceIdError)
    assert isinstance(dead.member.take_failure(), FencedInstanceIdError), "there is no way back"


@pytest.mark.parametrize("lost", ["answer", "answer and goodbye", "epoch"])
def test_static_member_is_not_kept_out_by_itself(bench: Bench, lost: str) -> None:
    """The coordinator refuses a name that is held under the very id of who asks, as Apache Kafka
    4.4 does; a goodbye under that id frees it, without waiting for the end of a session.
    """
    other, static = Client(bench, "m1", "b"), Client(bench, "s1", "a", instance="i")
    rounds(bench, other)
    began_ms = bench.now_ms
    if lost == "epoch":
        static.run()
        refuse(static, ErrorCode.FENCED_MEMBER_EPOCH)
    else:
        static.poll()
        assert static.drive()
        assert static.drive(lose_answer=True)
        if lost == "answer and goodbye":
            for answer_is_lost in (False, False, True):
                bench.pass_ms(100)
                static.drive(lose_answer=answer_is_lost)
            assert static.sent[-1].member_epoch == -2
    while bench.now_ms < began_ms + 3_000:
        static.run()
        bench.pass_ms(200)
    assert static.numbers() == [0, 1, 2, 3]
    assert static.member.is_member


def test_goodbye_of_who_waits_does_not_touch_the_owner(bench: Bench) -> None:
    owner, heir = (Client(bench, name, "a", instance="i") for name in ("s1", "s2"))
    owner.run()
    heir.poll()
    heir.drive()
    heir.drive(lose_answer=True)
    for _ in range(60):
        owner.run()
        heir.run()
        bench.pass_ms(1_000)
    assert kinds(owner) == ["assigned"]
    assert [request.member_epoch for request in heir.sent].count(-2) == 1
    assert heir.numbers() == []


def test_answer_that_was_overtaken_is_dropped(bench: Bench) -> None:
    client = Client(bench, "m1", "a")
    client.run()
    epoch = client.member.generation_id
    old = ConsumerGroupHeartbeatResponse(
        member_id="m1",
        member_epoch=epoch - 1,
        assignment=ConsumerGroupHeartbeatResponse.Assignment(topic_partitions=[]),
    )
    client.member.on_response(old, bench.now_ms)
    assert client.member.generation_id == epoch
    assert client.member.next_event() is None


def test_topic_without_a_name_is_asked_for_again(bench: Bench) -> None:
    client = Client(bench, "m1", "a")
    client.run()
    b_id = bench.topics.create("b", 3)
    unknown = UUID(int=5)
    answer = ConsumerGroupHeartbeatResponse(
        member_id="m1",
        member_epoch=client.member.generation_id,
        heartbeat_interval_ms=INTERVAL_MS,
        assignment=ConsumerGroupHeartbeatResponse.Assignment(
            topic_partitions=[
                ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=t, partitions=[0])
                for t in (b_id, unknown)
            ]
        ),
    )
    client.member.on_response(answer, bench.now_ms)
    while client.drive():
        pass
    client.poll()
    assert client.working_on == {TopicPartition("b", 0)}
    client.member.on_topic_names({unknown: "c"}, bench.now_ms)
    client.poll()
    assert client.working_on == {TopicPartition("b", 0), TopicPartition("c", 0)}


def test_refusal_reaches_the_poll_and_is_tried_again(bench: Bench) -> None:
    client = Client(bench, "m1", "a")
    client.poll()
    client.drive()
    refuse(client, ErrorCode.UNSUPPORTED_ASSIGNOR, "Supported assignors: uniform, range.")
    assert isinstance(client.member.take_failure(), UnsupportedAssignorError)
    assert client.member.take_failure() is None
    bench.pass_ms(1_000)
    client.run()
    assert client.numbers() == [0, 1, 2, 3]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_has_two_owners_whatever_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    bench = Bench(topics=FakeTopics(a=5, b=3), seed=seed)
    clients: list[Client] = []
    for number in range(400):
        action = rng.random()
        if action < 0.03 and len(clients) < 5:
            instance = f"i{number}" if rng.random() < 0.3 else None
            topics = rng.choice([("a",), ("a", "b")])
            clients.append(Client(bench, f"m{number}", *topics, instance=instance))
        elif action < 0.04 and clients:
            gone = clients.pop(rng.randrange(len(clients)))
            gone.member.forget_owned()
            gone.member.subscribe(frozenset())
            while gone.drive():
                pass
        elif action < 0.06:
            bench.restart()
        elif action < 0.08:
            bench.topics.create(rng.choice("ab"), rng.randint(3, 8))
        elif action < 0.10 and clients:
            topics = rng.choice([("a",), ("b",), ("a", "b")])
            rng.choice(clients).member.subscribe(frozenset(topics))
        elif action < 0.25:
            bench.pass_ms(rng.choice([100, 1_000, 6_000]))
        elif clients:
            client = rng.choice(clients)
            if rng.random() < 0.5:
                client.poll()
            client.drive(lose_answer=rng.random() < 0.15, lose_request=rng.random() < 0.1)
        held = [p for c in clients if c.member.is_member for p in c.working_on]
        assert len(held) == len(set(held)), f"seed {seed}: a partition has two owners"
    rounds(bench, *clients, count=14)
    for client in clients:
        assert client.member.is_member
    held = [p for c in clients for p in c.working_on]
    if clients:
        wanted = {topic for c in clients for topic in c.member.watched_topics}
        counts = bench.groups.consumers.steps.topics.ids_of(wanted)
        assert len(held) == len(set(held)) == sum(counts.values()), f"seed {seed}"
