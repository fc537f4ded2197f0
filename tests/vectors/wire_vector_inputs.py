"""Prints what WireVectors.java reads: small messages of every kind, in their first, first flexible
and last version, as kio encodes them. Run with `tests/support` on the path (see README.md).
"""

from __future__ import annotations

import random

from wire_foreign import kio_bytes
from wire_values import random_message

from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.schema import Message


def small_bytes(message_type: type[Message], version: int) -> bytes:
    """Of forty random messages the one nearest to 150 bytes, in which there is most to see."""
    encoded = []
    for seed in range(40):
        rng = random.Random(f"vector {message_type.__name__} {version} {seed}")
        data = kio_bytes(random_message(message_type, version, rng), version)
        assert data is not None
        encoded.append(data)
    return min(encoded, key=lambda data: abs(len(data) - 150))


def main() -> None:
    """Print one line per message and version."""
    for api_key in sorted(API):
        for kind, message_type in zip(("request", "response"), API[api_key], strict=True):
            first, last = message_type.versions
            for version in sorted({first, message_type.flexible_from or first, last}):
                print(api_key, kind, version, small_bytes(message_type, version).hex())


if __name__ == "__main__":
    main()
