"""Limits the bytes of requests in memory: ``queued.max.request.bytes``.

A connection asks for room before it reads more than a request's first bytes. With room,
it may read its request to the end, so that requests without room never delay those that
have it. The last request may exceed the limit, as in Kafka's ``SimpleMemoryPool``.
"""

from __future__ import annotations

from collections.abc import Callable


class RequestPool:
    """Room for requests in memory.

    Args:
        limit_bytes: Bytes from which on no request gets room.
    """

    __slots__ = ("_free_bytes", "_waiting")

    def __init__(self, limit_bytes: int) -> None:
        self._free_bytes = limit_bytes
        self._waiting: dict[object, Callable[[], None]] = {}

    @property
    def waiting_count(self) -> int:
        """How many connections wait for room."""
        return len(self._waiting)

    def take(self, owner: object, size: int, resume: Callable[[], None]) -> bool:
        """Ask for room.

        Args:
            owner: The connection that asks.
            size: How many bytes it will hold.
            resume: If there is no room now, called once when there is; it must ask again.

        Returns:
            Whether there was room.
        """
        if self._free_bytes <= 0:
            self._waiting[owner] = resume
            return False
        self._free_bytes -= size
        return True

    def give_back(self, size: int) -> None:
        """Return room; the waiting connections ask again, in the order of their requests."""
        self._free_bytes += size
        while self._free_bytes > 0 and self._waiting:
            owner = next(iter(self._waiting))
            self._waiting.pop(owner)()

    def forget(self, owner: object) -> None:
        """Drop a connection that waited."""
        self._waiting.pop(owner, None)
