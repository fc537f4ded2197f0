"""Which topic names a broker takes.

Checked before anything is asked: a bad name must fail at once and by name, not as a topic that
never appears (KIP-4 rules; one bad name must not stop the others).
"""

from __future__ import annotations

import re

from onceflow.sdk.errors import InvalidTopicError

LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_topic_name(name: str) -> None:
    """Refuse a name that no broker takes.

    Args:
        name: Topic name.

    Raises:
        InvalidTopicError: It is empty, too long, a dot or two, or has other characters than
            ``[a-zA-Z0-9._-]``.
    """
    if not isinstance(name, str) or not LEGAL_TOPIC.fullmatch(name) or name in (".", ".."):
        raise InvalidTopicError(
            f"{name!r} is no topic name: 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-'"
        )
