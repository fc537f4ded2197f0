"""Goal: a topic of very many partitions is made without holding up anybody else.

Method: a broker without sockets on a clock that is moved by hand; how much is done between two
moves is counted in partitions. A death in the middle is one where the memory is opened again.
"""

from __future__ import annotations

import random

import pytest

from onceflow.broker_lite.broker import BrokerState, open_broker
from onceflow.broker_lite.config import BrokerConfig
from onceflow.broker_lite.dispatch import ConnectionState, RequestContext
from onceflow.broker_lite.handlers.admin import create_topics
from onceflow.broker_lite.handlers.cluster import create_on_demand
from onceflow.broker_lite.log import MemoryStorage
from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.slices import SLICE_STEPS
from onceflow.broker_lite.topics import TopicError
from onceflow.sdk.protocol.api.admin import CreateTopicsRequest, CreateTopicsResponse
from onceflow.sdk.protocol.error_codes import ErrorCode

COUNT = 10 * SLICE_STEPS
NOW_MS = 1_700_000_000_000


def start(storage: MemoryStorage) -> BrokerState:
    return open_broker(storage, BrokerConfig(), random.Random(7), NOW_MS)


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
    connection = ConnectionState(1, "/127.0.0.1", "PLAINTEXT")
    context = RequestContext(19, "", 0, 7, "/1", "User:u", "PLAINTEXT", connection)
    return create_topics(state, context, request, NOW_MS)


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
