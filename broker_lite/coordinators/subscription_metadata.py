"""Topics in a consumer's subscription, the one thing the broker reads in opaque member metadata.

Layout (all versions): version as int16, then an array of topic names; what follows differs by
version and is not looked at, so that versions to come are no obstacle (trap 60).
"""

from __future__ import annotations

import struct

_HEADER = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: bytes) -> set[str] | None:
    """Topic names in a ``consumer`` subscription, None when the bytes are none."""
    try:
        version, count = _HEADER.unpack_from(metadata)
        if version < 0 or count < 0:
            return None
        topics: set[str] = set()
        position = _HEADER.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, position)
            position += _LENGTH.size
            end = position + length
            if length < 0 or end > len(metadata):
                return None
            topics.add(metadata[position:end].decode("utf-8"))
            position = end
    except (struct.error, UnicodeDecodeError):
        return None
    return topics
