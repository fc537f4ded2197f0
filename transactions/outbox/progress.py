"""The relay's note of a batch, which the Kafka transaction of the batch holds.

A note holds the ids of the batch's rows, as ranges. The relay deletes these rows before it begins
the next batch. So only rows of the latest committed note may still be in the table although they
were sent. This module does no I/O.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.serde import to_json

KEY = b"sent"
"""Key of every note, so that a compacted topic keeps the latest one."""


def encoded(ids: Iterable[int]) -> bytes:
    """Return the note of a batch.

    Args:
        ids: Ids of its rows.
    """
    ranges: list[list[int]] = []
    for number in sorted(ids):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return to_json({"version": 1, "ids": ranges})


def decoded(data: bytes) -> list[int]:
    """Return the ids of a note.

    Raises:
        ConfigError: The record is not a note that this version can read.
    """
    try:
        found = json.loads(data)
        if found["version"] != 1:
            raise ValueError(f"version {found['version']}")
        return [n for first, last in found["ids"] for n in range(first, last + 1)]
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            "name",
            data[:80],
            f"its topic holds a record that is not a note of this relay ({error}); give the relay "
            "another name, or a newer version of onceflow",
        ) from error
