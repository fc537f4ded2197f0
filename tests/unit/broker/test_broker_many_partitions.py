"""Goal: what is about very many partitions, topics or keys is done without holding up anybody else.

Method: a broker without sockets on a clock that is moved by hand; how much is done between two
moves is counted in partitions. A death in the middle is one where the memory is opened again.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from onceflow.broker_lite.broker import BrokerState, open_broker
from onceflow.broker_lite.handlers.admin import create_partitions, create_topics, delete_topics
from onceflow.broker_lite.handlers.cluster import KEYS_PER_STEP, create_on_demand, find_coordinator
from onceflow.broker_lite.log import MemoryStorage
from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.request_context import ConnectionState, RequestContext
from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.broker_lite.slices import SLICE_STEPS
from onceflow.broker_lite.topics import TopicError
from onceflow.sdk.protocol.api.admin import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from onceflow.sdk.protocol.api.cluster import FindCoordinatorRequest, FindCoordinatorResponse
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import ZERO_UUID

COUNT = 10 * SLICE_STEPS
SOME = 3 * SLICE_STEPS
NOW_MS = 1_700_000_000_000


def start(storage: MemoryStorage) -> BrokerState:
    return open_broker(storage, BrokerConfig(), random.Random(7), NOW_MS)


def context(api_version: int) -> RequestContext:
    connection = ConnectionState(1, "/127.0.0.1", "PLAINTEXT")
    return RequestContext(api_version, "", 7, "/1", "User:u", "PLAINTEXT", connection)


def delete(state: BrokerState, name: str) -> DeleteTopicsResponse | Deferred[DeleteTopicsResponse]:
    wish = DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=ZERO_UUID)
    return delete_topics(
        state, context(6), DeleteTopicsRequest(topics=[wish], timeout_ms=1000), NOW_MS
    )


def grow(
    state: BrokerState, name: str, count: int
) -> CreatePartitionsResponse | Deferred[CreatePartitionsResponse]:
    wish = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
    return create_partitions(
        state, context(3), CreatePartitionsRequest(topics=[wish], timeout_ms=1000), NOW_MS
    )


def turns_until_answered(
    state: BrokerState, pending: object, after_each: Callable[[], object] = lambda: None
) -> tuple[int, object]:
    """Turns of the timers until the answer came, and the answer."""
    assert isinstance(pending, Deferred)
    answers: list[object] = []
    pending.add_done_callback(answers.append)
    turns = 0
    while not answers:
        after_each()
        turns += 1
        state.timers.run_due(NOW_MS + turns)
    return turns, answers[0]


def ask(
    state: BrokerState, *wishes: tuple[str, int]
) -> CreateTopicsResponse | Deferred[CreateTopicsResponse]:
    request = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name=name, num_partitions=count, replication_factor=1, assignments=[], configs=[]
            )
            for name, count in wishes
        ]
    )
    return create_topics(state, context(7), request, NOW_MS)


def made(state: BrokerState) -> int:
    return len(state.log_manager.partitions())


def codes(answer: object) -> list[int]:
    assert isinstance(answer, CreateTopicsResponse)
    return [topic.error_code for topic in answer.topics]


def test_few_partitions_are_made_at_once_and_many_in_slices_between_which_others_are_served() -> (
    None
):
    state = start(MemoryStorage())
    assert codes(ask(state, ("small", 3))) == [0]
    answers: list[CreateTopicsResponse] = []
    pending = ask(state, ("large", COUNT), ("second", SLICE_STEPS))
    assert isinstance(pending, Deferred)
    pending.add_done_callback(answers.append)
    now_ms, before, turns = NOW_MS, 3, 0
    while not answers:
        assert made(state) - before <= SLICE_STEPS
        before, now_ms, turns = made(state), now_ms + 1, turns + 1
        if turns < COUNT // SLICE_STEPS:
            assert state.topics.get("large") is None
            with pytest.raises(TopicError) as caught:  # What Metadata answers: ask again.
                create_on_demand(state, "large", now_ms)
            assert caught.value.code == ErrorCode.LEADER_NOT_AVAILABLE
            assert codes(ask(state, ("large", 1))) == [ErrorCode.TOPIC_ALREADY_EXISTS]
        state.timers.run_due(now_ms)
    assert turns >= COUNT // SLICE_STEPS
    assert codes(answers[0]) == [0, 0]
    topic = state.topics.get("large")
    assert topic is not None
    assert len(topic.partitions) == COUNT
    state.close(now_ms)


def test_a_peer_that_leaves_does_not_leave_half_a_topic() -> None:
    state = start(MemoryStorage())
    pending = ask(state, ("large", COUNT))
    assert isinstance(pending, Deferred)
    pending.disconnect()
    for passed_ms in range(2 * COUNT // SLICE_STEPS):
        state.timers.run_due(NOW_MS + passed_ms)
    topic = state.topics.get("large")
    assert topic is not None
    assert len(topic.partitions) == COUNT


def test_a_stop_or_death_in_the_middle_leaves_the_whole_topic_to_the_next_start() -> None:
    for clean in (True, False):
        storage = MemoryStorage()
        state = start(storage)
        assert isinstance(ask(state, ("large", COUNT)), Deferred)
        assert made(state) == SLICE_STEPS
        state.close(NOW_MS, clean=clean)
        again = start(storage)
        topic = again.topics.get("large")
        assert topic is not None
        assert len(topic.partitions) == COUNT
        again.close(NOW_MS)


def test_a_step_that_raises_is_answered() -> None:
    state = start(MemoryStorage())
    answers: list[CreateTopicsResponse] = []
    pending = ask(state, ("large", COUNT))
    assert isinstance(pending, Deferred)
    pending.add_done_callback(answers.append)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("nobody expected this")

    state.log_manager.create_partition = broken  # type: ignore[assignment, method-assign]
    state.timers.run_due(NOW_MS + 1)
    assert codes(answers[0]) == [ErrorCode.UNKNOWN_SERVER_ERROR]


def test_a_topic_grows_in_slices_and_shows_its_partitions_together() -> None:
    state = start(MemoryStorage())
    assert codes(ask(state, ("orders", 2))) == [0]
    topic = state.topics.get("orders")
    assert topic is not None
    counts, made_before = set(), [made(state)]
    pending = grow(state, "orders", COUNT)

    def look() -> None:
        counts.add(len(topic.partitions))
        assert made(state) - made_before[0] <= SLICE_STEPS
        made_before[0] = made(state)
        again = grow(state, "orders", COUNT + 1)
        assert isinstance(again, CreatePartitionsResponse)
        assert again.results[0].error_code == ErrorCode.REASSIGNMENT_IN_PROGRESS

    turns, answer = turns_until_answered(state, pending, look)
    assert isinstance(answer, CreatePartitionsResponse)
    assert answer.results[0].error_code == 0
    assert turns >= COUNT // SLICE_STEPS - 1
    assert counts == {2}
    assert len(topic.partitions) == COUNT
    assert isinstance(grow(state, "orders", COUNT + 1), CreatePartitionsResponse)
    state.close(NOW_MS)


def test_a_topic_is_deleted_in_slices_and_its_name_is_free_only_then() -> None:
    storage = MemoryStorage()
    state = start(storage)
    state.topics.create("orders", COUNT, {}, NOW_MS)
    pending = delete(state, "orders")

    def look() -> None:
        assert state.topics.get("orders") is None
        assert state.log_manager.partitions() == []
        assert codes(ask(state, ("orders", 1))) == [ErrorCode.TOPIC_ALREADY_EXISTS]

    turns, answer = turns_until_answered(state, pending, look)
    assert isinstance(answer, DeleteTopicsResponse)
    assert answer.responses[0].error_code == 0
    assert turns >= COUNT // SLICE_STEPS
    assert all(name.endswith("-delete") for name in storage.directories())
    state.log_manager.remove_due(NOW_MS + 60_000)
    assert storage.directories() == []
    assert codes(ask(state, ("orders", 1))) == [0]
    state.close(NOW_MS)


def test_a_topic_that_is_deleted_while_it_grows_is_gone() -> None:
    storage = MemoryStorage()
    state = start(storage)
    state.topics.create("orders", 2, {}, NOW_MS)
    growing, grown = grow(state, "orders", COUNT), []
    assert isinstance(growing, Deferred)
    growing.add_done_callback(grown.append)
    _, answer = turns_until_answered(state, delete(state, "orders"))
    assert isinstance(answer, DeleteTopicsResponse)
    assert answer.responses[0].error_code == 0
    assert [each.results[0].error_code for each in grown] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert all(name.endswith("-delete") for name in storage.directories())
    state.close(NOW_MS)
    again = start(storage)
    assert len(again.topics) == 0


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("turns", [0, 3, 5])
def test_a_stop_or_death_during_a_deletion_or_growth_is_finished_by_the_next_start(
    clean: bool, turns: int
) -> None:
    for work, left in (
        (lambda state: delete(state, "orders"), 0),
        (lambda state: grow(state, "orders", 3 * SOME), 3 * SOME),
    ):
        storage = MemoryStorage()
        state = start(storage)
        state.topics.create("orders", SOME, {}, NOW_MS)
        assert isinstance(work(state), Deferred)
        for turn in range(turns):
            state.timers.run_due(NOW_MS + 1 + turn)
        state.close(NOW_MS, clean=clean)
        again = start(storage)
        topic = again.topics.get("orders")
        assert (0 if topic is None else len(topic.partitions)) == left
        assert made(again) == left
        again.close(NOW_MS)


def test_topics_that_are_only_checked_and_keys_of_coordinators_take_turns_too() -> None:
    state = start(MemoryStorage())
    wishes = CreateTopicsRequest(
        topics=[
            CreateTopicsRequest.CreatableTopic(
                name=f"t{number}",
                num_partitions=1,
                replication_factor=1,
                assignments=[],
                configs=[],
            )
            for number in range(5 * SLICE_STEPS)
        ],
        validate_only=True,
    )
    turns, answer = turns_until_answered(state, create_topics(state, context(7), wishes, NOW_MS))
    assert turns >= 4
    assert codes(answer) == [0] * (5 * SLICE_STEPS)
    assert len(state.topics) == 0
    keys = [f"group-{number}" for number in range(5 * SLICE_STEPS * KEYS_PER_STEP)]
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=keys)
    turns, found = turns_until_answered(state, find_coordinator(state, context(4), request, NOW_MS))
    assert turns >= 4
    assert isinstance(found, FindCoordinatorResponse)
    assert [each.key for each in found.coordinators] == keys
    state.close(NOW_MS)
