"""What happened in a run, as one list of lines that a checker reads and that a hash sums up."""

from __future__ import annotations

import hashlib
from typing import NamedTuple


class Event(NamedTuple):
    """One line.

    Attributes:
        time_us: Virtual time.
        who: Process, or ``net`` and the like.
        what: Kind of event.
        details: What belongs to it.
    """

    time_us: int
    who: str
    what: str
    details: tuple[object, ...]

    def __str__(self) -> str:
        details = " ".join(str(detail) for detail in self.details)
        return f"{self.time_us / 1e6:11.6f}  {self.who:<14} {self.what:<16} {details}"


class History:
    """Events in the order in which they happened."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, time_us: int, who: str, what: str, details: tuple[object, ...]) -> None:
        """Add one."""
        self.events.append(Event(time_us, who, what, details))

    def of(self, *kinds: str) -> list[tuple[int, Event]]:
        """Events of some kinds, with their places."""
        return [(i, event) for i, event in enumerate(self.events) if event.what in kinds]

    def digest(self) -> str:
        """A hash over everything."""
        total = hashlib.blake2b(digest_size=12)
        for event in self.events:
            total.update(repr(event).encode())
        return total.hexdigest()

    def around(self, mentions: list[str], lines: int = 60) -> str:
        """The lines that mention something, and the end of the history.

        Args:
            mentions: Texts to look for.
            lines: Most lines of each part.
        """
        texts = [str(event) for event in self.events]
        chosen = [text for text in texts if any(word in text for word in mentions if word)]
        parts = [f"--- {len(texts)} events; those that name {', '.join(mentions)}:"]
        parts += chosen[-lines:]
        parts += ["--- the last ones:", *texts[-lines:]]
        return "\n".join(parts)
