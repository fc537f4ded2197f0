"""Goal: a position is used on the topic that it belongs to, never on another one of that name.

Method: the fetcher plans and takes answers made from a model log while the id of the topic changes,
in every phase that a partition may be in. Time is a number.
"""

from __future__ import annotations

import logging
from uuid import UUID

import pytest
from consumer_logs import LogBuilder

from onceflow.sdk.core.connection.metadata import (
    ClusterMetadata,
    Node,
    PartitionMetadata,
    TopicMetadata,
)
from onceflow.sdk.core.consume.fetch_plan import FetchPlan, FetchSettings
from onceflow.sdk.core.consume.fetcher import Fetcher
from onceflow.sdk.core.consume.subscription import PartitionPhase, PartitionState, Subscription
from onceflow.sdk.core.consume.topic_change import gone
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.model.special_values import EARLIEST_TIMESTAMP
from onceflow.sdk.protocol.api.fetch import FetchResponse
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import ZERO_UUID

OLD, NEW = UUID(int=7), UUID(int=8)
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Rig:
    """A fetcher of two partitions whose positions were looked up in the old topic."""

    def __init__(self, version: int = 17) -> None:
        self.subscription = Subscription("earliest")
        self.subscription.assign_from_group([P0, P1])
        self.fetcher = Fetcher(FetchSettings(), self.subscription)
        self.version = version
        self.plan(OLD)
        for state in self.subscription:
            assert self.subscription.apply_position(state.topic_partition, state.stamp, 0)

    def plan(self, topic_id: UUID, error_code: int = 0) -> FetchPlan | None:
        partitions = {p: PartitionMetadata(p, 1, 0, (1,), (1,)) for p in (0, 1)}
        topic = TopicMetadata("t", topic_id, False, error_code, partitions)
        cluster = ClusterMetadata(nodes={1: Node(1, "h", 1)}, topics={"t": topic})
        plans = self.fetcher.plan(cluster, 0, lambda _: self.version)
        return plans[0] if plans else None

    def answer(self, plan: FetchPlan | None, *answers: FetchResponse.PartitionData) -> None:
        assert plan is not None, "nothing was asked for"
        topic = FetchResponse.FetchableTopicResponse(partitions=list(answers))
        if self.version >= 13:
            (topic.topic_id,) = plan.topic_names
        else:
            topic.topic = "t"
        self.fetcher.on_response(plan, FetchResponse(session_id=5, responses=[topic]), 0)

    @property
    def p0(self) -> PartitionState:
        return self.subscription.state(P0)

    def phases(self) -> list[PartitionPhase]:
        return [state.phase for state in self.subscription]


def some_records(offset: int = 0) -> FetchResponse.PartitionData:
    log = LogBuilder()
    log.records(b"a", b"b")
    return log.fetch_answer(offset)


def nothing_new() -> FetchResponse.PartitionData:
    return FetchResponse.PartitionData(partition_index=0, error_code=ErrorCode.NONE)


@pytest.mark.parametrize("version", [12, 17])
def test_positions_of_the_old_topic_are_forgotten_with_one_warning_trap_32(
    version: int, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(version)
    rig.answer(rig.plan(OLD), some_records())
    assert rig.fetcher.buffered_bytes > 0
    caplog.set_level(logging.WARNING, "onceflow.sdk.consumer")
    for _ in range(2):
        assert rig.plan(NEW) is None
        assert rig.phases() == [PartitionPhase.LOADING] * 2
    assert [record.name for record in caplog.records] == ["onceflow.sdk.consumer"]
    assert "topic t was deleted and created again" in caplog.messages[0]
    assert rig.fetcher.take(10, 0) == {}
    assert rig.fetcher.buffered_bytes == 0
    assert rig.subscription.positions() == {}


def test_an_answer_of_the_old_topic_is_not_taken_for_one_of_the_new() -> None:
    rig = Rig()
    asked = rig.plan(OLD)
    rig.plan(NEW)
    rig.subscription.apply_position(P0, rig.p0.stamp, 0)
    rig.answer(asked, some_records())
    assert rig.fetcher.buffered_bytes == 0
    assert rig.p0.fetch_offset == 0


def test_a_topic_that_is_gone_or_has_no_id_resets_nothing() -> None:
    rig = Rig()
    rig.answer(rig.plan(OLD), nothing_new())
    rig.plan(ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    rig.plan(ZERO_UUID)
    rig.plan(OLD)
    assert rig.phases() == [PartitionPhase.READY] * 2
    rig.plan(NEW)
    assert rig.phases() == [PartitionPhase.LOADING] * 2


def test_an_id_that_becomes_known_late_resets_nothing() -> None:
    subscription = Subscription("earliest")
    subscription.assign_from_group([P0])
    rig = Rig.__new__(Rig)
    rig.subscription, rig.version = subscription, 12
    rig.fetcher = Fetcher(FetchSettings(), subscription)
    subscription.apply_position(P0, rig.p0.stamp, 0)
    rig.answer(rig.plan(ZERO_UUID), some_records())
    rig.plan(OLD)
    assert rig.phases() == [PartitionPhase.READY]
    rig.plan(NEW)
    assert rig.phases() == [PartitionPhase.LOADING]


@pytest.mark.parametrize("version", [12, 17])
def test_a_seek_stands_until_a_fetch_from_there_was_answered(version: int) -> None:
    """The client may not have heard of the new topic yet when its user seeks in it."""
    rig = Rig(version)
    rig.subscription.seek(P0, 5)
    refused = FetchResponse.PartitionData(partition_index=0, error_code=ErrorCode.UNKNOWN_TOPIC_ID)
    rig.answer(rig.plan(OLD), refused)
    rig.p0.retry_at_ms = 0
    rig.fetcher._nodes.clear()
    asked = rig.plan(NEW)
    assert rig.phases() == [PartitionPhase.READY, PartitionPhase.LOADING]
    assert rig.p0.position == 5
    rig.answer(asked, nothing_new())
    rig.plan(UUID(int=9))
    assert rig.p0.phase is PartitionPhase.LOADING


def test_a_look_up_under_way_begins_again_and_the_users_own_stands() -> None:
    rig = Rig()
    rig.subscription.request_reset(P1, EARLIEST_TIMESTAMP)
    rig.subscription.request_load(P0)
    stamps = [state.stamp for state in rig.subscription]
    rig.plan(NEW)
    assert rig.phases() == [PartitionPhase.LOADING, PartitionPhase.RESETTING]
    assert not rig.subscription.apply_position(P0, stamps[0], 9)
    assert rig.subscription.apply_position(P1, stamps[1], 0)


def test_a_reset_by_policy_begins_again_with_the_same_target() -> None:
    rig = Rig()
    rig.subscription.reset_by_policy(rig.p0, ValueError())  # type: ignore[arg-type]
    stamp = rig.p0.stamp
    rig.plan(NEW)
    assert rig.p0.phase is PartitionPhase.RESETTING
    assert rig.p0.reset_timestamp == EARLIEST_TIMESTAMP
    assert not rig.subscription.apply_position(P0, stamp, 9)


def test_a_topic_counts_as_gone_when_it_had_an_id_and_is_missing() -> None:
    """Its offsets are not committed by the consumer itself: a commit names the topic."""
    rig = Rig()
    missing = TopicMetadata("t", ZERO_UUID, False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, {})
    leaderless = TopicMetadata("t", OLD, False, ErrorCode.LEADER_NOT_AVAILABLE, {})
    assert gone(rig.subscription, ClusterMetadata(topics={"t": leaderless})) == []
    rig.subscription.seek(P0, 3)
    assert gone(rig.subscription, ClusterMetadata(topics={"t": missing})) == [P1]
    assert gone(rig.subscription, ClusterMetadata()) == [P1]
