"""Goal: what a broker is too old for is not sent, and the error says what it is and since when.

Method: requests whose contents need a later version than the one that is spoken, on a connection
without a socket; negotiation with brokers that offer too little.
"""

from __future__ import annotations

import pytest

from onceflow.sdk.core.connection.connection import Connection
from onceflow.sdk.core.connection.handshake import BrokerVersions
from onceflow.sdk.core.group.steps import leaving_in
from onceflow.sdk.errors import UnsupportedVersionError
from onceflow.sdk.protocol.api.admin import CreateTopicsRequest
from onceflow.sdk.protocol.api.admin_cluster import DescribeQuorumRequest
from onceflow.sdk.protocol.api.admin_configs import ListConfigResourcesRequest
from onceflow.sdk.protocol.api.consumer_groups import ConsumerGroupHeartbeatRequest
from onceflow.sdk.protocol.api.groups import (
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
)
from onceflow.sdk.protocol.api.offsets import ListOffsetsRequest
from onceflow.sdk.protocol.api.security_admin import DescribeUserScramCredentialsRequest
from onceflow.sdk.protocol.api.transactions import TxnOffsetCommitRequest
from onceflow.sdk.protocol.schema import Request


def list_offsets(timestamp: int) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name="t",
                partitions=[
                    ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
                ],
            )
        ],
    )


def create_topics(partitions: int, replicas: int) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=partitions, replication_factor=replicas
    )
    return CreateTopicsRequest(topics=[topic])


def txn_offsets(member_id: str) -> TxnOffsetCommitRequest:
    return TxnOffsetCommitRequest(
        transactional_id="t", group_id="g", producer_id=1, producer_epoch=0, topics=[],
        member_id=member_id, generation_id=3 if member_id else -1,
    )  # fmt: skip


def send(request: Request, version: int) -> None:
    Connection("c", 1 << 20, 0).send(request, version, 0, 1_000)


@pytest.mark.parametrize(
    ("request_", "version", "needed", "release", "what"),
    [
        (list_offsets(-3), 6, 7, "3.0", "largest timestamp"),
        (create_topics(-1, 1), 3, 4, "2.4", "default number"),
        (create_topics(1, -1), 3, 4, "2.4", "default number"),
        (ListConfigResourcesRequest(), 0, 1, "4.1", "what has settings"),
        (ListConfigResourcesRequest(resource_types=[2]), 0, 1, "4.1", "what has settings"),
        (ListGroupsRequest(states_filter=["Empty"]), 3, 4, "2.6", "by their state"),
        (ListGroupsRequest(types_filter=["classic"]), 4, 5, "3.8", "by their type"),
        (txn_offsets("member"), 2, 3, "2.5", "membership of a consumer"),
        (
            JoinGroupRequest(
                group_id="g", session_timeout_ms=1, member_id="", protocol_type="consumer",
                group_instance_id="a", protocols=[],
            ),
            4, 5, "2.3", "group_instance_id",
        ),
    ],
)  # fmt: skip
def test_contents_that_need_a_later_version_are_refused_by_name(
    request_: Request, version: int, needed: int, release: str, what: str
) -> None:
    with pytest.raises(UnsupportedVersionError) as caught:
        send(request_, version)
    text = str(caught.value)
    assert what in text
    name = type(request_).__name__.removesuffix("Request")
    assert f"{name} in version {needed}, which Apache Kafka serves from {release} on" in text
    send(request_, needed)


@pytest.mark.parametrize(
    ("request_", "version"),
    [(list_offsets(-1), 1), (create_topics(1, 1), 2), (txn_offsets(""), 0)],
)
def test_contents_that_an_older_version_has_are_sent(request_: Request, version: int) -> None:
    send(request_, version)


@pytest.mark.parametrize(
    ("request_type", "release"),
    [
        (DescribeQuorumRequest, "3.3"),
        (ConsumerGroupHeartbeatRequest, "4.0"),  # Announced from 3.7 on, and refused.
        (DescribeUserScramCredentialsRequest, "3.5"),  # With ZooKeeper from 2.7 on.
    ],
)
def test_a_request_that_is_not_offered_is_told_with_its_release(
    request_type: type[Request], release: str
) -> None:
    with pytest.raises(UnsupportedVersionError, match=f"serves from {release} on; the broker"):
        BrokerVersions(ranges={}).require(request_type)


def test_a_broker_that_is_too_new_is_not_told_to_be_too_old() -> None:
    with pytest.raises(UnsupportedVersionError, match="the broker offers versions 90-99") as caught:
        BrokerVersions(ranges={16: (90, 99)}).require(ListGroupsRequest)
    assert "serves from" not in str(caught.value)


def test_a_member_leaves_in_the_form_that_the_version_has() -> None:
    """Before version 3 the list of members is not there, and nobody left who used it."""
    member = LeaveGroupRequest.MemberIdentity(member_id="m", reason="closed")
    request = LeaveGroupRequest(group_id="g", members=[member])
    for version in range(6):
        spoken = leaving_in(request, version)
        pieces: list[bytes] = []
        spoken.encode_into(pieces.append, version)  # type: ignore[arg-type]
        read, _ = LeaveGroupRequest.decode(b"".join(pieces), version)
        who = [read.member_id] if version < 3 else [each.member_id for each in read.members]
        assert who == ["m"]
