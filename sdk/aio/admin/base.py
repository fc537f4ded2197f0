"""What the parts of the asyncio admin client share: the pool, and how the controller is asked."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

from onceflow.sdk.aio.connection.cluster_asker import ClusterAsker
from onceflow.sdk.aio.connection.pool import ConnectionPool
from onceflow.sdk.aio.consume.offset_reader import OffsetReader
from onceflow.sdk.core.admin.topics import Outcomes
from onceflow.sdk.core.flow import Flow

K = TypeVar("K")
V = TypeVar("V")


class AdminBase:
    """Connections and questions of one admin client."""

    _pool: ConnectionPool
    _asker: ClusterAsker
    _reader: OffsetReader

    async def _ask_each(
        self,
        items: Iterable[K],
        flow: Callable[[list[K], int, int], Flow[Outcomes[K, V]]],
        timeout_ms: int | None,
        *,
        final: Collection[int] = (),
    ) -> dict[K, V]:
        """Ask a broker for the controller about several things.

        Args:
            items: The things.
            flow: Makes the conversation about some of them, of a limit and the node to ask.
            timeout_ms: Limit for the whole.
            final: Codes that are not worth another try.
        """

        async def ask(left: list[K], left_ms: int) -> Outcomes[K, V]:
            target = await self._asker.controller()
            return await self._pool.run(flow(left, left_ms, target), timeout_ms=left_ms)

        return await self._asker.complete(items, ask, timeout_ms, final=final)

    async def _ask_once(self, flow: Callable[[int, int], Flow[V]], timeout_ms: int | None) -> V:
        """Ask a broker for the controller one thing, of a limit and the node to ask."""

        async def ask(left: list[str], left_ms: int) -> Outcomes[str, V]:
            target = await self._asker.controller()
            return {"": await self._pool.run(flow(left_ms, target), timeout_ms=left_ms)}

        return (await self._asker.complete([""], ask, timeout_ms))[""]
