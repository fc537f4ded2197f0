"""The coordinators answer as Apache Kafka's do: the same requests to both, the same answers.

Method: each scenario is a conversation over raw connections whose answers are collected; it runs
against the in-process broker and against Apache Kafka, and the two lists must be equal. Ids are
compared by equality only. Names of groups and transactional ids belong to one scenario each.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
import real_kafka
from broker_wire import Wire
from coordinator_client import (
    CoordinatorClient,
    join_answer,
    name,
    sync_answer,
    until,
)

from onceflow.broker_lite import Broker
from onceflow.sdk.protocol.api.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    JoinGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupResponse,
)
from onceflow.sdk.protocol.api.transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)

pytestmark = pytest.mark.kafka

Answers = list[object]
Scenario = Callable[[CoordinatorClient, CoordinatorClient], Awaitable[Answers]]
BOTH = (True, False)
SWEEP = "transaction.abort.timed.out.transaction.cleanup.interval.ms"


async def init_and_fencing(one: CoordinatorClient, _: CoordinatorClient) -> Answers:
    producer_id, epoch = await one.identity("A")
    said: Answers = [epoch, (await one.init("A"))[::2]]
    for identity in ((producer_id, 1), (producer_id, 1), (producer_id, 0), (producer_id + 99, 0)):
        said.append((await one.init("A", identity))[::2])
    said += [(await one.init("A", (producer_id, 0), version))[::2] for version in (3, 4, 5)]
    said.append((await one.init("A2", (producer_id + 77, 5)))[::2])
    said += [(await one.init("B", half))[0] for half in ((5, -1), (-1, 5))]
    said += [(await one.init("B", timeout_ms=ms))[0] for ms in (0, -1, 900_001, 900_000)]
    said += [(await one.init(""))[0], (await one.init(None, timeout_ms=0))[::2]]
    return said


async def ends_of_nothing(one: CoordinatorClient, _: CoordinatorClient) -> Answers:
    producer_id, epoch = await one.identity("C")
    said: Answers = []
    for version in range(5):
        said += [await one.end("C", (producer_id, epoch), each, version) for each in BOTH]
    for behind, committed in ((0, True), (0, False), (1, False), (1, False), (1, True), (0, False)):
        said.append(await one.end("C", (producer_id, epoch + behind), committed, 5))
    return said


async def version_1_ends(one: CoordinatorClient, _: CoordinatorClient) -> Answers:
    identity = await one.identity("D")
    said: Answers = [await one.add("D", identity), await one.add("D", identity)]
    said += [await one.end("D", identity, each, 3) for each in (True, True, False)]
    said.append(await one.add("D", identity, ("out", [1])))
    said += [await one.end("D", identity, each, 3) for each in (False, False, True)]
    producer_id, epoch = identity
    for version in range(6):
        said.append(await one.end("D", (producer_id, epoch + 5), True, version))
        said.append(await one.end("D", (producer_id + 999, epoch), True, version))
        said.append(await one.end("unknown", identity, True, version))
    return said


async def version_2_ends(one: CoordinatorClient, _: CoordinatorClient) -> Answers:
    producer_id, epoch = await one.identity("E")
    old, new = (producer_id, epoch), (producer_id, epoch + 1)
    said: Answers = [await one.produce("E", old, 0, 12)]
    said += [await one.end("E", old, each, 5) for each in (True, True, False)]
    said += [await one.produce("E", old, 1, 12), await one.end("E", new, True, 5)]
    said += [await one.produce("E", new, 0, 12), await one.end("E", new, False, 5)]
    said.append(await one.end("E", (producer_id, epoch + 2), False, 5))
    said += [await one.end("E", old, True, 3), await one.end("E", (producer_id, 50), True, 5)]
    return said


async def partitions(one: CoordinatorClient, _: CoordinatorClient) -> Answers:
    producer_id, epoch = identity = await one.identity("F")
    said: Answers = [await one.add("F", identity, ("out", [0, 7]), ("none", [0]))]
    for version in range(4):
        said += [
            await one.add("F", (producer_id, epoch + 3), version=version),
            await one.add("F", (producer_id + 99, epoch), version=version),
            await one.add("unknown", identity, version=version),
            await one.add("", identity, version=version),
        ]
    return said


async def takeover(one: CoordinatorClient, _: CoordinatorClient) -> Answers:
    producer_id, epoch = old = await one.identity("H")
    await one.add("H", old)
    said: Answers = [(await one.init("H"))[0]]
    new = await one.identity("H")
    said.append((new[0] == producer_id, new[1] - epoch))
    said += [await one.end("H", old, True, version) for version in (3, 1, 5)]
    said += [await one.produce("H", old, 0, 9), (await one.init("H", old))[::2]]
    return said


async def timeouts(one: CoordinatorClient, _: CoordinatorClient) -> Answers:
    names = [f"I{index}" for index in range(8)]
    ids = [await one.identity(each, timeout_ms=300) for each in names]
    for index, (each, identity) in enumerate(zip(names, ids, strict=True)):
        if index < 4:
            await one.produce(each, identity, 0, 12)
        else:
            await one.add(each, identity)
    request = DescribeTransactionsRequest(transactional_ids=names)
    states: list[tuple[str, int]] = []

    async def aborted() -> bool:
        response = await one.wire.ask(request, 0, DescribeTransactionsResponse)
        states[:] = [
            (each.transaction_state, each.producer_epoch) for each in response.transaction_states
        ]
        return all(state == "CompleteAbort" for state, _epoch in states)

    await until(aborted)
    return [
        states,
        await one.end(names[0], ids[0], True, 5),
        await one.end(names[0], ids[0], False, 5),
        (await one.init(names[1], ids[1]))[::2],
        await one.produce(names[2], ids[2], 1, 12),
        await one.commit_in_transaction(names[3], ids[3], "timed-out"),
        await one.end(names[4], ids[4], True, 3),
        await one.end(names[5], ids[5], False, 3),
        await one.end(names[6], ids[6], True, 1),
        await one.add(names[6], ids[6]),
        await one.produce(names[7], ids[7], 0, 9),
        await one.produce(names[7], ids[7], 0, 11),
    ]


async def verification(one: CoordinatorClient, _: CoordinatorClient) -> Answers:
    identity = await one.identity("J")
    said: Answers = [await one.produce("J", identity, 0, version) for version in (3, 9, 10, 11)]
    await one.add("J", identity)
    said += [await one.produce("J", identity, 0, 9), await one.end("J", identity, True, 3)]
    await one.end("J", identity, True, 3)  # answered as done only once the markers are written
    said += [await one.produce("J", identity, 1, version) for version in (11, 9)]
    said += [await one.produce("unknown", identity, 1, version) for version in (9, 12)]
    return said


async def transactional_offsets(one: CoordinatorClient, _: CoordinatorClient) -> Answers:
    producer_id, epoch = identity = await one.identity("K")
    commit = one.commit_in_transaction
    said: Answers = [await commit("K", identity, "K", version=version) for version in (0, 3, 4)]
    said.append(await commit("K", identity, "K"))
    said += [await one.fetch("K", partitions=(0, 1)), await one.fetch("K", stable=False)]
    said.append(await one.end("K", identity, True, 5))

    async def stable() -> bool:
        return (await one.fetch("K"))[0][3] != "UNSTABLE_OFFSET_COMMIT"

    await until(stable)
    new = (producer_id, epoch + 1)
    said += [
        await one.fetch("K"),
        await commit("K", new, "K", topic="none"),
        await commit("K", new, "K", partition=9),
        await commit("K", new, "K-none", generation_id=4, member_id="m"),
        await commit("K", new, "K", generation_id=4, member_id="m"),
        await commit("K", new, "K", member_id="m"),
        await commit("K", identity, "K"),
        await commit("K", (producer_id + 99, epoch + 1), "K"),
        await commit("K", new, ""),
        await commit("K", new, "K", metadata="x" * 5_000),
    ]
    return said


async def questions(one: CoordinatorClient, _: CoordinatorClient) -> Answers:
    await one.add("Q1", await one.identity("Q1"))
    await one.identity("Q2")
    said: Answers = []
    for request in (
        ListTransactionsRequest(state_filters=["Odd", "Ongoing"], transactional_id_pattern="Q."),
        ListTransactionsRequest(state_filters=["Odd"]),
        ListTransactionsRequest(transactional_id_pattern="("),
        ListTransactionsRequest(transactional_id_pattern="Q"),
        ListTransactionsRequest(duration_filter=0, transactional_id_pattern="Q2"),
    ):
        response = await one.wire.ask(request, 2, ListTransactionsResponse)
        ids = sorted(each.transactional_id for each in response.transaction_states)
        said.append((name(response.error_code), response.unknown_state_filters, ids))
    described = DescribeTransactionsRequest(transactional_ids=["", "none", "Q1"])
    states = await one.wire.ask(described, 0, DescribeTransactionsResponse)
    said += [
        (name(each.error_code), each.transaction_state, len(each.topics))
        for each in states.transaction_states
    ]
    return said


async def refused_members(one: CoordinatorClient, _: CoordinatorClient) -> Answers:
    ask = one.join_request
    said: Answers = [
        join_answer(await one.join(request))
        for request in (
            ask("M", "who"),
            ask(""),
            ask("M", session_ms=10),
            ask("M", session_ms=10**8),
            ask("M", protocols=()),
            ask("M", protocol_type=""),
        )
    ]
    said += [join_answer(await one.join(ask(f"M{v}"), v)) for v in (4, 5, 9)]
    said += [
        await one.sync(one.sync_request("none", 1, "m")),
        await one.sync(one.sync_request("", 1, "m")),
        await one.beat("none", 1, "m"),
        await one.beat("", 1, "m"),
        await one.leave("none", ("m", None), ("", "i")),
        await one.leave("none"),
        await one.leave("", ("m", None)),
    ]
    request = DeleteGroupsRequest(groups_names=["", "none"])
    deleted = await one.wire.ask(request, 2, DeleteGroupsResponse)
    said.append(sorted((each.group_id, name(each.error_code)) for each in deleted.results))
    for version in (5, 6):
        said.append(await described(one, "M-none", version))
    return said


async def described(one: CoordinatorClient, group_id: str, version: int = 6) -> object:
    request = DescribeGroupsRequest(groups=[group_id])
    group = (await one.wire.ask(request, version, DescribeGroupsResponse)).groups[0]
    members = sorted(
        (each.group_instance_id or "", each.member_metadata, each.member_assignment)
        for each in group.members
    )
    return (
        name(group.error_code), group.error_message, group.group_state, group.protocol_type,
        group.protocol_data, members,
    )  # fmt: skip


async def one_member(one: CoordinatorClient, _: CoordinatorClient) -> Answers:
    ask, sync = one.join_request, one.sync_request
    member = await one.member("N")
    said: Answers = [
        join_answer(await one.join(ask("N", member))),
        await one.beat("N", 1, member),
        await one.commit("N", 1, 1, member),
        await described(one, "N"),
        join_answer(await one.join(ask("N", member))),
        await one.sync(sync("N", 9, member)),
        await one.sync(sync("N", 1, "who")),
        await one.sync(sync("N", 1, member, protocol_name="odd")),
        await one.sync(sync("N", 1, member, protocol_type="odd")),
        await one.sync(sync("N", 1, member, {member: b"all"})),
        await one.sync(sync("N", 1, member)),
        await one.beat("N", 1, member),
        await one.beat("N", 7, member),
        await one.beat("N", 1, "who"),
        await one.beat("N", 1, member, "instance"),
        await described(one, "N"),
        join_answer(await one.join(ask("N", protocols=(("odd", b""),)))),
        join_answer(await one.join(ask("N", protocol_type="connect"))),
    ]
    return said


async def plain_offsets(one: CoordinatorClient, _: CoordinatorClient) -> Answers:
    member = await one.member("O")
    await one.join(one.join_request("O", member))
    await one.sync(one.sync_request("O", 1, member))
    commit = one.commit
    return [
        await commit("O", 1, 1, member),
        await commit("O", 1, 9, member),
        await commit("O", 1, 1, "who"),
        await commit("O", 1),
        await commit("O", 1, -1, member),
        await commit("O", 1, 1, ""),
        await commit("O", 1, 1, member, instance="instance"),
        await commit("O", 1, 1, member, topic="none"),
        await commit("O", 1, 1, member, partition=9),
        await commit("O", 1, 1, member, metadata="x" * 4_097),
        await commit("O", 1, 1, member, metadata="x" * 4_096),
        await commit("O", 2, 1, member, metadata=None),
        await one.fetch("O", partitions=(0, 1, 9)),
        await one.fetch("O", topic="none"),
        await one.fetch("O-none"),
        await commit("O-none", 1, 3, "m", version=8),
        await commit("O-none", 1, 3, "m", version=9),
        await commit("O-new", 1),
        await described(one, "O-new"),
        await commit("", 1),
    ]


async def two_members(one: CoordinatorClient, two: CoordinatorClient) -> Answers:
    ask, sync = one.join_request, one.sync_request
    first = await one.member("R")
    await one.join(ask("R", first))
    await one.sync(sync("R", 1, first))
    second = await two.member("R")
    two.wire.send(ask("R", second), 9)
    await until_state(one, "R", "PreparingRebalance")
    said: Answers = [
        await one.beat("R", 1, first),
        await one.commit("R", 3, 1, first),
        await one.sync(sync("R", 1, first)),
        await described(one, "R"),
        join_answer(await one.join(ask("R", first))),
        await joined(two),
        await one.commit("R", 3, 2, first),
    ]
    two.wire.send(sync("R", 2, second), 5)
    said.append(await one.sync(sync("R", 2, first, {first: b"A", second: b"B"})))
    answer = await two.wire.receive()
    assert isinstance(answer, SyncGroupResponse)
    said += [
        sync_answer(answer),
        join_answer(await two.join(ask("R", second))),
        await one.leave("R", (second, None), ("who", None), (second, None)),
        await one.beat("R", 2, first),
        await one.beat("R", 2, second),
        join_answer(await one.join(ask("R", first))),
        await one.sync(sync("R", 3, first)),
        await one.leave("R", (first, None)),
        await described(one, "R"),
        await one.beat("R", 4, first),
        join_answer(await one.join(ask("R", first))),
        await one.commit("R", 9),
        await one.commit("R", 9, 4, first),
        await one.commit("R", 9, -1, first),
        join_answer(await one.join(ask("R"), 3)),
    ]
    return said


async def joined(client: CoordinatorClient) -> object:
    response = await client.wire.receive()
    assert isinstance(response, JoinGroupResponse)
    return join_answer(response)


async def until_state(client: CoordinatorClient, group_id: str, state: str) -> None:
    request = DescribeGroupsRequest(groups=[group_id])

    async def reached() -> bool:
        response = await client.wire.ask(request, 6, DescribeGroupsResponse)
        return response.groups[0].group_state == state

    await until(reached)


async def static_members(one: CoordinatorClient, two: CoordinatorClient) -> Answers:
    ask, sync = one.join_request, one.sync_request
    response = await one.join(ask("P", instance="i1"))
    first = response.member_id
    said: Answers = [
        join_answer(response),
        await one.sync(sync("P", 1, first, {first: b"A"}, "i1")),
    ]
    response = await one.join(ask("P", instance="i1"))
    back = response.member_id
    said += [
        join_answer(response),
        back != first,
        await one.sync(sync("P", 1, back, {back: b"ignored"}, "i1")),
        join_answer(await one.join(ask("P", first, "i1"))),
        await one.beat("P", 1, first, "i1"),
        await one.beat("P", 1, first),
        await one.sync(sync("P", 1, first, instance="i1")),
        await one.commit("P", 1, 1, first, instance="i1"),
        await one.leave("P", (first, "i1")),
        await one.beat("P", 1, back, "other"),
        join_answer(await one.join(ask("P", back, "other"))),
    ]
    response = await one.join(ask("P", instance="i1"), 8)
    again = response.member_id
    said += [join_answer(response), response.leader == back]
    two.wire.send(ask("P", instance="i2"), 9)
    await until_state(one, "P", "PreparingRebalance")
    said.append(join_answer(await one.join(ask("P", again, "i1"))))
    parked = await two.wire.receive()
    assert isinstance(parked, JoinGroupResponse)
    two.wire.send(sync("P", 2, parked.member_id, instance="i2"), 5)
    shares = {again: b"A", parked.member_id: b"B"}
    said.append(await one.sync(sync("P", 2, again, shares, "i1")))
    await two.wire.receive()
    response = await two.join(ask("P", instance="i2", protocols=(("range", b"other"),)))
    said += [
        join_answer(response),
        response.leader == again,
        await two.sync(sync("P", 2, response.member_id, instance="i2")),
        await one.leave("P", ("", "i1")),
        await one.leave("P", ("", "i1")),
        await one.leave("P", ("odd", "i2")),
    ]
    return said


async def lists(one: CoordinatorClient, _: CoordinatorClient) -> Answers:
    await one.commit("S", 1)
    said: Answers = []
    for states, types in ((["empty"], ["classic"]), (["Stable"], []), ([], ["odd"])):
        request = ListGroupsRequest(states_filter=states, types_filter=types)
        response = await one.wire.ask(request, 5, ListGroupsResponse)
        said.append(
            [
                (each.group_id, each.protocol_type, each.group_state, each.group_type)
                for each in response.groups
                if each.group_id == "S"
            ]
        )
    return said


SCENARIOS: list[Scenario] = [
    init_and_fencing, ends_of_nothing, version_1_ends, version_2_ends, partitions, takeover,
    timeouts, verification, transactional_offsets, questions, refused_members, one_member,
    plain_offsets, two_members, static_members, lists,
]  # fmt: skip


async def play(address: tuple[str, int], scenario: Scenario) -> Answers:
    async with AsyncExitStack() as stack:
        clients = [
            CoordinatorClient(await stack.enter_async_context(Wire(address))) for _ in range(2)
        ]
        await clients[0].prepare()
        return await scenario(*clients)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_same_answers(scenario: Scenario, apache_kafka: real_kafka.ApacheKafka) -> None:
    # A run of its own names: Apache Kafka is shared by the whole test run.
    theirs = await play(address_of(apache_kafka.bootstrap_servers), scenario)
    async with Broker(settings={SWEEP: 300}) as broker:
        ours = await play(address_of(broker.bootstrap_servers), scenario)
    assert ours == theirs


def address_of(bootstrap_servers: str) -> tuple[str, int]:
    host, _, port = bootstrap_servers.rpartition(":")
    return host, int(port)
