"""Producer ids that are unique across restarts, by reserving blocks of ids durably.

A block of ids is stored as used before its first id is given out. So if the process dies
at any point, at most one block is wasted and no id is given out twice (trap 50).
:class:`BlockStore` keeps the note.
"""

from __future__ import annotations

from typing import Protocol

from onceflow.broker_lite.coordinators.state_log import StateLogError
from onceflow.sdk.protocol.error_codes import ErrorCode

PRODUCER_ID_BLOCK_SIZE = 1_000
"""Ids per block (Kafka's ``PRODUCER_ID_BLOCK_SIZE``)."""

_FORMAT_VERSION = b"0"


class BlockStore(Protocol):
    """A small value that is replaced atomically and survives the process."""

    def read(self) -> bytes | None:
        """Return the last value written; None if there is none."""

    def write(self, data: bytes) -> None:
        """Replace the value; durable on return.

        Raises:
            OSError: The old value is still there.
        """


class ProducerIds:
    """Hands out producer ids."""

    __slots__ = ("_block_end", "_next_id", "_store")

    def __init__(self, store: BlockStore) -> None:
        self._store = store
        self._next_id = self._block_end = self._reserved_until()

    def next(self) -> int:
        """Return an id that was never given out before.

        Raises:
            StateLogError: COORDINATOR_NOT_AVAILABLE if a block could not be reserved.
        """
        if self._next_id >= self._block_end:
            self._reserve(self._next_id)
        producer_id = self._next_id
        self._next_id += 1
        return producer_id

    def note_used(self, producer_id: int) -> None:
        """Never give out this id, which some log holds, or a smaller one.

        This keeps ids unique also if the file of reserved blocks was lost while the logs were
        kept.
        """
        if producer_id >= self._block_end:
            self._next_id = self._block_end = producer_id + 1

    def _reserve(self, first_id: int) -> None:
        block_end = first_id + PRODUCER_ID_BLOCK_SIZE
        try:
            self._store.write(b"%s\n%d\n" % (_FORMAT_VERSION, block_end))
        except OSError as error:
            raise StateLogError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no producer ids could be reserved: {error}"
            ) from error
        self._next_id, self._block_end = first_id, block_end

    def _reserved_until(self) -> int:
        data = self._store.read()
        if data is None:
            return 0
        version, _, rest = data.partition(b"\n")
        digits = rest.removesuffix(b"\n")
        if rest == digits or version != _FORMAT_VERSION or not digits.isdigit():
            raise ValueError(
                f"producer-id-block holds {data[:64]!r}, not the end of the reserved producer ids; "
                "restore it from a copy, or delete it if no producer id was ever given out"
            )
        return int(digits)
