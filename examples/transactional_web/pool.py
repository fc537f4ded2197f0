"""Transactional producers that concurrent requests share: one open transaction for each producer.

Each producer has a transactional id of service, slot and number, so that the next process of the
slot ends what this one left open. A producer whose transaction may still be open is replaced before
another request gets it. A producer that another live process has fenced is not: the slot belongs
to that process now, and this one reports itself as unhealthy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from onceflow.sdk import AsyncProducer
from onceflow.sdk.errors import (
    CommitOutcomeUnknownError,
    FatalError,
    KafkaError,
    ProducerFencedError,
)

logger = logging.getLogger("transactional_web")

REPLACED_AGAIN_S = 1.0
"""Pause between two tries to replace a producer."""


class PoolBusyError(Exception):
    """All producers are in use; the request may come again."""


class PoolLostError(Exception):
    """Another process has taken over the slot; this one must end."""


@dataclass(frozen=True)
class PoolHealth:
    """How the pool is.

    Attributes:
        size: Producers in all.
        free: Producers that wait for a request.
        replacing: Producers that are being replaced.
        lost: Whether another process has taken over the slot.
    """

    size: int
    free: int
    replacing: int
    lost: bool

    @property
    def is_ready(self) -> bool:
        """Whether requests can be served."""
        return not self.lost and self.replacing < self.size


class ProducerPool:
    """Producers of one slot.

    Args:
        make: Makes a producer that is not started, for a transactional id.
        name: Of the service.
        slot: Of this process; no two live processes may share one.
        size: How many transactions may be open at once.
        wait_s: Longest wait of a request for a producer.
    """

    def __init__(
        self,
        make: Callable[[str], AsyncProducer],
        name: str,
        slot: str,
        size: int = 8,
        wait_s: float = 2.0,
    ) -> None:
        self._make = make
        self._ids = [f"{name}-{slot}-{number}" for number in range(size)]
        self._wait_s = wait_s
        self._free: asyncio.LifoQueue[tuple[str, AsyncProducer]] = asyncio.LifoQueue()
        self._producers: dict[str, AsyncProducer] = {}
        self._replacing: dict[str, asyncio.Task[None]] = {}
        self._lost = False

    async def start(self) -> None:
        """Make all producers; each ends what its predecessor left open.

        Raises:
            KafkaError: The cluster cannot be reached, or refuses.
        """
        try:
            await asyncio.gather(*map(self._add, self._ids))
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Abort what is open and close all producers."""
        for task in self._replacing.values():
            task.cancel()
        await asyncio.gather(*self._replacing.values(), return_exceptions=True)
        producers = list(self._producers.values())
        await asyncio.gather(*(each.close() for each in producers), return_exceptions=True)

    @property
    def health(self) -> PoolHealth:
        """How the pool is."""
        return PoolHealth(len(self._ids), self._free.qsize(), len(self._replacing), self._lost)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncProducer]:
        """Open a transaction, commit it at the end, abort it on an exception.

        Raises:
            PoolBusyError: No producer became free in time; nothing was sent.
            PoolLostError: The slot belongs to another process; nothing is committed.
            CommitOutcomeUnknownError: The commit has no answer: it may be carried out or not.
            KafkaError: The transaction was aborted; it may be done again where ``retriable``.
        """
        if self._lost:
            raise PoolLostError("another process has taken over this slot")
        try:
            transactional_id, producer = await asyncio.wait_for(self._free.get(), self._wait_s)
        except TimeoutError:
            raise PoolBusyError(f"all {len(self._ids)} producers are in use") from None
        usable = False
        try:
            async with producer.transaction():
                yield producer
            usable = True
        except ProducerFencedError as error:
            self._lost = True
            raise PoolLostError("another process has taken over this slot") from error
        except (CommitOutcomeUnknownError, FatalError):
            raise
        except Exception:
            usable = True  # It is aborted, and the producer can begin the next one.
            raise
        finally:
            if usable:
                self._free.put_nowait((transactional_id, producer))
            elif not self._lost:
                self._replace(transactional_id)

    async def _add(self, transactional_id: str) -> None:
        producer = self._make(transactional_id)
        self._producers[transactional_id] = producer
        await producer.start()
        self._free.put_nowait((transactional_id, producer))

    def _replace(self, transactional_id: str) -> None:
        task = asyncio.create_task(self._keep_replacing(transactional_id))
        self._replacing[transactional_id] = task

    async def _keep_replacing(self, transactional_id: str) -> None:
        """Make a new producer under the id, which ends what is open under it."""
        while True:
            try:
                with contextlib.suppress(KafkaError):
                    await self._producers[transactional_id].close(timeout_ms=0)
                await self._add(transactional_id)
            except ProducerFencedError:
                self._lost = True
                break
            except KafkaError as error:
                logger.warning("%s is not replaced yet: %s", transactional_id, error)
                await asyncio.sleep(REPLACED_AGAIN_S)
            else:
                break
        del self._replacing[transactional_id]
