"""The metadata of a session's committed offsets: a token, and the caller's note.

The token identifies one commit of one session. If the answer to a commit is lost, the transaction
was committed if the committed offsets carry its token, and aborted otherwise. The note belongs to
the caller; the session does not read it. Metadata of another program has neither token nor note.
"""

from __future__ import annotations

from typing import Final

from onceflow.sdk.errors import ConfigError

PREFIX: Final = "onceflow1:"
"""First characters of a session's metadata. A later layout has another number, and this version
ignores it."""

NOTE_BYTES_MAX: Final = 4_000
"""Kafka keeps 4,096 bytes beside an offset by default (``offset.metadata.max.bytes``)."""


def encode(token: str, note: str) -> str:
    """Return the metadata of one commit.

    Args:
        token: Identifies the commit; without a semicolon.
        note: The caller's text.

    Raises:
        ConfigError: The note has more than ``NOTE_BYTES_MAX`` bytes of UTF-8.
    """
    size = len(note.encode())
    if size > NOTE_BYTES_MAX:
        raise ConfigError(
            "metadata",
            f"{note[:40]}...",
            f"has {size} bytes; keep at most {NOTE_BYTES_MAX} bytes beside an offset",
        )
    return f"{PREFIX}{token};{note}"


def token_of(metadata: str) -> str | None:
    """Return the token of a committed offset's metadata; None in another program's."""
    if not metadata.startswith(PREFIX):
        return None
    token, separator, _ = metadata.removeprefix(PREFIX).partition(";")
    return token if separator else None


def note_of(metadata: str) -> str | None:
    """Return the note of a committed offset's metadata; None in another program's."""
    if not metadata.startswith(PREFIX):
        return None
    _, separator, note = metadata.removeprefix(PREFIX).partition(";")
    return note if separator else None
