"""Faults for tests of clients: lost answers, dropped connections, errors, delays, a full disk.

A :class:`FaultInjector` stands between the dispatcher and the handlers of one broker. It decides
what happens to which request, in the order in which the rules were made; the broker itself is
untouched. What happens to bytes of answers is done by ``wire``, to writes by ``faulty_storage``.
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
"""Most rules at a time."""

RunOnLoop = Callable[[Callable[[Services, int], None]], None]


class FaultInjector:
    """Faults and journal of one broker; may be used from any thread.

    Args:
        run_on_loop: Runs ``function(state, now_ms)`` where the broker runs, if it does.
        clock: Wall milliseconds of the broker.
        wire: What is done to the bytes of this broker's connections.

    Attributes:
        journal: Requests with their answers, in the order in which they were taken.
        router: Stands between the rules and the handlers: refuses what came to the wrong one of
            several nodes.
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
        """Whether requests are noted in the journal; off by default."""
        return self.journal.recording

    @recording.setter
    def recording(self, recording: bool) -> None:
        self.journal.recording = recording

    @property
    def rules(self) -> list[FaultRule]:
        """Every rule that was made and not cleared, with what it did, in order."""
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
        """Make a rule; the first that fits a request is applied.

        Args:
            key: Requests it is about: their class, name (``"Produce"``) or api key; None for all.
            fault: What happens to them.
            times: How many of them, None for all.
            error: Code for ERROR.
            delay_ms: Milliseconds for DELAY.
            condition: Which of the requests: ``condition(request, context)``.
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
        """Take in a rule that was made elsewhere.

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
        """End a rule; the requests that it holds are handled now.

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
        """End a rule and forget what it did.

        Args:
            rule: The rule.
        """
        if rule in self._rules:
            self._rules.remove(rule)
        self.release(rule)

    def clear(self) -> None:
        """End every rule; the requests that are held are handled now."""
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
        """The broker went down: what it held can no longer go on."""
        for rule in self._rules:
            rule.held.clear()

    # --- connections and writes

    def refuses(self, node_id: int) -> bool:
        """Whether a new connection is to be reset.

        Args:
            node_id: The node whose listener it came to.
        """
        for rule in self._rules:
            if rule.fault is Fault.REFUSE and rule.left != 0 and rule.node_id in (None, node_id):
                rule.hit()
                return True
        return False

    def check_write(self, topic: str | None, partition: int | None) -> None:
        """Let a write to the data folder fail.

        Args:
            topic: Topic that is written; None for what belongs to none.
            partition: Its partition, None likewise.

        Raises:
            OSError: A rule says so.
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
        """Apply the first rule that fits, or call the handler; note both in the journal.

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
    """What a request is about, with topics by name, and what its fetch session keeps."""
    named = [_by_name(state, part) for part in parts(request, api_version)]
    if isinstance(request, FetchRequest):
        kept = state.fetch_sessions.partitions(request.session_id)
        named += [_by_name(state, Part(name, partition)) for name, partition in kept]
    return named


def _names_by_id(state: Services, request: Request, api_version: int) -> dict[uuid.UUID, str]:
    """Names of the topics that a request names by id, as they are now."""
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
    """Answer an error for what the rule is about, and do the rest."""
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
    """The same for Fetch, whose partitions may stand in a session: nothing is done there anyway."""
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
    # The rest is not waited for: the client is to learn of the error now.
    max_wait_ms, request.max_wait_ms = request.max_wait_ms, 0
    answer = run(now_ms)
    request.max_wait_ms = max_wait_ms
    return merged(answer, errors, request.api_key, version)


def _pass_on(result: object, deferred: Deferred[Response]) -> None:
    """Complete ``deferred`` with what a handler gave, now or when that is complete."""
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
