"""The client's machine of the consumer protocol beside the broker's coordinator, without sockets.

A `Client` is driver and application of one machine: it carries out steps against the bench, may
lose answers, and confirms events when it polls. What it works on is what its application knows.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from coordinator_bench import Bench

from onceflow.broker_lite.broker import BrokerState
from onceflow.broker_lite.handlers.consumer_groups import consumer_group_heartbeat
from onceflow.broker_lite.request_context import RequestContext
from onceflow.sdk.core.group.consumer_member import ConsumerMember
from onceflow.sdk.core.group.steps import (
    Exchange,
    FindCoordinator,
    GroupSettings,
    NameTopics,
    RebalanceEvent,
    Wait,
)
from onceflow.sdk.errors import BrokerConnectionError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.api.consumer_groups import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)


def ask(bench: Bench, request: ConsumerGroupHeartbeatRequest) -> ConsumerGroupHeartbeatResponse:
    """The coordinator's answer, through the wire's messages."""
    state = SimpleNamespace(
        authorizer=None, groups=bench.groups, features=SimpleNamespace(level=lambda name: 1)
    )
    context = SimpleNamespace(client_id="c", client_host="/127.0.0.1", api_version=1)
    sent, _ = ConsumerGroupHeartbeatRequest.decode(request.encode(1), 1)
    answer = consumer_group_heartbeat(
        cast("BrokerState", state), cast("RequestContext", context), sent, bench.now_ms
    )
    heard, _ = ConsumerGroupHeartbeatResponse.decode(answer.encode(1), 1)
    return heard


class Client:
    """One member.

    Attributes:
        working_on: Partitions that the application may touch.
        told: Every event that it heard.
    """

    def __init__(
        self, bench: Bench, member_id: str, *topics: str, instance: str | None = None
    ) -> None:
        self.bench = bench
        self.member = ConsumerMember(
            GroupSettings("g", group_instance_id=instance, member_id=member_id)
        )
        self.working_on: frozenset[TopicPartition] = frozenset()
        self.told: list[RebalanceEvent] = []
        self.sent: list[ConsumerGroupHeartbeatRequest] = []
        self.member.subscribe(frozenset(topics))

    def poll(self) -> None:
        """The application polls and confirms what it is told."""
        self.member.poll_started(self.bench.now_ms)
        while (event := self.member.next_event()) is not None:
            self.told.append(event)
            self.working_on = event.assignment
            self.member.confirm_event(event)
        self.member.poll_ended(self.bench.now_ms)

    def drive(self, *, lose_answer: bool = False, lose_request: bool = False) -> bool:
        """One step; False when there is nothing to do."""
        step = self.member.next_step(self.bench.now_ms)
        if isinstance(step, FindCoordinator):
            self.member.on_coordinator()
        elif isinstance(step, NameTopics):
            found = {t: self.bench.topics.get_by_id(t) for t in step.topic_ids}
            names = {t: topic.name for t, topic in found.items() if topic is not None}
            self.member.on_topic_names(names, self.bench.now_ms)
        elif isinstance(step, Exchange):
            assert isinstance(step.request, ConsumerGroupHeartbeatRequest)
            self.sent.append(step.request)
            answer = None if lose_request else ask(self.bench, step.request)
            if answer is None or lose_answer:
                self.member.on_failure(BrokerConnectionError("lost"), self.bench.now_ms)
            else:
                self.member.on_response(answer, self.bench.now_ms)
        else:
            assert isinstance(step, Wait)
            return False
        return True

    def run(self) -> None:
        """Poll and drive until nothing is left to do now."""
        for _ in range(30):
            self.poll()
            if not self.drive():
                return
        raise AssertionError("the machine does not come to rest")

    def numbers(self) -> list[int]:
        """Partition numbers, where one topic is read."""
        return sorted(partition.partition for partition in self.working_on)
