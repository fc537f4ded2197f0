"""Refuses access to state of a key that may belong to another task."""

from __future__ import annotations

from onceflow.processors.errors import StateKeyError
from onceflow.processors.frame import Frame


def check_own_key(node: str, state: str, frame: Frame) -> bytes:
    """Return the key of a frame's item, if its state belongs to this task.

    Raises:
        StateKeyError: The item has no key, or another one than the record.
    """
    key = frame.item.key
    if type(key) is not bytes or key != frame.record.key:
        raise _wrong_key(node, state, key)
    return key


def without_key(node: str, state: str | None) -> StateKeyError:
    """Return the error for a record without a key."""
    return StateKeyError(f"{node} keeps state {state!r} by key, but the record has no key")


def _wrong_key(node: str, state: str, key: object) -> StateKeyError:
    if key is None:
        return without_key(node, state)
    return StateKeyError(
        f"{node} keeps state {state!r} by key, but the key was changed to {key!r} since the "
        "record was read: its state lies with another partition. Send it to a topic and read that"
    )
