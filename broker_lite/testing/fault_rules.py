"""Fault rules: which requests a rule selects, how many, and what happens to them.

A rule is checked when it is made; ``faults`` applies it.
"""

from __future__ import annotations

import enum
import errno
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from onceflow.broker_lite.request_context import RequestContext
from onceflow.broker_lite.testing.request_parts import LEVELS, Part
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.schema import Request

Condition = Callable[[Request, RequestContext], bool]

DELAY_MS_MAX = 24 * 60 * 60 * 1000
"""Longest delay of one rule."""


class Fault(enum.Enum):
    """What happens to a selected request."""

    DROP_REQUEST = "the connection is closed, nothing was done"
    DROP_ANSWER = "it is done, the connection is closed instead of an answer"
    ERROR = "nothing is done, an error code is answered"
    DELAY = "it is done at once, the answer comes later"
    HOLD = "it is done when the rule is released"
    CUT_ANSWER = "it is done, the connection is closed after the first bytes of the answer"
    SLOW_ANSWER = "it is done, the answer comes in small pieces"
    PARTITION = "nothing passes in either direction until the rule is released"
    REFUSE = "a new connection is reset as soon as it is made"
    DISK_ERROR = "a write to the data folder fails"


ON_REQUESTS = frozenset(Fault) - {Fault.REFUSE, Fault.DISK_ERROR}
"""Faults of requests; the others are faults of connections or writes."""

DISK_ERRORS = ("ENOSPC", "EIO", "EROFS", "EDQUOT")
"""Disk errors that a rule may raise."""

ANYTHING = Part()
"""The part of a rule that selects by no name."""

_numbers = itertools.count(1)


@dataclass(slots=True, eq=False)
class FaultRule:
    """One rule; :meth:`FaultInjector.add` makes it.

    Attributes:
        request_type: Kind of the selected requests, None for every kind.
        fault: What happens to them.
        left: How many more requests it applies to, None for no limit.
        error: Code for ERROR.
        delay_ms: Milliseconds for DELAY.
        condition: Selects among the requests; None selects all.
        only: Topic, partition, group and transactional id that the request must name; of a
            request with several partitions ERROR meets only those.
        client_id: Client whose requests are selected; None for all.
        node_id: Node whose requests are selected; None for all.
        cut_bytes: Bytes of the answer that are sent, for CUT_ANSWER.
        bytes_per_second: Speed of SLOW_ANSWER.
        disk_error: Name of the error for DISK_ERROR.
        rule_id: Unique in this process.
        hits: How many requests it was applied to.
        held: Callbacks that continue the requests that a HOLD or PARTITION rule holds.
    """

    request_type: type[Request] | None
    fault: Fault
    left: int | None
    error: ErrorCode = ErrorCode.UNKNOWN_SERVER_ERROR
    delay_ms: int = 0
    condition: Condition | None = None
    only: Part = ANYTHING
    client_id: str | None = None
    node_id: int | None = None
    cut_bytes: int = 0
    bytes_per_second: int = 0
    disk_error: str = "ENOSPC"
    rule_id: int = field(default_factory=lambda: next(_numbers))
    hits: int = 0
    held: list[Callable[[int], None]] = field(default_factory=list)

    def fits(self, request: Request, context: RequestContext) -> bool:
        """Whether the condition is met, or there is none.

        Args:
            request: The request.
            context: Connection and header of the request.

        Raises:
            RuntimeError: The condition raised SystemExit or KeyboardInterrupt.
        """
        try:
            return self.condition is None or self.condition(request, context)
        except (KeyboardInterrupt, SystemExit) as error:
            raise RuntimeError(f"a condition of {self.fault.name} raised {error!r}") from error

    def hit(self) -> None:
        """Count one more request."""
        self.hits += 1
        if self.left is not None:
            self.left -= 1

    @property
    def errno(self) -> int:
        """The error number for DISK_ERROR."""
        return int(getattr(errno, self.disk_error))

    def describe(self) -> dict[str, object]:
        """Return the rule as plain values, without fields that are not set."""
        shown: dict[str, object] = {
            "id": self.rule_id,
            "fault": self.fault.name.lower(),
            "hits": self.hits,
            "times": self.left,
        }
        if self.request_type is not None:
            shown["key"] = self.request_type.__name__.removesuffix("Request")
        named = {**self.only._asdict(), "client_id": self.client_id, "node_id": self.node_id}
        shown.update((name, value) for name, value in named.items() if value is not None)
        of_fault = {
            Fault.ERROR: ("error", self.error.name),
            Fault.DELAY: ("delay_ms", self.delay_ms),
            Fault.CUT_ANSWER: ("cut_bytes", self.cut_bytes),
            Fault.SLOW_ANSWER: ("bytes_per_second", self.bytes_per_second),
            Fault.DISK_ERROR: ("disk_error", self.disk_error),
        }
        if self.fault in of_fault:
            name, value = of_fault[self.fault]
            shown[name] = value
        if self.held:
            shown["holds"] = len(self.held)
        return shown


def request_type_of(key: type[Request] | str | int | None) -> type[Request] | None:
    """Return a request class from the class, its name without "Request", or its API key.

    Raises:
        ConfigError: The request is unknown.
    """
    if key is None or isinstance(key, type):
        return key
    for api_key, entry in API.items():
        if key in (api_key, entry.request_type.__name__.removesuffix("Request")):
            return entry.request_type
    raise ConfigError("key", key, "give a request's name such as Produce, or its api key")


def make_rule(
    key: type[Request] | str | int | None, fault: Fault, times: int | None, **options: Any
) -> FaultRule:
    """Check and make a rule.

    Args:
        key: Kind of the selected requests.
        fault: What happens to them.
        times: How many requests, None for no limit.
        options: Fields of :class:`FaultRule`, and those of its ``only`` by name.

    Raises:
        ConfigError: A value is out of bounds, or has no effect for this fault.
    """
    request_type = request_type_of(key)
    only = Part(**{name: options.pop(name) for name in Part._fields if name in options})
    rule = FaultRule(request_type, fault, times, only=only, **options)
    if times is not None and times < 1:
        raise ConfigError("times", times, "give a number of at least 1, or none for all")
    if not 0 <= rule.delay_ms <= DELAY_MS_MAX:
        raise ConfigError("delay_ms", rule.delay_ms, f"give 0 to {DELAY_MS_MAX} milliseconds")
    if rule.cut_bytes < 0:
        raise ConfigError("cut_bytes", rule.cut_bytes, "give the bytes to send, 0 for none")
    if fault is Fault.SLOW_ANSWER and rule.bytes_per_second < 1:
        raise ConfigError("bytes_per_second", rule.bytes_per_second, "give at least 1")
    if rule.disk_error not in DISK_ERRORS:
        raise ConfigError("disk_error", rule.disk_error, f"give one of {', '.join(DISK_ERRORS)}")
    if fault not in ON_REQUESTS and (request_type is not None or rule.client_id is not None):
        raise ConfigError(
            "fault", fault.name.lower(), "it is not about requests: leave out key and client_id"
        )
    if fault is Fault.PARTITION:
        rule.left = None  # It ends when it is released, not after a number of requests.
        if request_type is not None or only != ANYTHING or rule.condition is not None:
            raise ConfigError("fault", "partition", "it is about client_id and node_id only")
    names_partitions = only.topic is not None or only.partition is not None
    if request_type is not None and names_partitions and request_type.api_key not in LEVELS:
        raise ConfigError(
            "topic", only.topic, f"{request_type.__name__} names no topics: leave it out"
        )
    return rule
