"""Kafka's rule for topic names, for the clients and for the broker."""

from __future__ import annotations

import re

TOPIC_NAME_MAX = 249
"""Longest name, in characters."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def topic_name_fault(name: str) -> str | None:
    """Say why a name cannot be a topic's, or return None for one that can.

    Args:
        name: The name.
    """
    if not name:
        return "it is empty"
    if name in (".", ".."):
        return "it is '.' or '..'"
    if len(name) > TOPIC_NAME_MAX:
        return f"it is longer than {TOPIC_NAME_MAX} characters"
    if not _LEGAL.fullmatch(name):
        return "it holds other characters than ASCII letters, digits, '.', '_' and '-'"
    return None
