"""Refuses the parts of a request that another node must answer, and names that node.

The leader of a partition answers for its data, the coordinator for its groups and transactional
ids, any node for the rest. Fetch checks leaders itself, as its session may hold the partitions.
With one node, requests bypass this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onceflow.broker_lite.coordinators.coordinator_hash import coordinator_partition
from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.testing.request_parts import Part, error_answer, refuse_parts
from onceflow.broker_lite.topics import OFFSETS_TOPIC, TRANSACTION_TOPIC, Topic
from onceflow.sdk.protocol.api.fetch import FetchResponse
from onceflow.sdk.protocol.api.produce import ProduceResponse
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.schema import Request, Response

if TYPE_CHECKING:
    from onceflow.broker_lite.registry import Registration
    from onceflow.broker_lite.request_context import RequestContext
    from onceflow.broker_lite.services import Services
    from onceflow.broker_lite.testing.nodes.shared_placement import SharedPlacement

FETCH_KEY = 1

OF_LEADERS = frozenset({0, 2, 21, 23, 27, 61})
"""API keys that the leader of each partition answers; Fetch (1) checks leaders itself."""

OF_GROUPS = frozenset({8, 9, 11, 12, 13, 14, 15, 28, 42, 47, 68, 69})
"""API keys that the group's coordinator answers."""

OF_TRANSACTIONS = frozenset({22, 24, 25, 26, 65})
"""API keys that the transactional id's coordinator answers."""

LISTS = {16: ("groups", "group_id", OFFSETS_TOPIC),
         66: ("transaction_states", "transactional_id", TRANSACTION_TOPIC)}  # fmt: skip
"""API keys that list what a node coordinates: the answer's array, its id field, internal topic."""

LEADER_ENDPOINTS_FROM = {0: 10, 1: 16}
"""First version, by API key, whose answer names the leader and its address (KIP-951)."""


class Router:
    """Intercepts the requests to a broker with several nodes, before its handlers.

    Args:
        state: The broker.
        placement: Its nodes.
    """

    def __init__(self, state: Services, placement: SharedPlacement) -> None:
        self._state = state
        self._parked: dict[tuple[str, int], dict[Deferred[Any], Callable[[], None]]] = {}
        placement.on_moved.append(self._moved)

    def handle(
        self,
        registration: Registration,
        state: Services,
        context: RequestContext,
        request: Request,
        now_ms: int,
    ) -> object:
        """Call the handler for the parts that this node must answer, and refuse the rest."""
        api_key = request.api_key

        def run(part: Request = request) -> object:
            return registration.handler(state, context, part, now_ms)

        if api_key in OF_LEADERS:
            answer = refuse_parts(
                request,
                context.api_version,
                lambda part: self._is_led_elsewhere(context, part),
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                run,
            )
            return self.with_leaders(context, answer) if api_key == 0 else answer
        if api_key in OF_GROUPS or api_key in OF_TRANSACTIONS:
            return self._for_coordinator(context, request, run)
        answer = run()
        if api_key == FETCH_KEY:
            if isinstance(answer, Deferred):
                # This callback must run before the connection's, which sends the answer.
                answer.add_done_callback(lambda response: self.with_leaders(context, response))
            return self.with_leaders(context, answer)
        if api_key in LISTS and isinstance(answer, Response):
            array, name, topic = LISTS[api_key]
            listed = [
                each
                for each in getattr(answer, array)
                if self._coordinates(context, topic, getattr(each, name))
            ]
            setattr(answer, array, listed)
        return answer

    def with_leaders(self, context: RequestContext, answer: object) -> object:
        """Name the current leaders in a Produce or Fetch answer (KIP-951)."""
        if not isinstance(answer, ProduceResponse | FetchResponse):
            return answer
        if context.api_version < LEADER_ENDPOINTS_FROM[answer.api_key]:
            return answer
        told: set[int] = set()
        for topic in answer.responses:
            found = self._topic_of(topic)
            refused: list[Any] = (
                topic.partition_responses
                if isinstance(topic, ProduceResponse.TopicProduceResponse)
                else topic.partitions
            )
            for data in refused:
                if found is None or data.error_code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    continue
                index = data.index if isinstance(answer, ProduceResponse) else data.partition_index
                leader = self._state.placement.leader(found.name, index)
                if leader < 0:
                    continue
                told.add(leader)
                kind = (
                    ProduceResponse.LeaderIdAndEpoch
                    if isinstance(answer, ProduceResponse)
                    else FetchResponse.LeaderIdAndEpoch
                )
                data.current_leader = kind(
                    leader_id=leader, leader_epoch=found.partitions[index].leader_epoch
                )
        answer.node_endpoints = [
            self._endpoint(type(answer), context, each) for each in sorted(told)
        ]
        return answer

    # --- leaders

    def _is_led_elsewhere(self, context: RequestContext, part: Part) -> bool:
        topics = self._state.topics
        name = part.topic
        topic = topics.get(name) if isinstance(name, str) else None
        if topic is None and name is not None and not isinstance(name, str):
            topic = topics.get_by_id(name)
        if topic is None or part.partition is None:
            return False  # the handler refuses a topic that does not exist
        if not 0 <= part.partition < len(topic.partitions):
            return False
        return not self._state.placement.leads(
            context.connection.node_id, topic.name, part.partition
        )

    def _topic_of(self, answered: Any) -> Topic | None:
        name = getattr(answered, "name", "") or getattr(answered, "topic", "")
        topics = self._state.topics
        return topics.get(name) if name else topics.get_by_id(answered.topic_id)

    def _endpoint(
        self,
        answer: type[ProduceResponse] | type[FetchResponse],
        context: RequestContext,
        node_id: int,
    ) -> Any:
        host, port = self._state.advertised(context, node_id)
        rack = self._state.placement.nodes[node_id].rack
        return answer.NodeEndpoint(node_id=node_id, host=host, port=port, rack=rack)

    # --- coordinators

    def _coordinates(self, context: RequestContext, topic: str, key: str) -> bool:
        found = self._state.topics.get(topic)
        if found is None:
            return True  # the internal topic does not exist before the first FindCoordinator
        partition = coordinator_partition(key, len(found.partitions))
        return self._state.placement.leads(context.connection.node_id, topic, partition)

    def _for_coordinator(
        self, context: RequestContext, request: Request, run: Callable[..., object]
    ) -> object:
        of_groups = request.api_key in OF_GROUPS
        topic = OFFSETS_TOPIC if of_groups else TRANSACTION_TOPIC
        keys: list[str] = []

        def is_elsewhere(part: Part) -> bool:
            key = part.group_id if of_groups else part.transactional_id
            if not key:
                return False
            keys.append(key)
            return not self._coordinates(context, topic, key)

        answer = refuse_parts(
            request, context.api_version, is_elsewhere, ErrorCode.NOT_COORDINATOR, run
        )
        if isinstance(answer, Deferred) and keys:
            return self._park(context, request, topic, keys[0], answer)
        return answer

    def _park(
        self,
        context: RequestContext,
        request: Request,
        topic: str,
        key: str,
        inner: Deferred[Any],
    ) -> Deferred[Any]:
        """Answer a request that waits at a coordinator with an error when the coordinator moves."""
        found = self._state.topics.get(topic)
        if found is None:
            return inner
        place = (topic, coordinator_partition(key, len(found.partitions)))
        waiting = self._parked.setdefault(place, {})

        def forget() -> None:
            waiting.pop(outer, None)
            inner.disconnect()

        outer: Deferred[Any] = Deferred(forget)

        def give_up() -> None:
            inner.disconnect()
            outer.complete(error_answer(request, context.api_version, ErrorCode.NOT_COORDINATOR))

        def done(answer: Any) -> None:
            waiting.pop(outer, None)
            outer.complete(answer)

        waiting[outer] = give_up
        inner.add_done_callback(done)
        return outer

    def _moved(self, topic: Topic, partition: int, now_ms: int) -> None:
        for give_up in list(self._parked.pop((topic.name, partition), {}).values()):
            give_up()
        # Wake the fetches that wait at the old leader, so that they get its error.
        self._state.purgatory.wake((topic.topic_id, partition))
