"""How long to wait before a retry, and where a failed request goes next.

Randomness is an argument. This module does not retry anything itself and holds no clock.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from onceflow.sdk.errors import KafkaError
from onceflow.sdk.protocol.error_codes import ErrorCode, is_retriable

JITTER = 0.2
"""Waits vary by this share in both directions, so that clients do not move in step (KIP-580)."""

CONCURRENT_FIRST_MS = 2
CONCURRENT_LONGEST_MS = 20
"""Waits while the last transaction's markers are being written: milliseconds on a healthy broker,
so Kafka's ``retry.backoff.ms`` of 100 would be most of a transaction's time."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential waits with jitter (KIP-580).

    Attributes:
        first_ms: Wait before the first retry.
        longest_ms: Upper bound of the wait, before jitter.
        random: Source of numbers in [0, 1).
    """

    first_ms: int
    longest_ms: int
    random: Callable[[], float]

    def delay_ms(self, failure_count: int) -> int:
        """Wait after so many failures in a row.

        Args:
            failure_count: 1 after the first failure.

        Returns:
            Milliseconds; 0 only when the first wait is 0.
        """
        if failure_count <= 0 or self.first_ms == 0:
            return 0
        plain = min(self.first_ms << min(failure_count - 1, 30), self.longest_ms)
        return max(1, round(plain * (1 - JITTER + 2 * JITTER * self.random())))


class Recovery(enum.Enum):
    """What to do before a failed request may be sent again."""

    NONE = "give up: the answer will not change"
    WAIT = "wait, then ask the same broker"
    REFRESH_METADATA = "learn the leaders anew, then ask"
    FIND_COORDINATOR = "find the coordinator anew, then ask"


_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
_COORDINATOR = frozenset({ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR})
_WAIT = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.STALE_MEMBER_EPOCH,  # The next heartbeat brings the epoch that is asked for.
    }
)

_NEEDS_THE_CALLER = frozenset({ErrorCode.REBALANCE_IN_PROGRESS})
"""Retriable by the application alone: only its polls bring a rebalance to its end."""


def recovery_for_code(code: int) -> Recovery:
    """Return how to recover from an error code of a broker.

    Args:
        code: The code; 0 (no error) asks for nothing.

    Returns:
        The way to go on; NONE for codes that no repetition by this client mends.
    """
    if not code or code in _NEEDS_THE_CALLER:
        return Recovery.NONE
    if code in _METADATA:
        return Recovery.REFRESH_METADATA
    if code in _COORDINATOR:
        return Recovery.FIND_COORDINATOR
    if code in _WAIT or is_retriable(code):
        return Recovery.WAIT
    return Recovery.NONE


def recovery_for(error: BaseException, *, coordinator: bool = False) -> Recovery:
    """Return how to recover from an exception.

    Args:
        error: What was raised instead of an answer, or made from an error code.
        coordinator: Whether a coordinator was asked: a broken connection then means that it may
            have moved.

    Returns:
        The way to go on.
    """
    code = getattr(error, "code", None)
    if isinstance(code, int):
        return recovery_for_code(code)
    if isinstance(error, KafkaError) and error.retriable:
        return Recovery.FIND_COORDINATOR if coordinator else Recovery.REFRESH_METADATA
    return Recovery.NONE
