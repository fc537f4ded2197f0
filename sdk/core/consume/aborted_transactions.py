"""Finds the batches of a fetch answer that belong to aborted transactions (KIP-98).

A read_committed answer lists each aborted transaction in the returned range by producer id and
first offset. A producer may have several, with committed ones in between. So an entry ends with the
producer's next abort marker. Brokers sort the list differently, so its order is not used.
"""

from __future__ import annotations

from collections.abc import Iterable


class AbortedTransactions:
    """Tells, batch after batch of one partition's answer, which ones to hide."""

    __slots__ = ("_first_offsets",)

    def __init__(self, entries: Iterable[tuple[int, int]]) -> None:
        """Take the list of an answer.

        Args:
            entries: Pairs of producer id and first offset, in any order.
        """
        first_offsets: dict[int, list[int]] = {}
        for producer_id, first_offset in entries:
            first_offsets.setdefault(producer_id, []).append(first_offset)
        for offsets in first_offsets.values():
            offsets.sort(reverse=True)  # The earliest is last, where pop() is cheap.
        self._first_offsets = first_offsets

    def hides(self, producer_id: int, base_offset: int) -> bool:
        """Whether a transactional batch of records belongs to an aborted transaction.

        Args:
            producer_id: The batch's producer.
            base_offset: The batch's first offset.
        """
        pending = self._first_offsets.get(producer_id)
        return bool(pending) and pending[-1] <= base_offset  # type: ignore[index]

    def end_with_abort(self, producer_id: int, offset: int) -> None:
        """Note an abort marker: the producer's transaction ends here.

        A marker has no entry if its transaction wrote nothing to this partition. Then it
        must not end a later transaction of the same producer.

        Args:
            producer_id: Whose marker it is.
            offset: Offset of the marker.
        """
        pending = self._first_offsets.get(producer_id)
        if pending and pending[-1] <= offset:
            pending.pop()
