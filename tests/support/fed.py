"""Bytes for what receives into memory of its own (``buffer`` and ``received``)."""

from __future__ import annotations

from typing import Any


def feed(receiver: Any, data: bytes, *more: object) -> list[Any]:
    """Hand over bytes as a socket would, in as many steps as the receiver's memory makes of them.

    Args:
        receiver: A `FrameReader`, or a `Connection`.
        data: The bytes.
        more: Further arguments of its ``received``.
    """
    found: list[Any] = []
    while data:
        memory = receiver.buffer()
        taken = min(len(memory), len(data))
        assert taken > 0
        memory[:taken] = data[:taken]
        found += receiver.received(taken, *more)
        data = data[taken:]
    return found
