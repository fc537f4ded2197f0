"""Goal: several nodes over one log answer as a cluster does: each for what it leads and what it
coordinates, with the truth about the others, also after leaders were moved and nodes stopped.

Method: raw requests to each node of a broker in process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from broker_requests import fetch_request, produce_request
from broker_wire import Wire, batch, until, values_of

from onceflow.broker_lite import Broker, VirtualClock
from onceflow.broker_lite.placement import PlacementError
from onceflow.sdk.protocol.api.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from onceflow.sdk.protocol.api.admin_cluster import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from onceflow.sdk.protocol.api.admin_replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
)
from onceflow.sdk.protocol.api.cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from onceflow.sdk.protocol.api.fetch import FetchResponse
from onceflow.sdk.protocol.api.group_offsets import OffsetFetchRequest, OffsetFetchResponse
from onceflow.sdk.protocol.api.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from onceflow.sdk.protocol.api.offsets import ListOffsetsRequest, ListOffsetsResponse
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.api.transactions import InitProducerIdRequest, InitProducerIdResponse
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.schema import Request, Response

NODES = (1, 2, 3)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def broker(clock: VirtualClock) -> AsyncIterator[Broker]:
    async with Broker(nodes=3, clock=clock, journal=True, racks=("a", "b", "c")) as running:
        running.create_topic("t", partitions=6)
        yield running


def address(broker: Broker, node_id: int) -> tuple[str, int]:
    host, _, port = broker.bootstrap_servers.split(",")[node_id - 1].rpartition(":")
    return host, int(port)


async def ask(broker: Broker, node_id: int, request: Request, api_version: int) -> Response:
    async with Wire(address(broker, node_id)) as wire:
        wire.send(request, api_version)
        return await wire.receive()


async def metadata(broker: Broker, node_id: int, topic: str = "t") -> MetadataResponse:
    wish = MetadataRequest.MetadataRequestTopic(name=topic)
    answer = await ask(broker, node_id, MetadataRequest(topics=[wish]), 12)
    assert isinstance(answer, MetadataResponse)
    return answer


def produce_to(*partitions: int, topic: str = "t", acks: int = -1) -> ProduceRequest:
    request = produce_request(topic, batch(b"a"))
    request.acks = acks
    request.topic_data[0].partition_data = [
        ProduceRequest.PartitionProduceData(index=index, records=batch(b"p%d" % index))
        for index in partitions
    ]
    return request


class TestLeaders:
    async def test_every_node_tells_the_same_and_leaders_are_spread(self, broker: Broker) -> None:
        told = [await metadata(broker, node_id) for node_id in NODES]
        for answer in told:
            assert [(b.node_id, b.port, b.rack) for b in answer.brokers] == [
                (node_id, address(broker, node_id)[1], rack)
                for node_id, rack in zip(NODES, "abc", strict=True)
            ]
            assert answer.topics == told[0].topics
        partitions = told[0].topics[0].partitions
        assert sorted(p.leader_id for p in partitions) == [1, 1, 2, 2, 3, 3]
        for partition in partitions:
            assert partition.replica_nodes[0] == partition.leader_id
            assert sorted(partition.isr_nodes) == [1, 2, 3]

    async def test_a_node_takes_only_what_it_leads_and_tells_who_leads_the_rest(
        self, broker: Broker
    ) -> None:
        answer = await ask(broker, 2, produce_to(*range(6)), 12)
        assert isinstance(answer, ProduceResponse)
        for data in answer.responses[0].partition_responses:
            leader = broker.leader("t", data.index)
            if leader == 2:
                assert data.error_code == 0
                continue
            assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert data.current_leader is not None
            assert data.current_leader.leader_id == leader
        assert [(n.node_id, n.port) for n in answer.node_endpoints] == [
            (node_id, address(broker, node_id)[1]) for node_id in (1, 3)
        ]
        topic = broker.state.topics.get("t")
        assert topic is not None
        ends = [log.log_end_offset for log in topic.partitions]
        assert ends == [1 if broker.leader("t", index) == 2 else 0 for index in range(6)]

    async def test_old_versions_are_refused_without_the_address(self, broker: Broker) -> None:
        wrong = next(index for index in range(6) if broker.leader("t", index) != 2)
        answer = await ask(broker, 2, produce_to(wrong), 9)
        assert isinstance(answer, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 6

    async def test_acks_0_to_the_wrong_node_closes_the_connection(self, broker: Broker) -> None:
        async with Wire(address(broker, 1)) as wire:
            wire.send(produce_to(*range(6), acks=0), 9)
            assert await wire.closed()

    async def test_fetch_and_list_offsets_go_to_the_leader(self, broker: Broker) -> None:
        leader = broker.leader("t", 0)
        other = next(node_id for node_id in NODES if node_id != leader)
        topic = broker.state.topics.get("t")
        assert topic is not None
        for node_id, code in ((leader, 0), (other, 6)):
            answer = await ask(broker, node_id, fetch_request(topic.topic_id, 0), 16)
            assert isinstance(answer, FetchResponse)
            data = answer.responses[0].partitions[0]
            assert data.error_code == code
            told = data.current_leader.leader_id if data.current_leader else None
            assert told == (None if not code else leader)
            assert [n.node_id for n in answer.node_endpoints] == ([leader] if code else [])
            listed = await ask(
                broker,
                node_id,
                ListOffsetsRequest(
                    topics=[
                        ListOffsetsRequest.ListOffsetsTopic(
                            name="t",
                            partitions=[
                                ListOffsetsRequest.ListOffsetsPartition(
                                    partition_index=0, timestamp=-1
                                )
                            ],
                        )
                    ]
                ),
                5,
            )
            assert isinstance(listed, ListOffsetsResponse)
            assert listed.topics[0].partitions[0].error_code == code

    async def test_a_moved_leader_begins_an_epoch_and_the_old_one_is_fenced(
        self, broker: Broker
    ) -> None:
        await ask(broker, broker.leader("t", 0), produce_to(0), 9)
        before = (await metadata(broker, 1)).topics[0].partitions[0]
        target = next(node_id for node_id in NODES if node_id != before.leader_id)
        async with Wire(address(broker, before.leader_id)) as wire:
            wire.send(fetch_request("t", 1, max_wait_ms=60_000), 12)
            await until(lambda: len(broker.state.purgatory) == 1)
            broker.move_leader("t", 0, target)
            waiting = await wire.receive()
            assert isinstance(waiting, FetchResponse)
            assert waiting.responses[0].partitions[0].error_code == 6
        after = (await metadata(broker, 1)).topics[0].partitions[0]
        assert (after.leader_id, after.leader_epoch) == (target, before.leader_epoch + 1)
        codes = {}
        for epoch in (before.leader_epoch, after.leader_epoch, after.leader_epoch + 1):
            request = fetch_request("t", 0, current_leader_epoch=epoch)
            answer = await ask(broker, target, request, 12)
            assert isinstance(answer, FetchResponse)
            data = answer.responses[0].partitions[0]
            codes[epoch - before.leader_epoch] = (data.error_code, values_of(data.records))
        assert codes == {0: (74, []), 1: (0, [b"p0"]), 2: (75, [])}

    async def test_moves_that_cannot_be_are_refused(self, broker: Broker) -> None:
        with pytest.raises(PlacementError, match="no replica"):
            broker.move_leader("t", 0, 9)
        with pytest.raises(KeyError, match="t-77"):
            broker.move_leader("t", 77, 1)
        await broker.stop_node_async(2)
        with pytest.raises(PlacementError, match="start it first"):
            broker.move_leader("t", 0, 2)
        with pytest.raises(PlacementError, match="unknown node 9"):
            await broker.stop_node_async(9)


class TestReplicas:
    async def create(self, broker: Broker, name: str, factor: int) -> int:
        wish = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=3, replication_factor=factor, assignments=[], configs=[]
        )
        answer = await ask(broker, 1, CreateTopicsRequest(topics=[wish], timeout_ms=1), 7)
        assert isinstance(answer, CreateTopicsResponse)
        return answer.topics[0].error_code

    async def test_replication_factor_is_kept_and_bounded(self, broker: Broker) -> None:
        assert await self.create(broker, "two", 2) == 0
        assert await self.create(broker, "four", 4) == ErrorCode.INVALID_REPLICATION_FACTOR
        partitions = (await metadata(broker, 1, "two")).topics[0].partitions
        assert [len(p.replica_nodes) for p in partitions] == [2, 2, 2]

    async def grow(
        self, broker: Broker, name: str, count: int, chosen: list[list[int]] | None
    ) -> int:
        topic = CreatePartitionsRequest.CreatePartitionsTopic
        assignments = chosen and [
            topic.CreatePartitionsAssignment(broker_ids=replicas) for replicas in chosen
        ]
        wish = topic(name=name, count=count, assignments=assignments)
        request = CreatePartitionsRequest(topics=[wish], timeout_ms=1, validate_only=False)
        answer = await ask(broker, 1, request, 3)
        assert isinstance(answer, CreatePartitionsResponse)
        return answer.results[0].error_code

    async def replicas(self, broker: Broker, name: str) -> list[list[int]]:
        partitions = (await metadata(broker, 1, name)).topics[0].partitions
        for each in partitions:
            assert each.leader_id == each.replica_nodes[0]
        return [each.replica_nodes for each in partitions]

    async def test_added_partitions_get_the_replicas_that_were_chosen(self, broker: Broker) -> None:
        assert await self.create(broker, "two", 2) == 0
        before = await self.replicas(broker, "two")
        chosen = [[3, 2], [1, 2], [3, 1]]
        assert await self.grow(broker, "two", 6, chosen) == 0
        assert await self.replicas(broker, "two") == before + chosen

    async def test_added_partitions_have_as_many_replicas_as_the_others(
        self, broker: Broker
    ) -> None:
        assert await self.create(broker, "one", 1) == 0
        assert await self.grow(broker, "one", 9, None) == 0
        assert [len(nodes) for nodes in await self.replicas(broker, "one")] == [1] * 9

    async def test_replicas_that_cannot_be_are_refused(self, broker: Broker) -> None:
        refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        assert await self.create(broker, "two", 2) == 0
        await broker.stop_node_async(2)
        await broker.stop_node_async(3)
        for chosen in ([[1]], [[1, 2, 3]], [[1, 1]], [[1, 4]], [[2, 3]], [[1, 2], [1, 3]]):
            assert await self.grow(broker, "two", 4, chosen) == refused
        uneven = CreateTopicsRequest.CreatableTopic(
            name="uneven",
            num_partitions=-1,
            replication_factor=-1,
            assignments=[
                CreateTopicsRequest.CreatableTopic.CreatableReplicaAssignment(
                    partition_index=index, broker_ids=nodes
                )
                for index, nodes in enumerate([[1, 2], [1]])
            ],
            configs=[],
        )
        answer = await ask(broker, 1, CreateTopicsRequest(topics=[uneven], timeout_ms=1), 7)
        assert isinstance(answer, CreateTopicsResponse)
        assert answer.topics[0].error_code == refused

    async def test_a_partition_without_a_running_replica_has_no_leader(
        self, broker: Broker
    ) -> None:
        assert await self.create(broker, "one", 1) == 0
        await broker.stop_node_async(broker.leader("one", 0))
        alive = next(n.node_id for n in broker.state.placement.running)
        partition = (await metadata(broker, alive, "one")).topics[0].partitions[0]
        assert (partition.error_code, partition.leader_id) == (5, -1)
        assert partition.offline_replicas == partition.replica_nodes
        epoch = partition.leader_epoch
        (gone,) = partition.replica_nodes
        await broker.start_node_async(gone)
        partition = (await metadata(broker, alive, "one")).topics[0].partitions[0]
        assert (partition.error_code, partition.leader_id) == (0, gone)
        assert partition.leader_epoch > epoch


class TestNodes:
    async def test_a_stopped_node_is_gone_and_its_partitions_move(self, broker: Broker) -> None:
        led = [index for index in range(6) if broker.leader("t", index) == 2]
        old = address(broker, 2)
        async with Wire(old) as wire:
            wire.send(MetadataRequest(topics=[]), 12)
            await wire.receive()
            await broker.stop_node_async(2)
            assert await wire.closed()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*old)
        answer = await metadata(broker, 1)
        assert [b.node_id for b in answer.brokers] == [1, 3]
        for partition in answer.topics[0].partitions:
            assert partition.leader_id in (1, 3)
            assert partition.offline_replicas == [2]
            assert 2 not in partition.isr_nodes
            assert partition.leader_epoch == (1 if partition.partition_index in led else 0)
        await broker.start_node_async(2)
        assert address(broker, 2) == old
        answer = await metadata(broker, 2)
        assert [b.node_id for b in answer.brokers] == [1, 2, 3]
        assert all(broker.leader("t", index) != 2 for index in range(6))
        assert broker.elect_preferred() >= len(led)
        assert [index for index in range(6) if broker.leader("t", index) == 2] == led

    async def test_the_first_node_may_go_too(self, broker: Broker) -> None:
        await broker.stop_node_async(1)
        answer = await metadata(broker, 2)
        assert (answer.controller_id, [b.node_id for b in answer.brokers]) == (2, [2, 3])

    async def test_stopped_nodes_are_described_as_fenced(self, broker: Broker) -> None:
        await broker.stop_node_async(3)
        for wanted, expected in (
            (False, {1: False, 2: False}),
            (True, {1: False, 2: False, 3: True}),
        ):
            answer = await ask(broker, 1, DescribeClusterRequest(include_fenced_brokers=wanted), 2)
            assert isinstance(answer, DescribeClusterResponse)
            assert {b.broker_id: b.is_fenced for b in answer.brokers} == expected

    async def test_too_few_replicas_in_sync_refuse_acks_all(self, broker: Broker) -> None:
        broker.create_topic("safe", configs={"min.insync.replicas": "3"})
        leader = broker.leader("safe", 0)
        answer = await ask(broker, leader, produce_to(0, topic="safe"), 9)
        assert isinstance(answer, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 0
        await broker.stop_node_async(next(n for n in NODES if n != leader))
        answer = await ask(broker, leader, produce_to(0, topic="safe"), 9)
        assert isinstance(answer, ProduceResponse)
        assert answer.responses[0].partition_responses[0].error_code == 19

    async def test_a_restart_keeps_addresses_and_spreads_leaders_again(
        self, broker: Broker
    ) -> None:
        addresses = broker.bootstrap_servers
        await broker.stop_node_async(2)
        await broker.stop_async(clean=False)
        await broker.start_async()
        assert broker.bootstrap_servers == addresses
        assert len((await metadata(broker, 2)).brokers) == 3

    async def test_each_node_advertises_a_port_of_its_own_after_a_restart_too(self) -> None:
        advertised = {"advertised.listeners": "PLAINTEXT://kafka.example:19092"}
        async with Broker(nodes=3, settings=advertised) as broker:
            await broker.stop_async(clean=False)
            await broker.start_async()
            told = [(b.host, b.port) for b in (await metadata(broker, 2)).brokers]
            assert told == [("kafka.example", 19091 + node_id) for node_id in NODES]


class TestCoordinators:
    async def find(self, broker: Broker, key: str, key_type: int) -> tuple[int, int]:
        answer = await ask(
            broker, 1, FindCoordinatorRequest(coordinator_keys=[key], key_type=key_type), 4
        )
        assert isinstance(answer, FindCoordinatorResponse)
        found = answer.coordinators[0]
        return found.node_id, found.port

    def join(self, group_id: str, member_id: str = "") -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=group_id,
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
        )

    async def test_coordinators_are_spread_and_found(self, broker: Broker) -> None:
        found = {await self.find(broker, f"group-{number}", 0) for number in range(20)}
        assert found == {(node_id, address(broker, node_id)[1]) for node_id in NODES}

    async def test_only_the_coordinator_answers(self, broker: Broker) -> None:
        node_id, _ = await self.find(broker, "g", 0)
        transactional, _ = await self.find(broker, "x", 1)
        for each in NODES:
            beat = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
            answer = await ask(broker, each, beat, 4)
            assert isinstance(answer, HeartbeatResponse)
            assert answer.error_code == (25 if each == node_id else 16)
            begun = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000)
            given = await ask(broker, each, begun, 4)
            assert isinstance(given, InitProducerIdResponse)
            assert given.error_code == (0 if each == transactional else 16)
            idempotent = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
            given = await ask(broker, each, idempotent, 4)
            assert isinstance(given, InitProducerIdResponse)
            assert given.error_code == 0

    async def test_groups_of_one_request_are_answered_one_by_one(self, broker: Broker) -> None:
        groups = [f"group-{number}" for number in range(9)]
        homes = {group: (await self.find(broker, group, 0))[0] for group in groups}
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
                for group in groups
            ]
        )
        answer = await ask(broker, 2, request, 8)
        assert isinstance(answer, OffsetFetchResponse)
        codes = {group.group_id: group.error_code for group in answer.groups}
        assert codes == {group: 0 if home == 2 else 16 for group, home in homes.items()}

    async def test_each_group_is_listed_by_its_coordinator(self, broker: Broker) -> None:
        homes = {}
        for number in range(9):
            group = f"group-{number}"
            homes[group], _ = await self.find(broker, group, 0)
            joined = await ask(broker, homes[group], self.join(group), 3)
            assert isinstance(joined, JoinGroupResponse)
        for node_id in NODES:
            listed = await ask(broker, node_id, ListGroupsRequest(), 4)
            assert isinstance(listed, ListGroupsResponse)
            assert {group.group_id for group in listed.groups} == {
                group for group, home in homes.items() if home == node_id
            }

    async def test_who_waits_learns_that_the_coordinator_moved(self, broker: Broker) -> None:
        node_id, _ = await self.find(broker, "g", 0)
        other = next(each for each in NODES if each != node_id)
        async with Wire(address(broker, node_id)) as first:
            first.send(self.join("g"), 3)
            one = await first.receive()
            assert isinstance(one, JoinGroupResponse)
            async with Wire(address(broker, node_id)) as second:
                # Parked: the first member has yet to join again.
                second.send(self.join("g"), 3)
                await until(lambda: bool(broker.journal.select("JoinGroup")[1:]))
                broker.move_coordinator(other, group_id="g")
                waiting = await second.receive()
                assert isinstance(waiting, JoinGroupResponse)
                assert waiting.error_code == 16
        assert broker.coordinator(group_id="g") == other
        beat = HeartbeatRequest(group_id="g", generation_id=1, member_id=one.member_id)
        answer = await ask(broker, other, beat, 4)
        assert isinstance(answer, HeartbeatResponse)
        assert answer.error_code in (0, ErrorCode.REBALANCE_IN_PROGRESS)


def test_wrong_numbers_of_nodes_are_refused() -> None:
    for count in (0, 101):
        with pytest.raises(ValueError, match="must be from 1 to 100"):
            Broker(nodes=count)


class TestAdministration:
    async def test_preferred_leaders_are_elected_on_request(self, broker: Broker) -> None:
        preferred = broker.leader("t", 0)
        target = preferred % 3 + 1
        broker.move_leader("t", 0, target)
        request = ElectLeadersRequest(
            topic_partitions=[ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0, 1])],
            timeout_ms=1000,
        )
        codes = []
        for _ in range(2):
            answer = await ask(broker, 1, request, 2)
            assert isinstance(answer, ElectLeadersResponse)
            results = answer.replica_election_results[0].partition_result
            codes.append([each.error_code for each in results])
        not_needed = ErrorCode.ELECTION_NOT_NEEDED
        assert codes == [[0, not_needed], [not_needed, not_needed]]
        assert broker.leader("t", 0) == preferred
        await broker.stop_node_async(preferred)
        alive = next(n.node_id for n in broker.state.placement.running)
        answer = await ask(broker, alive, request, 2)
        assert isinstance(answer, ElectLeadersResponse)
        code = answer.replica_election_results[0].partition_result[0].error_code
        assert code == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE

    async def test_replicas_are_reassigned_and_the_leader_follows(self, broker: Broker) -> None:
        wish = AlterPartitionReassignmentsRequest.ReassignableTopic(
            name="t",
            partitions=[
                AlterPartitionReassignmentsRequest.ReassignablePartition(
                    partition_index=index, replicas=replicas
                )
                for index, replicas in ((0, [2]), (1, [3, 1]), (2, [4]), (3, [1, 1]))
            ],
        )
        request = AlterPartitionReassignmentsRequest(topics=[wish], timeout_ms=1000)
        answer = await ask(broker, 1, request, 0)
        assert isinstance(answer, AlterPartitionReassignmentsResponse)
        bad = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        found = [each.error_code for each in answer.responses[0].partitions]
        assert found == [0, 0, bad, bad]
        partitions = (await metadata(broker, 1)).topics[0].partitions
        assert (partitions[0].replica_nodes, partitions[0].leader_id) == ([2], 2)
        assert partitions[1].replica_nodes == [3, 1]
        assert partitions[1].leader_id in (1, 3)

    async def test_every_node_is_a_controller_and_the_first_that_runs_leads(
        self, broker: Broker
    ) -> None:
        async def quorum(asked: int) -> tuple[int, dict[int, int], dict[int, int]]:
            topic = DescribeQuorumRequest.TopicData(
                topic_name="__cluster_metadata",
                partitions=[DescribeQuorumRequest.PartitionData(partition_index=0)],
            )
            answer = await ask(broker, asked, DescribeQuorumRequest(topics=[topic]), 2)
            assert isinstance(answer, DescribeQuorumResponse)
            (told,) = answer.topics[0].partitions
            voters = {each.replica_id: each.log_end_offset for each in told.current_voters}
            ports = {each.node_id: each.listeners[0].port for each in answer.nodes}
            return told.leader_id, voters, ports

        ports = {node_id: address(broker, node_id)[1] for node_id in NODES}
        for node_id in NODES:
            assert await quorum(node_id) == (1, {1: 0, 2: 0, 3: 0}, ports)
        await broker.stop_node_async(1)
        leader, voters, _ = await quorum(3)
        assert (leader, voters) == (2, {1: -1, 2: 0, 3: 0})

    async def test_a_node_that_does_not_run_can_be_unregistered_until_it_comes_back(
        self, broker: Broker
    ) -> None:
        async def unregister(node_id: int) -> int:
            answer = await ask(broker, 1, UnregisterBrokerRequest(broker_id=node_id), 0)
            assert isinstance(answer, UnregisterBrokerResponse)
            return answer.error_code

        async def told() -> list[tuple[int, bool]]:
            request = DescribeClusterRequest(endpoint_type=1, include_fenced_brokers=True)
            answer = await ask(broker, 1, request, 2)
            assert isinstance(answer, DescribeClusterResponse)
            return [(each.broker_id, each.is_fenced) for each in answer.brokers]

        invalid, unknown = ErrorCode.INVALID_REQUEST, ErrorCode.BROKER_ID_NOT_REGISTERED
        assert [await unregister(each) for each in (1, 3, 9)] == [invalid, invalid, unknown]
        await broker.stop_node_async(3)
        assert await told() == [(1, False), (2, False), (3, True)]
        assert [await unregister(3), await unregister(3)] == [0, unknown]
        assert await told() == [(1, False), (2, False)]
        await broker.start_node_async(3)
        assert await told() == [(1, False), (2, False), (3, False)]
