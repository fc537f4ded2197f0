"""Goal: a cancellation at any step of an asyncio session's call loses no record and repeats no
output.

Method: a session over an in-memory cluster (``processor_fakes``) whose calls each take a turn of
the loop. A call is made again and again, each time cancelled one turn later. Then the program goes
on, and every input record must have one committed output.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest
from processor_fakes import FakeClients, FakeCluster, FakeConsumer, FakeProducer

from onceflow.sdk.errors import (
    CommitOutcomeUnknownError,
    KafkaError,
    ProducerFencedError,
    TransactionAbortableError,
)
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from onceflow.transactions import AsyncTransactionSession, SessionConfig
from onceflow.transactions.listener import RebalanceHooks

IN0, IN1 = TopicPartition("in", 0), TopicPartition("in", 1)
STEPS_MAX = 1_000
"""No call that is tried takes so many turns."""


class SteppingProducer(FakeProducer):
    """Each call takes a turn before it has its effect, and one after it."""

    async def begin_transaction(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().begin_transaction()
        await asyncio.sleep(0)

    async def flush(self, timeout_ms: int | None = None) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().flush(timeout_ms)

    async def send_offsets_to_transaction(  # type: ignore[override]
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        group_metadata: ConsumerGroupMetadata,
        timeout_ms: int | None = None,
    ) -> None:
        await asyncio.sleep(0)
        super().send_offsets_to_transaction(offsets, group_metadata, timeout_ms)
        await asyncio.sleep(0)

    async def commit_transaction(self, timeout_ms: int | None = None) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().commit_transaction(timeout_ms)
        await asyncio.sleep(0)

    async def abort_transaction(self, timeout_ms: int | None = None) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().abort_transaction(timeout_ms)
        await asyncio.sleep(0)

    async def close(self, timeout_ms: int = 0) -> None:  # type: ignore[override]
        super().close(timeout_ms)
        await asyncio.sleep(0)


class SteppingConsumer(FakeConsumer):
    """Each call takes a turn; a cancelled poll keeps its records, as the SDK's does."""

    async def poll(  # type: ignore[override]
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        await asyncio.sleep(0)
        for hook in self.rebalances():
            await hook
        await asyncio.sleep(0)
        return super().poll(timeout_ms, max_records)

    async def committed(  # type: ignore[override]
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        await asyncio.sleep(0)
        return super().committed(partitions)

    async def seek(self, partition: TopicPartition, offset: int) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().seek(partition, offset)

    async def ensure_membership(self) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        super().ensure_membership()

    async def close(self, timeout_ms: int = 0, *, leave_group: bool | None = None) -> None:  # type: ignore[override]
        await asyncio.sleep(0)
        hook = super().close(timeout_ms, leave_group=leave_group)
        if hook is not None:
            await hook


class SteppingClients(FakeClients):
    """Makes them, each in a turn."""

    async def producer(self, config: SessionConfig) -> FakeProducer:  # type: ignore[override]
        await asyncio.sleep(0)
        return SteppingProducer(self.cluster, config.own_transactional_id)

    def consumer(self, config: SessionConfig, hooks: RebalanceHooks) -> FakeConsumer:
        made = SteppingConsumer(self.cluster, config, hooks)
        made.pending.append((set(self.partitions), False, 1))
        return made


class Program:
    """A session with two partitions in work, of which every record was sent on."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.cluster.put("in", "a", "b", "c")
        self.cluster.put("in", "x", "y", partition=1)
        self.session = AsyncTransactionSession(
            SessionConfig(topics=["in"], bootstrap_servers="unused:1", group_id="g"),
            clients=SteppingClients(self.cluster, (IN0, IN1)),
        )

    async def step(self) -> None:
        for records in (await self.session.poll()).values():
            for record in records:
                await self.session.send("out", record.value)

    async def go_on(self) -> None:
        for _ in range(4):
            await self.step()
            await self.session.commit()

    def missing(self) -> list[str]:
        """Processed input without its output, or with two; of IN1 only what is committed."""
        upto = self.cluster.offset("in", 1) or 0
        owned = IN1 in self.session.assignment()
        log = self.cluster.logs
        given = [e.value for e in log[IN0]]
        given += [e.value for e in (log[IN1] if owned else log[IN1][:upto])]
        done = self.cluster.values("out")
        return [str(v) for v in {*given, *done} if given.count(v) != done.count(v)]


async def gives_up(program: Program, error: KafkaError | None, *, lost: bool) -> None:
    program.cluster.rebalance([IN0], lost=lost)
    if error is not None:
        program.cluster.fail("flush", error)
    await program.step()


async def is_interrupted_already(program: Program) -> None:
    """The poll that ends what a cancelled poll has left open is cancelled, too."""
    program.cluster.rebalance([IN0])
    task = asyncio.create_task(program.session.poll())
    for _ in range(6):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await program.step()


async def is_fenced(program: Program) -> None:
    await gives_up(program, ProducerFencedError(), lost=False)
    await program.step()


async def is_refused(program: Program, error: KafkaError, times: int) -> None:
    program.cluster.fail("commit_transaction", error, times=times)
    await program.session.commit()


CALLS: dict[str, Callable[[Program], Awaitable[object]]] = {
    "commit": lambda program: program.session.commit(),
    "abort": lambda program: program.session.abort(),
    "refused commit": lambda program: is_refused(program, TransactionAbortableError(), 1),
    "lost commit": lambda program: is_refused(program, CommitOutcomeUnknownError("lost"), 2),
    "revocation": lambda program: gives_up(program, None, lost=False),
    "refused revocation": lambda program: gives_up(
        program, TransactionAbortableError(), lost=False
    ),
    "lost partitions": lambda program: gives_up(program, None, lost=True),
    "fence": is_fenced,
    "cancelled again": is_interrupted_already,
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_cancelled_call_loses_nothing_and_repeats_nothing(name: str) -> None:
    for steps in range(STEPS_MAX):
        program = Program()
        await program.session.start()
        await program.step()
        task = asyncio.ensure_future(CALLS[name](program))
        for _ in range(steps):
            await asyncio.sleep(0)
        if ended := task.done():
            await task
        else:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await program.session.abort()  # Its records may have been handed out.
        program.cluster.forget_faults()
        await program.go_on()
        assert program.missing() == [], steps
        owners = [c for c in program.cluster.clients if isinstance(c, FakeConsumer) and c.owned]
        assert len(owners) == 1, steps
        await program.session.close()
        if ended:
            break
    assert ended, "every step was tried"
