"""Notes that a worker commits with its offsets (as their metadata) for the partition's next owner.

A note holds the state at the commit: the changelogs' ends and topic ids, the names and types of
states, and stream time. The next owner compares it with the state that it finds, and stops if state
was lost, was counted twice or belongs to another group or type. If a note exceeds
``NOTE_BYTES_MAX``, a hash replaces the states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from onceflow.sdk.serde import to_json

NOTE_BYTES_MAX: Final = 3_900
"""Kafka's default ``offset.metadata.max.bytes`` of 4,096, less room for the session's token."""

ID_CHARS: Final = 8


class StateNote(msgspec.Struct, frozen=True, array_like=True):
    """One state at a commit.

    Attributes:
        end: Changelog offset after its last change.
        topic: First characters of the changelog's topic id, empty if the brokers have none.
        type: Short hash of the structure of its keys and values.
    """

    end: int
    topic: str = ""
    type: str = ""


class TaskNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a task at a commit; the short names save bytes.

    Attributes:
        s: Its states by ``function.state``.
        d: Hash of the states' names and types, in place of ``s`` if that is too long.
        t: Stream time in milliseconds, -1 for none.
        n: Number of the commit: of the notes beside a task's inputs, the latest counts.
    """

    s: dict[str, StateNote] = {}
    d: str = ""
    t: int = -1
    n: int = 0


def short_id(topic_id: str) -> str:
    """Shorten a topic id for a note."""
    return topic_id.replace("-", "")[:ID_CHARS]


def type_hash(text: str) -> str:
    """Hash the text of a type's structure for a note."""
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def states_hash(types: Mapping[str, str]) -> str:
    """Hash the names and types of states."""
    return type_hash(";".join(f"{name}={text}" for name, text in sorted(types.items())))


def encode_note(note: TaskNote) -> str:
    """Encode a note as text of at most ``NOTE_BYTES_MAX`` bytes."""
    text = to_json(note).decode()
    if len(text) > NOTE_BYTES_MAX:
        digest = states_hash({name: state.type for name, state in note.s.items()})
        text = to_json(TaskNote(d=digest, t=note.t, n=note.n)).decode()
    return text


def decode_note(text: str | None) -> TaskNote | None:
    """Decode a committed note; None if there is none or its layout is unknown."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=TaskNote)
    except msgspec.MsgspecError:
        return None


def latest(notes: Iterable[TaskNote | None]) -> TaskNote | None:
    """Return the note of a task's last commit, from those beside its inputs' offsets."""
    return max((note for note in notes if note is not None), key=lambda note: note.n, default=None)
