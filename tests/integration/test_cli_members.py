"""Goal: members are removed from groups of both protocols, by command and by admin client.

Method: consumers that close without leaving stay members until their sessions time out. They are
removed on our broker and, with `make conformance`, on Apache Kafka. On our broker an answer is
lost.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from command_line import CommandLine
from consumer_worlds import fresh

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import Fault
from onceflow.sdk import Admin, Consumer
from onceflow.sdk.errors import ConfigError, UnknownMemberIdError
from onceflow.sdk.protocol.api.groups import LeaveGroupRequest


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(
    params=["broker", pytest.param("apache_kafka", marks=pytest.mark.kafka)], ids=["ours", "kafka"]
)
def onceflow(request: pytest.FixtureRequest) -> CommandLine:
    return CommandLine(request.getfixturevalue(request.param).bootstrap_servers)


@pytest.fixture
def ours(broker: Broker) -> CommandLine:
    return CommandLine(broker.bootstrap_servers)


def stay(bootstrap: str, group: str, instance: str | None = None, protocol: str = "classic") -> str:
    """Leave a member behind that does not run any more; returns its member id."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        known = {each.member_id for each in admin.describe_groups([group])[group].members}
        topic = fresh("topic")
        admin.create_topics([topic])
        consumer = Consumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            group_instance_id=instance,
            group_protocol=protocol,
        )
        while not consumer.assignment():
            consumer.poll(timeout_ms=100)
        members = admin.describe_groups([group])[group].members
        consumer.close(leave_group=False)
    (member,) = [each for each in members if each.member_id not in known]
    return member.member_id


def test_a_member_that_stopped_is_removed(onceflow: CommandLine) -> None:
    group = fresh("group")
    member = stay(onceflow.bootstrap, group)
    command = ("groups", "remove-member", group)
    assert "--yes" in onceflow.error(*command, member, status=6)
    removed = onceflow.json(*command, member, "--reason", "its disk is full", "--yes")
    assert removed == [{"group": group, "member": member, "result": "removed"}]
    with Admin(bootstrap_servers=onceflow.bootstrap) as admin:
        assert admin.describe_groups([group])[group].members == ()
    assert "has no such member" in onceflow.error(*command, member, "--yes", status=3)


def test_static_members_are_removed_by_their_instance_id(onceflow: CommandLine) -> None:
    group = fresh("group")
    stay(onceflow.bootstrap, group, "one")
    command = ("groups", "remove-member", group)
    assert onceflow.json(*command, "--instance", "one", "--yes")[0]["member"] == "one"
    told = onceflow.error(*command, "--instance", "one", "--yes", status=3)
    assert "'one'" in told
    assert f"groups describe {group}" in told


def test_all_members_are_removed(onceflow: CommandLine) -> None:
    group = fresh("group")
    stay(onceflow.bootstrap, group, "one")
    removed = onceflow.json("groups", "remove-member", group, "--all", "--yes")
    assert [each["member"] for each in removed] == ["one"]
    assert onceflow.json("groups", "remove-member", group, "--all", "--yes") == []


@pytest.mark.parametrize("instance", [None, "one"])
def test_members_of_the_consumer_protocol(onceflow: CommandLine, instance: str | None) -> None:
    group = fresh("group")
    member = stay(onceflow.bootstrap, group, instance, "consumer")
    with Admin(bootstrap_servers=onceflow.bootstrap) as admin:
        if instance is None:
            gone = admin.remove_members_from_consumer_group(group, [member])
        else:
            gone = admin.remove_members_from_consumer_group(group, instance_ids=[instance])
        assert gone == [instance or member]
        assert admin.describe_groups([group])[group].members == ()


def test_the_others_are_removed_beside_an_unknown_member(broker: Broker) -> None:
    group = fresh("group")
    member = stay(broker.bootstrap_servers, group)
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        with pytest.raises(UnknownMemberIdError, match="nobody"):
            admin.remove_members_from_consumer_group(group, ["nobody", member])
        assert admin.describe_groups([group])[group].members == ()
        assert admin.remove_members_from_consumer_group(group, []) == []
        for wrong in ([""], [b"x"], 7):
            with pytest.raises(ConfigError, match="members"):
                admin.remove_members_from_consumer_group(group, wrong)  # type: ignore[arg-type]


def test_a_lost_answer_is_no_unknown_member(broker: Broker) -> None:
    group = fresh("group")
    member = stay(broker.bootstrap_servers, group)
    rule = broker.faults.add(LeaveGroupRequest, Fault.DROP_ANSWER)
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        assert admin.remove_members_from_consumer_group(group, [member]) == [member]
        assert rule.hits == 1
        assert admin.describe_groups([group])[group].members == ()


@pytest.mark.parametrize("words", [(), ("member", "--all"), ("--instance", "one", "--all")])
def test_members_are_named_or_all(ours: CommandLine, words: tuple[str, ...]) -> None:
    assert "--all" in ours.error("groups", "remove-member", "g", *words, "--yes", status=2)
