"""Faults for tests of clients: lost answers, dropped connections, errors, delays, a full disk.

A :class:`FaultInjector` stands between the dispatcher and the handlers of one broker, and applies
the first rule that selects a request. ``wire`` changes the bytes of answers, ``faulty_storage``
makes writes fail.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.registry import Registration
from onceflow.broker_lite.request_context import CloseConnection, RequestContext
from onceflow.broker_lite.services import Services
from onceflow.broker_lite.testing.fault_rules import (
    ANYTHING,
    Condition,
    Fault,
    FaultRule,
    make_rule,
)
from onceflow.broker_lite.testing.journal import Journal, JournalEntry, part_fits
from onceflow.broker_lite.testing.request_parts import (
    Part,
    error_answer,
    merged,
    parts,
    refuse_parts,
)
from onceflow.broker_lite.testing.wire import WireWatch
from onceflow.sdk.protocol.api.fetch import FetchRequest
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.schema import Request, Response

if TYPE_CHECKING:
    from onceflow.broker_lite.dispatch import Interceptor

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.testing")

RULES_MAX = 10_000
"""Most rules at the same time."""

RunOnLoop = Callable[[Callable[[Services, int], None]], None]


class FaultInjector:
    """Faults and journal of one broker; it may be used from any thread.

    Args:
        run_on_loop: Runs ``function(state, now_ms)`` on the broker's loop, if the broker runs.
        clock: Wall milliseconds of the broker.
        wire: Faults of this broker's connections.

    Attributes:
        journal: Requests with their answers, in the order of arrival.
        router: With several nodes, refuses requests that came to the wrong one.
    """

    def __init__(self, run_on_loop: RunOnLoop, clock: Callable[[], int], wire: WireWatch) -> None:
        self._run_on_loop = run_on_loop
        self._clock = clock
        self._wire = wire
        self.journal: Journal = Journal()
        self.router: Interceptor | None = None
        wire.refusal = self.refuses
        self._rules: list[FaultRule] = []

    @property
    def recording(self) -> bool:
        """Whether the journal records requests; off by default."""
        return self.journal.recording

    @recording.setter
    def recording(self, recording: bool) -> None:
        self.journal.recording = recording

    @property
    def rules(self) -> list[FaultRule]:
        """All rules that were not removed, in the order in which they were made."""
        return list(self._rules)

    def add(
        self,
        key: type[Request] | str | int | None,
        fault: Fault,
        *,
        times: int | None = 1,
        error: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR,
        delay_ms: int = 0,
        condition: Condition | None = None,
        **only: Any,
    ) -> FaultRule:
        """Make a rule; the first rule that selects a request applies to it.

        Args:
            key: Kind of requests: class, name (``"Produce"``) or API key; None for all.
            fault: What happens to them.
            times: How many requests, None for no limit.
            error: Code for ERROR.
            delay_ms: Milliseconds for DELAY.
            condition: Selects among the requests: ``condition(request, context)``.
            only: ``client_id``, ``topic``, ``partition``, ``group_id``, ``transactional_id`` or
                ``node_id`` that it is about; ``cut_bytes``, ``bytes_per_second`` and
                ``disk_error`` of the faults with these names.

        Raises:
            ConfigError: A value is out of bounds, or there are too many rules.
        """
        rule = make_rule(
            key, fault, times, error=error, delay_ms=delay_ms, condition=condition, **only
        )
        self.put(rule)
        return rule

    def put(self, rule: FaultRule) -> None:
        """Add a rule.

        Args:
            rule: The rule.

        Raises:
            RuntimeError: There are too many.
        """
        if len(self._rules) >= RULES_MAX:
            raise RuntimeError(f"there are {RULES_MAX} fault rules: clear some first")
        self._rules.append(rule)
        if rule.fault is Fault.PARTITION:
            self._run_on_loop(lambda state, now_ms: self._wire.isolate(rule))

    def release(self, rule: FaultRule) -> None:
        """End a rule and handle the requests that it holds.

        Args:
            rule: The rule.
        """

        rule.left = 0

        def go_on(state: Services, now_ms: int) -> None:
            self._wire.rejoin(rule)
            held, rule.held = rule.held, []
            for handle in held:
                handle(now_ms)

        self._run_on_loop(go_on)

    def remove(self, rule: FaultRule) -> None:
        """End a rule and drop it from the list.

        Args:
            rule: The rule.
        """
        if rule in self._rules:
            self._rules.remove(rule)
        self.release(rule)

    def clear(self) -> None:
        """End all rules and handle the requests that they hold."""
        rules, self._rules = self._rules, []
        for rule in rules:
            self.release(rule)

    def requests(self, request_type: type[Request]) -> list[JournalEntry]:
        """Recorded requests of one type.

        Args:
            request_type: The class of the message.
        """
        return self.journal.select(request_type)

    def forget_held(self) -> None:
        """Drop held requests, as the broker has stopped."""
        for rule in self._rules:
            rule.held.clear()

    # --- connections and writes

    def refuses(self, node_id: int) -> bool:
        """Whether to reset a new connection.

        Args:
            node_id: Node of the listener.
        """
        for rule in self._rules:
            if rule.fault is Fault.REFUSE and rule.left != 0 and rule.node_id in (None, node_id):
                rule.hit()
                return True
        return False

    def check_write(self, topic: str | None, partition: int | None) -> None:
        """Raise if a rule makes this write to the data folder fail.

        Args:
            topic: Topic of the file; None for a file of no topic.
            partition: Its partition, None likewise.

        Raises:
            OSError: A rule makes the write fail.
        """
        written = Part(topic, partition)
        for rule in self._rules:
            if rule.fault is Fault.DISK_ERROR and rule.left != 0 and part_fits(rule.only, written):
                rule.hit()
                raise OSError(rule.errno, "a fault rule made the write fail")

    # --- requests

    def handle(
        self,
        registration: Registration,
        state: Services,
        context: RequestContext,
        request: Request,
        now_ms: int,
    ) -> object:
        """Apply the first rule that selects the request, or call the handler; record it.

        Args:
            registration: The handler and what is served of it.
            state: State of the broker.
            context: Connection and header of the request.
            request: The request.
            now_ms: The present time.
        """
        rule = self._rule_for(state, request, context) if self._rules else None
        if not self.journal.recording:
            return self._apply(rule, registration, state, context, request, now_ms)
        entry = JournalEntry(
            self.journal.next_number(),
            now_ms,
            context.connection_id,
            context.client_id,
            context.principal,
            context.connection.node_id,
            context.api_version,
            request,
            rule.fault if rule is not None else None,
            topics=_names_by_id(state, request, context.api_version),
        )
        self.journal.add(entry)
        result = self._apply(rule, registration, state, context, request, now_ms)
        if isinstance(result, Deferred):
            result.add_done_callback(
                lambda answer: self.journal.answered(entry, answer, self._clock())
            )
        else:
            assert result is None or isinstance(result, Response)
            self.journal.answered(entry, result, now_ms)
        return result

    def _apply(
        self,
        rule: FaultRule | None,
        registration: Registration,
        state: Services,
        context: RequestContext,
        request: Request,
        now_ms: int,
    ) -> object:
        def run(now_ms: int, part: Request = request) -> object:
            if self.router is not None:
                return self.router.handle(registration, state, context, part, now_ms)
            return registration.handler(state, context, part, now_ms)

        if rule is None:
            return run(now_ms)
        logger.info("%s meets %s", type(request).__name__, rule.fault.name)
        match rule.fault:
            case Fault.DROP_REQUEST:
                raise CloseConnection("a fault rule dropped the request")
            case Fault.ERROR:
                return _refuse(rule, state, context, request, now_ms, run)
            case Fault.HOLD:
                return _held(rule, run)
            case Fault.PARTITION:
                self._wire.isolate_connection(context.connection_id, rule)
                return _held(rule, run)
        result = run(now_ms)
        if rule.fault is Fault.DROP_ANSWER:
            raise CloseConnection("a fault rule dropped the answer")
        if rule.fault is Fault.DELAY:
            return _delayed(state, result, now_ms + rule.delay_ms)
        self._wire.shape(context, rule)
        return result

    def _rule_for(
        self, state: Services, request: Request, context: RequestContext
    ) -> FaultRule | None:
        for rule in self._rules:
            if (
                rule.left != 0
                and rule.fault is not Fault.REFUSE
                and rule.fault is not Fault.DISK_ERROR
                and (rule.request_type is None or type(request) is rule.request_type)
                and rule.client_id in (None, context.client_id)
                and rule.node_id in (None, context.connection.node_id)
                and (rule.only == ANYTHING or _named(rule, state, request, context))
                and rule.fits(request, context)
            ):
                rule.hit()
                return rule
        return None


def _named(rule: FaultRule, state: Services, request: Request, context: RequestContext) -> bool:
    return any(
        part_fits(rule.only, part) for part in _all_parts(state, request, context.api_version)
    )


def _all_parts(state: Services, request: Request, api_version: int) -> list[Part]:
    """Return the parts of a request and of its fetch session, with topic names."""
    named = [_by_name(state, part) for part in parts(request, api_version)]
    if isinstance(request, FetchRequest):
        kept = state.fetch_sessions.partitions(request.session_id)
        named += [_by_name(state, Part(name, partition)) for name, partition in kept]
    return named


def _names_by_id(state: Services, request: Request, api_version: int) -> dict[uuid.UUID, str]:
    """Return the present names of the topics that a request names by id."""
    ids = {part.topic for part in parts(request, api_version)}
    found = {}
    for topic_id in ids:
        topic = state.topics.get_by_id(topic_id) if isinstance(topic_id, uuid.UUID) else None
        if topic is not None:
            found[topic.topic_id] = topic.name
    return found


def _by_name(state: Services, part: Part) -> Part:
    if isinstance(part.topic, uuid.UUID):
        topic = state.topics.get_by_id(part.topic)
        return part._replace(topic=None if topic is None else topic.name)
    return part


# --- what a rule does


def _refuse(
    rule: FaultRule,
    state: Services,
    context: RequestContext,
    request: Request,
    now_ms: int,
    run: Callable[..., object],
) -> object:
    """Answer the selected parts with an error, and execute the rest."""
    version = context.api_version
    if rule.only.topic is None and rule.only.partition is None:
        return error_answer(request, version, rule.error)
    if isinstance(request, FetchRequest):
        return _refuse_fetch(rule, state, context, request, now_ms, run)
    return refuse_parts(
        request,
        version,
        lambda part: part_fits(rule.only, _by_name(state, part)),
        rule.error,
        lambda rest: run(now_ms, rest),
    )


def _refuse_fetch(
    rule: FaultRule,
    state: Services,
    context: RequestContext,
    request: FetchRequest,
    now_ms: int,
    run: Callable[..., object],
) -> object:
    """Do the same for Fetch, whose partitions may be held by its session."""
    version = context.api_version
    keys = [(part.topic, part.partition) for part in parts(request, version)]
    keys += state.fetch_sessions.partitions(request.session_id)
    asked: dict[Any, list[int]] = {}
    for name, partition in dict.fromkeys(keys):
        part = _by_name(state, Part(name, partition))
        if name is not None and partition is not None and part_fits(rule.only, part):
            asked.setdefault(name, []).append(partition)
    topics = [
        FetchRequest.FetchTopic(
            **{"topic_id" if isinstance(name, uuid.UUID) else "topic": name},
            partitions=[
                FetchRequest.FetchPartition(
                    partition=partition, fetch_offset=0, partition_max_bytes=0
                )
                for partition in partitions
            ],
        )
        for name, partitions in asked.items()
    ]
    errors = error_answer(
        FetchRequest(topics=topics, max_wait_ms=0, min_bytes=0), version, rule.error
    )
    # Answer without waiting for the rest, so that the client gets the error now.
    max_wait_ms, request.max_wait_ms = request.max_wait_ms, 0
    answer = run(now_ms)
    request.max_wait_ms = max_wait_ms
    return merged(answer, errors, request.api_key, version)


def _pass_on(result: object, deferred: Deferred[Response]) -> None:
    """Complete ``deferred`` with a handler's answer, at once or when that is complete."""
    if isinstance(result, Deferred):
        deferred.on_disconnect = result.disconnect
        result.add_done_callback(deferred.complete)
    elif isinstance(result, Response):
        deferred.complete(result)


def _delayed(state: Services, result: object, at_ms: int) -> object:
    if result is None:
        return None
    deferred: Deferred[Response] = Deferred()
    timer = state.timers.schedule(at_ms, lambda now_ms: _pass_on(result, deferred))
    deferred.on_disconnect = timer.cancel
    return deferred


def _held(rule: FaultRule, run: Callable[[int], object]) -> Deferred[Response]:
    deferred: Deferred[Response] = Deferred()

    def handle(now_ms: int) -> None:
        if not deferred.completed:
            _pass_on(run(now_ms), deferred)

    rule.held.append(handle)
    return deferred
