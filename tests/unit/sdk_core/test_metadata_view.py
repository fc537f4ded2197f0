"""Goal: the view of the cluster only gets newer, and knows a topic that was made anew.

Method: answers to Metadata written by hand, applied one after the other.
"""

from __future__ import annotations

from uuid import UUID

from onceflow.sdk.core.connection.metadata import STALE_ANSWERS_MAX, ClusterMetadata, Node
from onceflow.sdk.core.retry import Backoff, Recovery, recovery_for, recovery_for_code
from onceflow.sdk.errors import BrokerConnectionError, ConfigError, NotCoordinatorError
from onceflow.sdk.model.partitions import PartitionInfo, TopicPartition
from onceflow.sdk.protocol.api.cluster import MetadataResponse
from onceflow.sdk.protocol.error_codes import ErrorCode

A0 = TopicPartition("a", 0)
ID_ONE, ID_TWO = UUID(int=1), UUID(int=2)


def answer(
    *,
    topic: str = "a",
    topic_id: UUID = ID_ONE,
    leader: int = 1,
    epoch: int = 5,
    partitions: int = 1,
    error_code: int = 0,
) -> MetadataResponse:
    """An answer about one topic on two brokers."""
    return MetadataResponse(
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=n, host=f"h{n}", port=9092)
            for n in (1, 2)
        ],
        cluster_id="c",
        controller_id=1,
        topics=[
            MetadataResponse.MetadataResponseTopic(
                error_code=error_code,
                name=topic,
                topic_id=topic_id,
                partitions=[
                    MetadataResponse.MetadataResponsePartition(
                        error_code=0 if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                        partition_index=n,
                        leader_id=leader,
                        leader_epoch=epoch,
                        replica_nodes=[1, 2],
                        isr_nodes=[1],
                    )
                    for n in reversed(range(partitions))
                ],
            )
        ],
    )


def test_an_answer_fills_the_view() -> None:
    view = ClusterMetadata().with_response(answer(partitions=2), 50)
    assert view.leader(A0) == 1
    assert view.leader_epoch(A0) == 5
    assert view.partition_count("a") == 2
    assert view.topic_id("a") == ID_ONE
    assert view.topic_name(ID_ONE) == "a"
    assert view.partition_infos("a")[0] == PartitionInfo("a", 0, 1, (1, 2), (1,))
    assert view.updated_at_ms == 50
    assert str(view.nodes[2]) == "h2:9092 (node 2)"


def test_an_older_leader_epoch_changes_nothing() -> None:
    view = ClusterMetadata().with_response(answer(leader=1, epoch=5), 0)
    view = view.with_response(answer(leader=2, epoch=4), 0)
    assert view.leader(A0) == 1
    assert view.with_response(answer(leader=2, epoch=6), 0).leader(A0) == 2


def test_an_older_leader_epoch_is_believed_when_nobody_refutes_it() -> None:
    """A power loss can cost brokers what they told: who goes on asking for it asks for ever."""
    view = ClusterMetadata().with_response(answer(leader=1, epoch=5), 0)
    for _ in range(STALE_ANSWERS_MAX):
        view = view.with_response(answer(leader=2, epoch=4), 0)
        assert view.leader(A0) == 1
    refuted = view.with_response(answer(leader=1, epoch=5), 0)
    assert refuted.with_response(answer(leader=2, epoch=4), 0).leader(A0) == 1
    believed = view.with_response(answer(leader=2, epoch=4), 0)
    assert (believed.leader(A0), believed.leader_epoch(A0)) == (2, 4)


def test_a_topic_made_anew_is_another_topic() -> None:
    view = ClusterMetadata().with_response(answer(leader=1, epoch=5), 0)
    view = view.with_response(answer(leader=2, epoch=0, topic_id=ID_TWO), 0)
    assert view.leader(A0) == 2
    assert view.leader_epoch(A0) == 0


def test_other_topics_stay_unless_all_were_asked_for() -> None:
    view = ClusterMetadata().with_response(answer(topic="a"), 0)
    view = view.with_response(answer(topic="b"), 0)
    assert set(view.topics) == {"a", "b"}
    assert set(view.with_response(answer(topic="b"), 0, all_topics=True).topics) == {"b"}


def test_a_partition_without_a_leader_is_known_and_not_available() -> None:
    view = ClusterMetadata().with_response(answer(leader=-1), 0)
    assert view.leader(A0) is None
    topic = view.topic("a")
    assert topic is not None
    assert topic.available == ()


def test_a_topic_with_an_error_is_not_usable() -> None:
    view = ClusterMetadata().with_response(
        answer(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), 0
    )
    assert view.topic("a") is None
    assert view.topics["a"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert view.partition_count("a") is None


def test_a_leader_named_in_a_refusal_is_taken_if_it_is_newer() -> None:
    view = ClusterMetadata().with_response(answer(leader=1, epoch=5), 0)
    assert view.with_leader(A0, 2, 5, None) is view
    assert view.with_leader(A0, 9, 6, None) is view, "nobody knows where node 9 is"
    moved = view.with_leader(A0, 9, 6, Node(9, "h9", 9092))
    assert moved.leader(A0) == 9
    assert view.leader(A0) == 1


def test_backoff_doubles_up_to_its_bound_and_varies_around_it() -> None:
    middle = Backoff(100, 1_000, lambda: 0.5)
    assert [middle.delay_ms(n) for n in range(7)] == [0, 100, 200, 400, 800, 1_000, 1_000]
    assert Backoff(100, 1_000, lambda: 0.0).delay_ms(1) == 80
    assert Backoff(100, 1_000, lambda: 0.999).delay_ms(10_000) <= 1_200
    assert Backoff(0, 0, lambda: 0.5).delay_ms(3) == 0


def test_each_error_says_where_to_go_next() -> None:
    assert recovery_for_code(ErrorCode.NOT_LEADER_OR_FOLLOWER) is Recovery.REFRESH_METADATA
    assert recovery_for_code(ErrorCode.NOT_COORDINATOR) is Recovery.FIND_COORDINATOR
    assert recovery_for_code(ErrorCode.CONCURRENT_TRANSACTIONS) is Recovery.WAIT
    assert recovery_for_code(ErrorCode.TOPIC_AUTHORIZATION_FAILED) is Recovery.NONE
    assert recovery_for_code(0) is Recovery.NONE
    assert recovery_for(NotCoordinatorError()) is Recovery.FIND_COORDINATOR
    lost = BrokerConnectionError("lost")
    assert recovery_for(lost) is Recovery.REFRESH_METADATA
    assert recovery_for(lost, coordinator=True) is Recovery.FIND_COORDINATOR
    assert recovery_for(ConfigError("a", 1, "b")) is Recovery.NONE
