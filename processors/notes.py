"""What a worker writes beside committed offsets, to be read by the next owner of the partition.

The note says what the committed work left behind: where the changelogs ended, of which incarnation
they were, which states there were and of which types, and stream time. A later owner compares that
with what it finds, so that state which was lost, doubled or belongs to something else stops it. A
note is bounded: what does not fit is left out, the names last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from onceflow.sdk.serde import to_json

NOTE_BYTES_MAX: Final = 3_900
"""Below Kafka's 4,096 bytes of ``offset.metadata.max.bytes``, with room for the session's token."""

ID_CHARS: Final = 8


class StateNote(msgspec.Struct, frozen=True, array_like=True):
    """One state as of a commit.

    Attributes:
        end: Changelog offset behind its last change.
        topic: First characters of the changelog's topic id, empty where the brokers have none.
        type: Short hash of the structure of its keys and values.
    """

    end: int
    topic: str = ""
    type: str = ""


class TaskNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task's commit left behind.

    Attributes:
        s: Its states by ``function.state``.
        d: Hash of the states' names and types, in place of ``s`` where they did not fit.
        t: Stream time in milliseconds, -1 for none.
        n: Number of the commit: of several inputs of a task, the latest one counts.
    """

    s: dict[str, StateNote] = {}
    d: str = ""
    t: int = -1
    n: int = 0


def short_id(topic_id: str) -> str:
    """What a note keeps of a topic id."""
    return topic_id.replace("-", "")[:ID_CHARS]


def type_hash(text: str) -> str:
    """What a note keeps of a type's structure."""
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def states_hash(types: Mapping[str, str]) -> str:
    """One hash of names and types."""
    return type_hash(";".join(f"{name}={text}" for name, text in sorted(types.items())))


def encode_note(note: TaskNote) -> str:
    """The note as text, within ``NOTE_BYTES_MAX``."""
    text = to_json(note).decode()
    if len(text) > NOTE_BYTES_MAX:
        digest = states_hash({name: state.type for name, state in note.s.items()})
        text = to_json(TaskNote(d=digest, t=note.t, n=note.n)).decode()
    return text


def decode_note(text: str | None) -> TaskNote | None:
    """The note that was committed; None where there is none, or one of another layout."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=TaskNote)
    except msgspec.MsgspecError:
        return None


def latest(notes: Iterable[TaskNote | None]) -> TaskNote | None:
    """The note of a task's last commit, of those beside its inputs' offsets."""
    return max((note for note in notes if note is not None), key=lambda note: note.n, default=None)
