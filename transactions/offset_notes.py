"""The text that a session keeps beside each committed offset: a token, and the caller's note.

The token names one commit of one session. After a commit whose answer was lost, the committed
offsets carry its token or they do not, and that decides what became of the transaction. The note
belongs to the caller; the session carries it without reading it. Text that another program wrote
reads as no token and no note.
"""

from __future__ import annotations

from typing import Final

from onceflow.sdk.errors import ConfigError

PREFIX: Final = "onceflow1:"
"""Beginning of every text of a session. A later layout has another number, and this version ignores
it."""

NOTE_BYTES_MAX: Final = 4_000
"""Kafka keeps 4,096 bytes beside an offset by default (``offset.metadata.max.bytes``)."""


def encode(token: str, note: str) -> str:
    """The metadata of one commit.

    Args:
        token: Names the commit; has no semicolon.
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
    """The token in a committed offset's metadata; None in foreign text."""
    if not metadata.startswith(PREFIX):
        return None
    token, separator, _ = metadata.removeprefix(PREFIX).partition(";")
    return token if separator else None


def note_of(metadata: str) -> str | None:
    """The note in a committed offset's metadata; None in foreign text."""
    if not metadata.startswith(PREFIX):
        return None
    _, separator, note = metadata.removeprefix(PREFIX).partition(";")
    return note if separator else None
