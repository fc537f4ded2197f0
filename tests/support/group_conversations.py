"""Conversations about groups with any broker, request by request, as lines that can be compared.

Ids that brokers and clients make up are replaced by names in the order of their appearance; all
else of the answers is kept. What Apache Kafka 4.4 said is in
``tests/vectors/kafka_group_conversations.txt``.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from uuid import UUID

from broker_wire import Wire

from onceflow.sdk.core.group.consumer_protocol import (
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.api.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from onceflow.sdk.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
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
    SyncGroupRequest,
    SyncGroupResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

ASSIGNMENT_PAUSE_S = 1.2
"""Longer than the least time between two divisions (group.consumer.assignment.interval.ms)."""


class Conversation:
    """Talks, and writes down what was said."""

    def __init__(self, wire: Wire, classic: Wire, group: str, topic: str) -> None:
        self.wire = wire
        self.classic = classic
        self.group = group
        self.topic = topic
        self.lines: list[str] = []
        self.topic_id = UUID(int=0)
        self._names: list[tuple[str, str]] = [(group, "GROUP"), (topic, "TOPIC")]

    def call(self, made_up: str | None, name: str) -> None:
        """From now on an id has a name."""
        if made_up and (made_up, name) not in self._names:
            self._names.insert(0, (made_up, name))

    def note(self, *words: object) -> None:
        """Write a line."""
        line = " ".join(str(word) for word in words)
        for made_up, name in self._names:
            line = line.replace(made_up, name)
        self.lines.append(line)

    async def beat(
        self,
        member_id: str,
        epoch: int,
        version: int = 1,
        *,
        group: str | None = None,
        **said: object,
    ) -> ConsumerGroupHeartbeatResponse:
        """ConsumerGroupHeartbeat."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group if group is None else group,
            member_id=member_id,
            member_epoch=epoch,
            **said,  # type: ignore[arg-type]
        )
        answer = await self.wire.ask(request, version, ConsumerGroupHeartbeatResponse)
        given = None
        if answer.assignment is not None:
            given = [sorted(t.partitions) for t in answer.assignment.topic_partitions]
            for topic in answer.assignment.topic_partitions:
                self.topic_id = topic.topic_id
        self.call(answer.member_id, "NEW" if not member_id else answer.member_id or "")
        shown = {k: v for k, v in said.items() if k != "topic_partitions"}
        self.note(
            "heartbeat", member_id or "-", epoch, f"v{version}", shown, "->",
            ErrorCode(answer.error_code).name, answer.error_message, answer.member_epoch, given,
        )  # fmt: skip
        return answer

    def full(self, **changes: object) -> dict[str, object]:
        """Everything that a joining member says."""
        return {
            "rebalance_timeout_ms": 60_000,
            "subscribed_topic_names": [self.topic],
            "topic_partitions": [],
        } | changes

    def owned(self, *partitions: int) -> list[ConsumerGroupHeartbeatRequest.TopicPartitions]:
        """Partitions of the topic."""
        return [
            ConsumerGroupHeartbeatRequest.TopicPartitions(
                topic_id=self.topic_id, partitions=list(partitions)
            )
        ]

    async def join(
        self, member_id: str, version: int = 9, kind: str = "consumer", name: str = "range",
        metadata: bytes | None = None,
    ) -> JoinGroupResponse:  # fmt: skip
        """JoinGroup."""
        data = encode_subscription([self.topic], (), -1) if metadata is None else metadata
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=member_id,
            protocol_type=kind,
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=data)],
        )
        answer = await self.classic.ask(request, version, JoinGroupResponse)
        self.call(answer.member_id, "CLASSIC")
        self.note(
            "join", member_id or "-", f"v{version}", kind, name, "->",
            ErrorCode(answer.error_code).name, answer.generation_id, answer.protocol_type,
            answer.protocol_name, answer.leader or "-", len(answer.members),
        )  # fmt: skip
        return answer

    async def sync(
        self, member_id: str, generation_id: int, name: str = "range",
        given: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """SyncGroup."""
        assignments = []
        if given is not None:
            data = encode_assignment([TopicPartition(self.topic, n) for n in given])
            assignments = [
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=data)
            ]
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=generation_id,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name=name,
            assignments=assignments,
        )
        answer = await self.classic.ask(request, 5, SyncGroupResponse)
        got = [tp.partition for tp in decode_assignment(answer.assignment)]
        self.note(
            "sync", member_id, generation_id, name, "->", ErrorCode(answer.error_code).name, got
        )

    async def classic_beat(self, member_id: str, generation_id: int) -> None:
        """Heartbeat of the classic protocol."""
        request = HeartbeatRequest(
            group_id=self.group, generation_id=generation_id, member_id=member_id
        )
        answer = await self.classic.ask(request, 4, HeartbeatResponse)
        self.note("beat", member_id, generation_id, "->", ErrorCode(answer.error_code).name)

    async def commit(self, member_id: str, epoch: int, partition: int, version: int = 9) -> None:
        """OffsetCommit of one partition."""
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(
            name=self.topic,
            partitions=[
                OffsetCommitRequest.OffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=5, committed_metadata="x"
                )
            ],
        )
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=epoch,
            member_id=member_id,
            topics=[topic],
        )
        answer = await self.wire.ask(request, version, OffsetCommitResponse)
        code = ErrorCode(answer.topics[0].partitions[0].error_code).name
        self.note("commit", member_id or "-", epoch, f"p{partition}", f"v{version}", "->", code)

    async def fetch(self, member_id: str | None, epoch: int) -> None:
        """OffsetFetch of one partition."""
        group = OffsetFetchRequest.OffsetFetchRequestGroup(
            group_id=self.group,
            member_id=member_id,
            member_epoch=epoch,
            topics=[
                OffsetFetchRequest.OffsetFetchRequestTopics(name=self.topic, partition_indexes=[0])
            ],
        )
        answer = await self.wire.ask(OffsetFetchRequest(groups=[group]), 9, OffsetFetchResponse)
        found = [p.committed_offset for t in answer.groups[0].topics for p in t.partitions]
        code = ErrorCode(answer.groups[0].error_code).name
        self.note("fetch", "-" if member_id is None else repr(member_id), epoch, "->", code, found)

    async def describe(self) -> None:
        """Both kinds of descriptions."""
        answer = await self.wire.ask(
            ConsumerGroupDescribeRequest(group_ids=[self.group]), 1, ConsumerGroupDescribeResponse
        )
        group = answer.groups[0]
        self.note(
            "describe ->", ErrorCode(group.error_code).name, group.error_message,
            group.group_state, group.group_epoch, group.assignment_epoch, group.assignor_name,
        )  # fmt: skip
        for member in sorted(group.members, key=lambda member: -member.member_type):
            self.note(
                "  member", member.member_id, member.member_epoch, member.member_type,
                member.subscribed_topic_names, repr(member.subscribed_topic_regex),
                [sorted(t.partitions) for t in member.assignment.topic_partitions],
                [sorted(t.partitions) for t in member.target_assignment.topic_partitions],
            )  # fmt: skip
        for version in (5, 6):
            old = await self.wire.ask(
                DescribeGroupsRequest(groups=[self.group]), version, DescribeGroupsResponse
            )
            shown = old.groups[0]
            self.note(
                f"describe classic v{version} ->", ErrorCode(shown.error_code).name,
                shown.error_message, shown.group_state, shown.protocol_type, len(shown.members),
            )  # fmt: skip

    async def list(self, states: list[str], types: list[str]) -> None:
        """ListGroups, as far as it is about this group."""
        request = ListGroupsRequest(states_filter=states, types_filter=types)
        answer = await self.wire.ask(request, 5, ListGroupsResponse)
        found = [
            (g.protocol_type, g.group_state, g.group_type)
            for g in answer.groups
            if g.group_id == self.group
        ]
        self.note("list", states, types, "->", ErrorCode(answer.error_code).name, found)

    async def delete(self, group: str | None = None) -> None:
        """DeleteGroups."""
        wanted = self.group if group is None else group
        answer = await self.wire.ask(
            DeleteGroupsRequest(groups_names=[wanted]), 2, DeleteGroupsResponse
        )
        self.note("delete", wanted or "-", "->", ErrorCode(answer.results[0].error_code).name)

    async def delete_offsets(self, group: str | None = None, topic: str | None = None) -> None:
        """OffsetDelete of one partition."""
        part = OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0)
        request = OffsetDeleteRequest(
            group_id=self.group if group is None else group,
            topics=[
                OffsetDeleteRequest.OffsetDeleteRequestTopic(
                    name=topic or self.topic, partitions=[part]
                )
            ],
        )
        answer = await self.wire.ask(request, 0, OffsetDeleteResponse)
        codes = [ErrorCode(p.error_code).name for t in answer.topics for p in t.partitions]
        self.note("delete offsets", request.group_id or "-", "->",
                  ErrorCode(answer.error_code).name, codes)  # fmt: skip

    async def leave(self, *member_ids: str) -> None:
        """LeaveGroup."""
        members = [LeaveGroupRequest.MemberIdentity(member_id=m) for m in member_ids]
        answer = await self.classic.ask(
            LeaveGroupRequest(group_id=self.group, members=members), 5, LeaveGroupResponse
        )
        codes = [ErrorCode(member.error_code).name for member in answer.members]
        self.note("leave", *member_ids, "->", ErrorCode(answer.error_code).name, codes)


async def refusals(talk: Conversation) -> None:
    """What no member can mean, and epochs that are not its own."""
    full = talk.full()
    for changes in (
        {"rebalance_timeout_ms": -1}, {"subscribed_topic_names": None}, {"topic_partitions": None},
        {"instance_id": ""}, {"rack_id": ""}, {"server_assignor": "no"},
        {"subscribed_topic_names": None, "subscribed_topic_regex": "("},
        {"subscribed_topic_names": None, "subscribed_topic_regex": "a**"},
        {"subscribed_topic_names": None, "subscribed_topic_regex": "(?=a)"},
    ):  # fmt: skip
        await talk.beat("M", 0, **(full | changes))
    await talk.beat("M", 0, group="", **full)
    await talk.beat("", 0, **full)
    await talk.beat("M", -3, **full)
    await talk.beat("M", -2, **full)
    await talk.beat("M", 5)
    await talk.beat("M", -1)
    await talk.beat("M", 0, **talk.full(subscribed_topic_names=[]))
    answer = await talk.beat("M", 0, **full)
    for epoch in (answer.member_epoch, answer.member_epoch + 5, answer.member_epoch - 1):
        await talk.beat("M", epoch)
    await talk.beat("other", 2)
    await talk.describe()
    await talk.delete()
    await talk.delete("")
    await talk.delete_offsets("")
    await talk.delete_offsets("nobody")
    await talk.beat("M", -1)
    await talk.describe()
    await talk.delete()


async def static_members(talk: Conversation) -> None:
    """Names that are taken, goodbyes for a while, and successors."""
    full = talk.full(instance_id="i")
    answer = await talk.beat("S1", 0, **full)
    epoch = answer.member_epoch
    await talk.beat("S2", 0, **full)
    await talk.beat("S2", epoch, instance_id="i")
    await talk.beat("S1", epoch, instance_id="x")
    await talk.beat("S2", -2, instance_id="i")
    await talk.beat("S1", -2, instance_id="i")
    await talk.beat("S1", epoch, instance_id="i")
    await talk.beat("S2", 0, **full)
    await talk.beat("S1", -1, instance_id="i")
    await talk.describe()
    await talk.beat("S2", -1, instance_id="i")
    await talk.describe()
    await talk.delete()


async def both_protocols(talk: Conversation) -> None:
    """A classic member in a consumer group, commits of both, and the way there and back."""
    answer = await talk.beat("M", 0, **talk.full())
    joined = await talk.join("")
    classic = joined.member_id
    joined = await talk.join(classic)
    await talk.sync(classic, joined.generation_id)
    await talk.classic_beat(classic, joined.generation_id + 3)
    await asyncio.sleep(ASSIGNMENT_PAUSE_S)
    answer = await talk.beat("M", answer.member_epoch)
    await talk.beat("M", answer.member_epoch)
    await talk.classic_beat(classic, joined.generation_id)
    answer = await talk.beat("M", answer.member_epoch, topic_partitions=talk.owned(0, 1))
    joined = await talk.join(classic)
    await talk.sync(classic, joined.generation_id)
    await talk.sync(classic, joined.generation_id, "roundrobin")
    await talk.classic_beat(classic, joined.generation_id)
    await talk.describe()
    epoch = answer.member_epoch
    for member_epoch in (epoch, epoch - 1, epoch - 2, epoch + 1, -1, 0):
        for partition in (0, 2):
            await talk.commit("M", member_epoch, partition)
    await talk.commit("M", epoch, 0, version=8)
    await talk.commit(classic, joined.generation_id, 2, version=8)
    await talk.commit(classic, joined.generation_id - 1, 2, version=8)
    await talk.commit("", -1, 0)
    await talk.commit("who", 5, 0)
    for member_id, member_epoch in ((None, -1), ("M", epoch), ("M", epoch - 1), ("who", 1),
                                    ("", -1), (classic, epoch), (classic, epoch - 1)):  # fmt: skip
        await talk.fetch(member_id, member_epoch)
    for states, types in (([], []), (["stable"], ["Consumer"]), ([], ["classic"]), (["no"], [])):
        await talk.list(states, types)
    await talk.delete_offsets()
    await talk.delete()
    for kind, name, data in (("connect", "range", None), ("consumer", "no", None),
                             ("consumer", "range", b"\0")):  # fmt: skip
        await talk.join("", 3, kind, name, data)
    await talk.beat("M", -1)
    await talk.classic_beat(classic, joined.generation_id)
    await talk.describe()
    joined = await talk.join(classic)
    await talk.sync(classic, joined.generation_id, given=[0, 1, 2])
    answer = await talk.beat("N", 0, **talk.full())
    await talk.classic_beat(classic, joined.generation_id)
    await talk.leave(classic, "N", "who")
    await talk.beat("N", answer.member_epoch)
    await talk.describe()
    await talk.delete_offsets()
    await talk.delete()


CONVERSATIONS = (refusals, static_members, both_protocols)


def group_names() -> list[str]:
    """A fresh group id for each of the conversations."""
    return [f"talk-{uuid.uuid4().hex[:8]}" for _ in CONVERSATIONS]


async def transcript(address: tuple[str, int], topic: str, groups: Sequence[str]) -> list[str]:
    """All conversations, each with its group, with a broker that has the topic, of 3 partitions."""
    lines: list[str] = []
    for conversation, group in zip(CONVERSATIONS, groups, strict=True):
        async with Wire(address) as wire, Wire(address) as classic:
            talk = Conversation(wire, classic, group, topic)
            await conversation(talk)
        lines += [f"# {conversation.__name__}", *talk.lines]
    return lines
