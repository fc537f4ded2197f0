"""Faults and a journal for tests of clients: lost answers, dropped connections, errors, delays.

A :class:`FaultInjector` stands between the dispatcher and the handlers of one broker. It decides
what happens to which request, in the order in which the rules were made; the broker itself is
untouched.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from onceflow.broker_lite.dispatch import CloseConnection, Registration, RequestContext
from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.testing.error_answers import error_answer
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.schema import Request, Response

if TYPE_CHECKING:
    from onceflow.broker_lite.broker import BrokerState

logger = logging.getLogger("onceflow.broker_lite.testing")

JOURNAL_ENTRIES_MAX = 100_000
"""Oldest entries go first."""

Condition = Callable[[Request, RequestContext], bool]


class Fault(enum.Enum):
    """What happens to a request that a rule is about."""

    DROP_REQUEST = "the connection is closed, nothing was done"
    DROP_ANSWER = "it is done, the connection is closed instead of an answer"
    ERROR = "nothing is done, an error code is answered"
    DELAY = "it is done at once, the answer comes later"
    HOLD = "it is done when the rule is released"


class JournalEntry(NamedTuple):
    """One request that the broker took.

    Attributes:
        now_ms: When, wall milliseconds.
        connection_id: On which connection.
        client_id: Who asked.
        api_version: Version of the request.
        request: The request.
        fault: What a rule did to it, None for nothing.
    """

    now_ms: int
    connection_id: int
    client_id: str | None
    api_version: int
    request: Request
    fault: Fault | None


@dataclass(slots=True, eq=False)
class FaultRule:
    """One rule; made by :meth:`FaultInjector.add`.

    Attributes:
        request_type: Requests it is about.
        fault: What happens to them.
        left: How many more it is about, None without end.
        error: Code for ERROR.
        delay_ms: Milliseconds for DELAY.
        condition: Which of the requests; None for each.
        hits: How many it met.
        held: How the requests go on that a HOLD rule holds.
    """

    request_type: type[Request]
    fault: Fault
    left: int | None
    error: ErrorCode
    delay_ms: int
    condition: Condition | None
    hits: int = 0
    held: list[Callable[[int], None]] = field(default_factory=list)


RunOnLoop = Callable[[Callable[["BrokerState", int], None]], None]


class FaultInjector:
    """Faults and journal of one broker; may be used from any thread.

    Args:
        run_on_loop: Runs ``function(state, now_ms)`` where the broker runs.

    Attributes:
        journal: Requests in the order in which they were taken, when recording.
        recording: Whether requests are noted; off by default.
    """

    def __init__(self, run_on_loop: RunOnLoop) -> None:
        self._run_on_loop = run_on_loop
        self.journal: deque[JournalEntry] = deque(maxlen=JOURNAL_ENTRIES_MAX)
        self.recording = False
        self._rules: list[FaultRule] = []

    def add(
        self,
        request_type: type[Request],
        fault: Fault,
        *,
        times: int | None = 1,
        error: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR,
        delay_ms: int = 0,
        condition: Condition | None = None,
    ) -> FaultRule:
        """Make a rule; the first that fits a request is applied.

        Args:
            request_type: Requests it is about.
            fault: What happens to them.
            times: How many of them, None for all.
            error: Code for ERROR.
            delay_ms: Milliseconds for DELAY.
            condition: Which of the requests: ``condition(request, context)``.
        """
        rule = FaultRule(request_type, fault, times, error, delay_ms, condition)
        self._rules.append(rule)
        return rule

    def release(self, rule: FaultRule) -> None:
        """End a rule; the requests that it holds are handled now."""

        def go_on(state: BrokerState, now_ms: int) -> None:
            rule.left = 0
            held, rule.held = rule.held, []
            for handle in held:
                handle(now_ms)

        self._run_on_loop(go_on)

    def clear(self) -> None:
        """End every rule; the requests that are held are handled now."""
        rules, self._rules = self._rules, []
        for rule in rules:
            self.release(rule)

    def requests(self, request_type: type[Request]) -> list[JournalEntry]:
        """Recorded requests of one type."""
        return [entry for entry in self.journal if type(entry.request) is request_type]

    def handle(
        self,
        registration: Registration,
        state: BrokerState,
        context: RequestContext,
        request: Request,
        now_ms: int,
    ) -> object:
        """Apply the first rule that fits, or call the handler."""
        rule = self._rule_for(request, context)
        if self.recording:
            self.journal.append(
                JournalEntry(
                    now_ms,
                    context.connection_id,
                    context.client_id,
                    context.api_version,
                    request,
                    rule.fault if rule is not None else None,
                )
            )

        def run(now_ms: int) -> object:
            return registration.handler(state, context, request, now_ms)

        if rule is None:
            return run(now_ms)
        logger.info("%s meets %s", type(request).__name__, rule.fault.name)
        if rule.fault is Fault.DROP_REQUEST:
            raise CloseConnection("a fault rule dropped the request")
        if rule.fault is Fault.ERROR:
            return error_answer(request, context.api_version, rule.error)
        if rule.fault is Fault.HOLD:
            return _held(rule, run)
        result = run(now_ms)
        if rule.fault is Fault.DROP_ANSWER:
            raise CloseConnection("a fault rule dropped the answer")
        return _delayed(state, result, now_ms + rule.delay_ms)

    def _rule_for(self, request: Request, context: RequestContext) -> FaultRule | None:
        for rule in self._rules:
            if (
                rule.left != 0
                and type(request) is rule.request_type
                and (rule.condition is None or rule.condition(request, context))
            ):
                rule.hits += 1
                if rule.left is not None:
                    rule.left -= 1
                return rule
        return None


def _pass_on(result: object, deferred: Deferred[Response]) -> None:
    """Complete ``deferred`` with what a handler gave, now or when that is complete."""
    if isinstance(result, Deferred):
        deferred.on_disconnect = result.disconnect
        result.add_done_callback(deferred.complete)
    elif isinstance(result, Response):
        deferred.complete(result)


def _delayed(state: BrokerState, result: object, at_ms: int) -> object:
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
