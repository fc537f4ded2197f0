"""Applies the declared policy of a node to a record that failed.

This module never waits and makes no attempts: the task does, without holding up other tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from onceflow.processors.errors import (
    DeclarationError,
    DeserializationError,
    EventTimeError,
    ProcessingError,
    StateKeyError,
    TooManyDeadLettersError,
)
from onceflow.processors.figures import FunctionCounts
from onceflow.processors.frame import Encoded, Frame, Item
from onceflow.processors.graph.specs import FailurePolicy
from onceflow.processors.lanes import Lane
from onceflow.processors.policies import (
    DeadLetterMeter,
    OnError,
    ThrottledWarnings,
    brief,
    dead_letter_headers,
    place_in_code,
)
from onceflow.processors.state.store import Store
from onceflow.sdk.errors import MessageTooLargeError, RecordTooLargeError
from onceflow.sdk.model.consumer_record import ConsumerRecord

logger: logging.Logger = logging.getLogger("onceflow.processors")

Park = Callable[[Frame, Mapping[str, Store], Item, int, int], bool | None]
"""See ``ParkingWork.park``."""

_TOO_LARGE = (MessageTooLargeError, RecordTooLargeError)
_NEVER_RETRIED = (DeserializationError, StateKeyError, EventTimeError, DeclarationError)
"""Errors that the same record would get again."""


class Failures:
    """The policy of one node, with its counts.

    Args:
        name: Name of the node.
        policy: What was declared.
        dead_letters: Lane of the dead letters, or None.
        clock: Monotonic seconds, for the pace of warnings.

    Attributes:
        meter: Counts dead letters.
        counts: Whether ``good`` must be called for records that succeed.
        parks: Parks a record that is to be tried again; None where it holds up its partition.
        tally: What became of the calls of the node.
        is_parked: Whether records of a key are parked; None where none ever are.
    """

    __slots__ = (
        "_lane",
        "_name",
        "_policy",
        "_warnings",
        "counts",
        "is_parked",
        "meter",
        "parks",
        "tally",
    )

    def __init__(
        self,
        name: str,
        policy: FailurePolicy,
        dead_letters: Lane | None,
        clock: Callable[[], float],
    ) -> None:
        self._name = name
        self._policy = policy
        self._lane = dead_letters
        self.meter: DeadLetterMeter = DeadLetterMeter(policy.limits)
        self._warnings = ThrottledWarnings(logger.warning, clock)
        self.parks: Park | None = None
        self.is_parked: Callable[[Mapping[str, Store], bytes | None], bool] | None = None
        self.tally: FunctionCounts = FunctionCounts()
        self.counts: bool = policy.on_error is OnError.DEAD_LETTER

    def good(self, partition: int, count: int = 1) -> None:
        """Records succeeded."""
        self.meter.good(partition, count)

    def retry_delay_ms(self, record: ConsumerRecord, error: Exception, attempt: int) -> int | None:
        """Return the wait before the next attempt; None if there is none.

        Args:
            record: The record that failed.
            error: The error of the attempt.
            attempt: Number of the attempt, 1 for the first.
        """
        self.tally.failed += 1
        retries = self._policy.retries
        if (
            attempt > retries.count_max
            or not isinstance(error, retries.only)
            or isinstance(error, _NEVER_RETRIED)
        ):
            return None
        logger.info(
            "%s: attempt %d at %s-%d@%d failed: %s%s",
            self._name,
            attempt,
            record.topic,
            record.partition,
            record.offset,
            brief(error),
            place_in_code(error),
        )
        return retries.delay_ms(attempt)

    def give_up(self, record: ConsumerRecord, error: Exception, attempts: int) -> Encoded | None:
        """Apply the policy to a record after its last attempt.

        Returns:
            The dead letter; None when the record is skipped.

        Raises:
            ProcessingError: The policy is to stop, or dead letters exceed their limit.
        """
        where = f"{record.topic}-{record.partition}@{record.offset}"
        coordinates = (record.topic, record.partition, record.offset, attempts)
        name, cause = self._name, f"{brief(error)}{place_in_code(error)}"
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        policy = self._policy.on_error
        if policy is OnError.SKIP:
            self._warnings.note(error, f"{name}: skipped {where} after {tries}: {cause}")
            return None
        if policy is OnError.STOP or self._lane is None:
            raise ProcessingError(
                f"{name} failed at {where} after {tries}: {cause}. The record is "
                "not committed and comes again after a restart; to continue without it, declare "
                "dead_letter= or on_error=OnError.SKIP",
                *coordinates,
            ) from error
        exceeded = self.meter.bad(record.partition)
        if exceeded is not None:
            raise TooManyDeadLettersError(
                f"{name} stops at {where}: {exceeded}; the last failure: {cause}", *coordinates
            ) from error
        self._warnings.note(error, f"{name}: dead letter for {where} after {tries}: {cause}")
        # The result of a window or function is too large here too; what was read is kept whole.
        is_result = record.offset < 0 and isinstance(error, _TOO_LARGE)
        self.tally.dead_letters += 1
        return (
            self._lane,
            None if is_result else record.value,
            record.key,
            record.timestamp_ms,
            dead_letter_headers(record, error, attempts, name),
            None,
        )
