"""Deliveries of the blocking producer: the outcome of records, and how a thread waits for it.

One handle is made for each record, so this module may be compiled (see ``tools/build_backend.py``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from onceflow.sdk.core.produce.batch import (
    DeliveryGroup,
    DeliveryHandle,
    HandleMaker,
    ProducerBatch,
)
from onceflow.sdk.errors import RequestTimedOutError
from onceflow.sdk.model.partitions import RecordMetadata
from onceflow.sdk.sync.portal import check_outside

LONGEST_WAIT_S = threading.TIMEOUT_MAX
"""Longest wait for a lock; a record's outcome is known far earlier."""


class Delivery(DeliveryHandle):
    """The fate of one record."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement.

        Args:
            timeout: Seconds; None waits as long as ``delivery_timeout_ms`` lets it take.

        Returns:
            Where the record was stored.

        Raises:
            RequestTimedOutError: The timeout passed; the record is still on its way.
            IllegalStateError: Called within a callback of a producer, it would wait for itself.
            KafkaError: Why it was not stored.
        """
        if not self._batch.done:
            check_outside("producer")
        self._mark_seen()
        if not self._batch.done and not _wait_for((self._batch,), timeout):
            self._mark_unseen()
            raise RequestTimedOutError(f"the record was not acknowledged within {timeout} s")
        return self._metadata()


class DeliveryMaker(HandleMaker[Delivery]):
    """Makes the handles of the blocking producer."""

    def make(self, batch: ProducerBatch, index: int, timestamp_ms: int) -> Delivery:
        """The handle of a record; see ``HandleMaker``."""
        return Delivery(batch, index, timestamp_ms)


class Deliveries(DeliveryGroup):
    """The fate of the records of one ``send_many``."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> list[RecordMetadata]:
        """Wait for every acknowledgement.

        Args:
            timeout: Seconds; None waits as long as ``delivery_timeout_ms`` lets it take.

        Returns:
            Where each record was stored, in the order of the call.

        Raises:
            RequestTimedOutError: The timeout passed.
            IllegalStateError: Called within a callback of a producer, it would wait for itself.
            KafkaError: Why the first of the failed ones was not stored; ``exceptions`` has all.
        """
        batches = tuple(self.batches())
        if not all(batch.done for batch in batches):
            check_outside("producer")
        self._mark_seen()
        if not _wait_for(batches, timeout):
            raise RequestTimedOutError(f"not every record was acknowledged within {timeout} s")
        return self._metadata()


def _wait_for(batches: Iterable[ProducerBatch], timeout: float | None) -> bool:
    deadline = None if timeout is None else time.monotonic() + timeout
    for batch in batches:
        if batch.done:
            continue
        # A lock acquired twice: the second acquire ends with the outcome. An Event is a Condition
        # around such a lock and would slow each wait.
        settled = threading.Lock()
        settled.acquire()
        batch.add_done_callback(settled.release)
        left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        if not settled.acquire(timeout=min(left, LONGEST_WAIT_S)):
            return False
    return True


for _kind, _text in (  # Compiled classes lose their texts.
    (Delivery, "The fate of one record."),
    (Deliveries, "The fate of the records of one ``send_many``."),
):
    _kind.__doc__ = _text
