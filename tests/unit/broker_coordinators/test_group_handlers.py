"""Handlers of groups and their offsets, in every version: shapes, names, ids and error codes.

Method: requests go through their bytes to a broker without sockets, answers come back the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest
from broker_state import SocketlessBroker

from onceflow.broker_lite.purgatory import Deferred
from onceflow.sdk.protocol.api.admin import CreateTopicsRequest, DeleteTopicsRequest
from onceflow.sdk.protocol.api.cluster import NOT_REQUESTED
from onceflow.sdk.protocol.api.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from onceflow.sdk.protocol.api.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.protocol.schema import Request, Response

ResponseT = TypeVar("ResponseT", bound=Response)


@pytest.fixture
def broker() -> Iterator[SocketlessBroker]:
    broker = SocketlessBroker()
    topic = CreateTopicsRequest.CreatableTopic(
        name="in", num_partitions=2, replication_factor=1, assignments=[], configs=[]
    )
    broker.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1000), 7)
    yield broker
    broker.close()


def ask(
    broker: SocketlessBroker, request: Request, version: int, response_type: type[ResponseT]
) -> ResponseT:
    response = broker.ask(request, version)
    assert isinstance(response, response_type)
    return response


def join_request(member_id: str = "", instance: str | None = None) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type="consumer",
        protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"sub")],
    )


def join(broker: SocketlessBroker, version: int) -> JoinGroupResponse:
    """Join as a client of that version does."""
    response = ask(broker, join_request(), version, JoinGroupResponse)
    if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        response = ask(broker, join_request(response.member_id), version, JoinGroupResponse)
    return response


def sync_request(joined: JoinGroupResponse) -> SyncGroupRequest:
    return SyncGroupRequest(
        protocol_type="consumer",
        protocol_name="range",
        group_id="g",
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[
            SyncGroupRequest.SyncGroupRequestAssignment(
                member_id=joined.member_id, assignment=b"mine"
            )
        ],
    )


def stable(broker: SocketlessBroker) -> JoinGroupResponse:
    joined = join(broker, 9)
    ask(broker, sync_request(joined), 5, SyncGroupResponse)
    return joined


class TestMembership:
    @pytest.mark.parametrize("version", range(10))
    def test_join_in_every_version(self, broker: SocketlessBroker, version: int) -> None:
        response = join(broker, version)
        assert (response.error_code, response.generation_id) == (0, 1)
        assert response.leader == response.member_id
        assert [member.metadata for member in response.members] == [b"sub"]
        assert response.protocol_name == "range"
        assert response.protocol_type == ("consumer" if version >= 7 else None)

    @pytest.mark.parametrize(("version", "name"), [(0, ""), (6, ""), (7, None), (9, None)])
    def test_failed_join_has_no_protocol(
        self, broker: SocketlessBroker, version: int, name: str | None
    ) -> None:
        response = ask(broker, join_request("who"), version, JoinGroupResponse)
        assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID
        assert (response.protocol_name, response.generation_id) == (name, -1)

    @pytest.mark.parametrize("version", range(6))
    def test_sync_in_every_version(self, broker: SocketlessBroker, version: int) -> None:
        response = ask(broker, sync_request(join(broker, 5)), version, SyncGroupResponse)
        assert (response.error_code, response.assignment) == (0, b"mine")
        assert response.protocol_name == ("range" if version >= 5 else None)

    def test_sync_5_must_name_the_protocol_trap_54(self, broker: SocketlessBroker) -> None:
        request = sync_request(join(broker, 9))
        request.protocol_name = None
        code = ask(broker, request, 5, SyncGroupResponse).error_code
        assert code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    @pytest.mark.parametrize("version", range(5))
    def test_heartbeat_in_every_version(self, broker: SocketlessBroker, version: int) -> None:
        joined = stable(broker)
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=joined.member_id)
        assert ask(broker, beat, version, HeartbeatResponse).error_code == 0
        beat.generation_id = 9
        code = ask(broker, beat, version, HeartbeatResponse).error_code
        assert code == ErrorCode.ILLEGAL_GENERATION

    @pytest.mark.parametrize("version", range(3))
    def test_leave_of_one(self, broker: SocketlessBroker, version: int) -> None:
        joined = stable(broker)
        leave = LeaveGroupRequest(group_id="g", member_id=joined.member_id)
        assert ask(broker, leave, version, LeaveGroupResponse).error_code == 0
        code = ask(broker, leave, version, LeaveGroupResponse).error_code
        assert code == ErrorCode.UNKNOWN_MEMBER_ID

    @pytest.mark.parametrize("version", range(3, 6))
    def test_leave_of_several(self, broker: SocketlessBroker, version: int) -> None:
        joined = stable(broker)
        identity = LeaveGroupRequest.MemberIdentity
        leave = LeaveGroupRequest(
            group_id="g",
            members=[identity(member_id="who"), identity(member_id=joined.member_id)],
        )
        response = ask(broker, leave, version, LeaveGroupResponse)
        assert response.error_code == 0
        codes = [member.error_code for member in response.members]
        assert codes == [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]

    def test_parked_join_is_dropped_with_its_connection_trap_71(
        self, broker: SocketlessBroker
    ) -> None:
        stable(broker)
        parked = broker.dispatch(join_request(), 3).result
        assert isinstance(parked, Deferred)
        parked.disconnect()
        broker.advance(1)
        described = ask(broker, DescribeGroupsRequest(groups=["g"]), 6, DescribeGroupsResponse)
        assert len(described.groups[0].members) == 1


class TestAdministration:
    @pytest.mark.parametrize("version", range(7))
    def test_describe_in_every_version(self, broker: SocketlessBroker, version: int) -> None:
        stable(broker)
        request = DescribeGroupsRequest(groups=["g", "none"])
        found, missing = ask(broker, request, version, DescribeGroupsResponse).groups
        assert (found.group_state, found.protocol_type) == ("Stable", "consumer")
        assert found.members[0].member_assignment == b"mine"
        assert missing.group_state == "Dead"
        told = version >= 6
        assert missing.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if told else ErrorCode.NONE)
        assert (missing.error_message is not None) is told

    @pytest.mark.parametrize(
        ("version", "asked", "bits"),
        [
            (5, True, (3_400, 3_400)),
            (6, True, (3_400, NOT_REQUESTED)),
            (5, False, (NOT_REQUESTED, NOT_REQUESTED)),
        ],
    )
    def test_operations_are_told_when_asked_for(
        self, broker: SocketlessBroker, version: int, asked: bool, bits: tuple[int, int]
    ) -> None:
        """Asked of Apache Kafka 4.4 without an authorizer."""
        stable(broker)
        request = DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=asked)
        groups = ask(broker, request, version, DescribeGroupsResponse).groups
        assert tuple(group.authorized_operations for group in groups) == bits

    def test_consumer_group_shows_what_a_member_has_not_given_back(
        self, broker: SocketlessBroker
    ) -> None:
        """Asked of Apache Kafka 4.4: the assignment holds it until then (differential run)."""

        def beat(member_id: str, epoch: int, **said: object) -> None:
            request = ConsumerGroupHeartbeatRequest(
                group_id="new",
                member_id=member_id,
                member_epoch=epoch,
                **said,  # type: ignore[arg-type]
            )
            answer = ask(broker, request, 1, ConsumerGroupHeartbeatResponse)
            assert answer.error_code == 0, answer

        def described(asked: bool) -> ConsumerGroupDescribeResponse.DescribedGroup:
            request = ConsumerGroupDescribeRequest(
                group_ids=["new"], include_authorized_operations=asked
            )
            return ask(broker, request, 1, ConsumerGroupDescribeResponse).groups[0]

        joins: dict[str, object] = {
            "rebalance_timeout_ms": 60_000, "topic_partitions": [], "subscribed_topic_names": ["in"]
        }  # fmt: skip
        beat("m1", 0, **joins)
        beat("m2", 0, **joins)
        beat("m1", 2)
        group = described(asked=True)
        held = {
            member.member_id: [
                [p for t in part.topic_partitions for p in t.partitions]
                for part in (member.assignment, member.target_assignment)
            ]
            for member in group.members
        }
        assert held == {"m1": [[0, 1], [0]], "m2": [[], [1]]}
        assert group.group_state == "Reconciling"
        assert (group.authorized_operations, described(asked=False).authorized_operations) == (
            3_400,
            NOT_REQUESTED,
        )

    @pytest.mark.parametrize("version", range(6))
    def test_list_in_every_version(self, broker: SocketlessBroker, version: int) -> None:
        stable(broker)
        request = ListGroupsRequest()
        if version >= 4:
            request.states_filter = ["Stable"]
        (group,) = ask(broker, request, version, ListGroupsResponse).groups
        assert (group.group_id, group.protocol_type) == ("g", "consumer")
        assert group.group_state == ("Stable" if version >= 4 else "")
        assert group.group_type == ("classic" if version >= 5 else "")

    @pytest.mark.parametrize("version", range(3))
    def test_delete_in_every_version(self, broker: SocketlessBroker, version: int) -> None:
        stable(broker)
        request = DeleteGroupsRequest(groups_names=["g", "none"])
        results = ask(broker, request, version, DeleteGroupsResponse).results
        codes = [result.error_code for result in results]
        assert codes == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]


def commit_request(offset: int = 5, *, name: str = "in", index: int = 0) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id="g",
        member_id="",
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=name,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata="m"
                    )
                ],
            )
        ],
    )


def commit(broker: SocketlessBroker, request: OffsetCommitRequest, version: int) -> int:
    response = ask(broker, request, version, OffsetCommitResponse)
    return response.topics[0].partitions[0].error_code


def fetch_groups(broker: SocketlessBroker, version: int, *, name: str = "in") -> int:
    """The committed offset of partition 0, asked with version 8 or later."""
    topics = OffsetFetchRequest.OffsetFetchRequestTopics
    topic = broker.state.topics.get(name)
    wanted = (
        topics(topic_id=topic.topic_id if topic else ZERO_UUID, partition_indexes=[0])
        if version >= 10
        else topics(name=name, partition_indexes=[0])
    )
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=[wanted]),
            OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None),
        ]
    )
    one, everything = ask(broker, request, version, OffsetFetchResponse).groups
    partition = one.topics[0].partitions[0]
    if partition.committed_offset >= 0:
        assert partition.metadata == "m"
        assert [p.committed_offset for p in everything.topics[0].partitions] == [
            partition.committed_offset
        ]
    return partition.error_code or partition.committed_offset


class TestOffsets:
    @pytest.mark.parametrize("version", range(2, 10))
    def test_commit_by_name(self, broker: SocketlessBroker, version: int) -> None:
        assert commit(broker, commit_request(), version) == 0
        assert fetch_groups(broker, 8) == 5

    def test_commit_by_id(self, broker: SocketlessBroker) -> None:
        request = commit_request(7)
        topic = broker.state.topics.get("in")
        assert topic is not None
        request.topics[0].name = ""
        request.topics[0].topic_id = topic.topic_id
        assert commit(broker, request, 10) == 0
        assert fetch_groups(broker, 10) == 7
        request.topics[0].topic_id = ZERO_UUID
        assert commit(broker, request, 10) == ErrorCode.UNKNOWN_TOPIC_ID

    @pytest.mark.parametrize(("name", "index"), [("none", 0), ("in", 2), ("in", -1)])
    def test_commit_to_what_is_not_there(
        self, broker: SocketlessBroker, name: str, index: int
    ) -> None:
        code = commit(broker, commit_request(name=name, index=index), 9)
        assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    @pytest.mark.parametrize("version", range(1, 8))
    def test_fetch_of_one_group(self, broker: SocketlessBroker, version: int) -> None:
        commit(broker, commit_request(), 9)
        topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="in", partition_indexes=[0, 1])
        request = OffsetFetchRequest(group_id="g", topics=[topic])
        response = ask(broker, request, version, OffsetFetchResponse)
        offsets = {
            each.partition_index: (each.committed_offset, each.metadata)
            for each in response.topics[0].partitions
        }
        assert offsets == {0: (5, "m"), 1: (-1, "")}
        if version >= 2:
            request.topics = None
            response = ask(broker, request, version, OffsetFetchResponse)
            assert [each.partition_index for each in response.topics[0].partitions] == [0]

    @pytest.mark.parametrize("version", range(8, 11))
    def test_fetch_of_several_groups(self, broker: SocketlessBroker, version: int) -> None:
        commit(broker, commit_request(), 9)
        assert fetch_groups(broker, version) == 5

    def test_fetch_by_unknown_id(self, broker: SocketlessBroker) -> None:
        assert fetch_groups(broker, 10, name="none") == ErrorCode.UNKNOWN_TOPIC_ID

    def test_offsets_go_with_their_topic(self, broker: SocketlessBroker) -> None:
        commit(broker, commit_request(), 9)
        broker.ask(DeleteTopicsRequest(topic_names=["in"], timeout_ms=1000), 5)
        broker.advance(1)
        assert fetch_groups(broker, 8) == -1

    @pytest.mark.parametrize(
        ("version", "code"),
        [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)],
    )
    def test_generation_of_a_group_that_is_not_there(
        self, broker: SocketlessBroker, version: int, code: ErrorCode
    ) -> None:
        request = commit_request()
        request.generation_id_or_member_epoch = 3
        assert commit(broker, request, version) == code

    def test_reserved_group_id_of_the_early_consumers(self, broker: SocketlessBroker) -> None:
        request = commit_request()
        request.group_id = ""
        assert commit(broker, request, 9) == 0
