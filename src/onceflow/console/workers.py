"""Asks workers at given addresses what they do: the path ``/status`` of their health ports.

Several workers may answer at one address. What they have done is kept as samples, so that a page
can show how much that is a second.
"""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from onceflow.console.history import History
from onceflow.sdk.errors import ConfigError

STATUS_LIMIT_S: Final = 5.0
"""Longest wait for a worker's answer."""
ANSWER_BYTES_MAX: Final = 4_000_000
COUNTED: Final = ("records_committed", "units_committed", "commit_us", "dead_letters")


class Workers:
    """The workers whose addresses the console has.

    Args:
        addresses: Of their health ports, as ``http://HOST:PORT``.

    Raises:
        ConfigError: One is no such address.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        for address in addresses:
            if not address.startswith(("http://", "https://")):
                raise ConfigError("--worker", address, "give http://HOST:PORT of its health port")
        self._addresses = [address.rstrip("/") for address in addresses]
        self._counts = History()

    async def ask(self, now_ms: int) -> list[dict[str, Any]]:
        """Ask all workers, and keep what they have done.

        Args:
            now_ms: Wall milliseconds.

        Returns:
            Each worker's status with its address and what it does a second; of one that does not
            answer, address and error.
        """
        found = await asyncio.gather(
            *(asyncio.to_thread(_status, address) for address in self._addresses)
        )
        return [
            row if "error" in row else row | self._rates(row, place, now_ms)
            for rows in found
            for place, row in enumerate(rows)
        ]

    def _rates(self, row: dict[str, Any], place: int, now_ms: int) -> dict[str, object]:
        name = f"{row['address']} {place} "
        self._counts.add(now_ms, {name + what: int(row[what]) for what in COUNTED})
        rate = {what: self._counts.rate(name + what) for what in COUNTED}
        commits, spent_us = rate["units_committed"], rate["commit_us"]
        return {
            "records_a_second": rate["records_committed"],
            "commits_a_second": commits,
            "commit_ms": None if not commits or spent_us is None else spent_us / commits / 1000,
        }


def _status(address: str) -> list[dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"{address}/status", timeout=STATUS_LIMIT_S) as answer:
            data = answer.read(ANSWER_BYTES_MAX)
        rows = msgspec.json.decode(data, type=list[dict[str, Any]])
        for row in rows:
            _check(row)
    except (OSError, ValueError) as error:
        return [{"address": address, "error": f"no status: {error}"}]
    return [{"address": address, **row} for row in rows]


def _check(row: dict[str, Any]) -> None:
    """Raise ValueError if a row is not the status of a worker."""
    graph = cast("dict[str, Any]", row.get("graph"))
    is_graph = isinstance(graph, dict) and all(
        isinstance(graph.get(name), list) for name in ("nodes", "edges")
    )
    if not (is_graph and all(isinstance(row.get(what), int) for what in COUNTED)):
        raise ValueError("the answer is not the status of a worker")
