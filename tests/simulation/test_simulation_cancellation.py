"""Goal: whoever cancels a client's call loses no record, doubles none, and leaves no task behind.

Method: each awaited method is cancelled at its first suspension, in another run at its second, and
so on until it is through before. After it the client goes on as its documentation says (a producer
ends its transaction, a consumer polls again), and the whole history is checked as after any
simulated run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sim_cancel import cancel_at
from sim_network import CALM
from sim_run import simulate
from sim_setup import Setup, draw
from sim_work import Sending, TransactionalProducer

from onceflow.sdk import AsyncConsumer, AsyncProducer
from onceflow.sdk.errors import IllegalStateError, KafkaError
from onceflow.sdk.model.partitions import ConsumerGroupMetadata, TopicPartition
from onceflow.transactions import AsyncTransactionSession

SUSPENSIONS_MAX = 200
"""No call waits so often; the loop over suspensions ends long before."""


def quiet(workers: dict[str, int]) -> Setup:
    """A run without faults, with only some workers."""
    setup = draw("cancellation")
    return dataclasses.replace(
        setup,
        workers=dict.fromkeys(setup.workers, 0) | workers,
        storm=dataclasses.replace(CALM, delay_us=800),
        troubles=["clock"],
        duration_us=400_000,
        units=6,
        segment_bytes=100_000,
        power=False,
        transaction_timeout_ms=1_500,
        nodes=1,
        properties=setup.properties | {"onceflow.durability": "kafka"},
    )


TURNS_MAX = 30
"""Runs within which a method that workers call now and then is called."""


class Cancelling:
    """Cancels the n-th suspension of one method in one run."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.reached = False
        self.used = False

    async def call(self, call: Callable[[], Awaitable[Any]]) -> bool:
        """Make the call; the first one of the run is cancelled. True if it was."""
        if self.used:
            await call()
            return False
        self.used = True
        self.reached = await cancel_at(call, self.at)
        return self.reached


def every_suspension(
    method: str,
    workers: dict[str, int],
    patch: Callable[[pytest.MonkeyPatch, Cancelling], None],
) -> int:
    """Run once for each suspension of a method; returns how many there were."""
    for at in range(SUSPENSIONS_MAX):
        for turn in range(TURNS_MAX):
            cancelling = Cancelling(at)
            with pytest.MonkeyPatch.context() as patches:
                patch(patches, cancelling)
                result = simulate(f"cancel {method} {at} {turn}", quiet(workers))
            assert result.problems == [], (method, at, result.history.around([method]))
            if cancelling.used:
                break
        assert cancelling.used, "no run of these workers calls the method"
        if not cancelling.reached:
            return at
    raise AssertionError(f"{method} waits for ever")


def wrapped(owner: type, name: str, after: Callable[[Any], Awaitable[None]] | None = None) -> Any:
    """A patch that cancels the first call of a method of a client."""

    def patch(patches: pytest.MonkeyPatch, cancelling: Cancelling) -> None:
        original = getattr(owner, name)

        async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            if cancelling.used:
                return await original(self, *args, **kwargs)
            found: list[Any] = []

            async def call() -> None:
                found.append(await original(self, *args, **kwargs))

            await cancelling.call(call)
            if found:
                return found[0]
            if after is not None:
                return await after(self)
            raise KafkaError("cancelled by the test")

        patches.setattr(owner, name, method)

    return patch


async def _nothing(_: Any) -> dict[Any, Any]:
    return {}


PRODUCER_CALLS = ("start", "begin_transaction", "send", "send_offsets_to_transaction",
                  "commit_transaction", "abort_transaction", "close")  # fmt: skip


@pytest.mark.sim
@pytest.mark.parametrize("name", PRODUCER_CALLS)
def test_cancelled_transactional_producer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker takes the interruption for an error: it aborts, or makes a new producer."""
    monkeypatch.setattr(TransactionalProducer, "_transaction", _transaction)
    count = every_suspension(name, {"transactional": 1}, wrapped(AsyncProducer, name))
    # What needs no broker may not wait at all.
    assert count >= 1 or name in ("begin_transaction",)


async def _transaction(self: Any, me: str, producer: Any, sending: Sending) -> None:
    """A transaction with everything in it; an interrupted end is asked for again."""
    self.count += 1
    ends_in_abort = self.count % 2 == 0
    name = f"{me}-t{self.count}"
    asked = False
    self.note(me, "begin", name)
    try:
        await producer.begin_transaction()
        for topic in ("a", "b"):
            await sending.send(topic, self.next_value(me), None, 0, name)
        await producer.send_offsets_to_transaction(
            {TopicPartition("a", 0): self.count}, ConsumerGroupMetadata(f"of-{self.name}")
        )
        self.note(me, "offsets", name, f"of-{self.name}", self.count)
        if ends_in_abort:
            self.note(me, "abort", name)
            await producer.abort_transaction()
            self.note(me, "aborted", name)
            return
        self.note(me, "commit", name)
        asked = True
        await producer.commit_transaction()
        self.note(me, "committed", name)
    except KafkaError:
        if asked:
            await producer.commit_transaction()
            self.note(me, "committed", name)
            return
        try:
            await producer.init_transactions()
        except IllegalStateError:
            await producer.abort_transaction()
        self.note(me, "aborted", name)


@pytest.mark.sim
@pytest.mark.parametrize("name", ["start", "send", "flush", "close"])
def test_cancelled_idempotent_producer(name: str) -> None:
    assert every_suspension(name, {"producer": 1}, wrapped(AsyncProducer, name)) >= 1


@pytest.mark.sim
@pytest.mark.parametrize("name", ["start", "poll", "commit", "position", "close"])
def test_cancelled_consumer_of_a_group(name: str) -> None:
    """A cancelled poll is followed by another one, which hands out what the first did not."""
    after = _nothing if name == "poll" else None
    count = every_suspension(name, {"group": 1, "producer": 1}, wrapped(AsyncConsumer, name, after))
    assert count >= 1 or name == "position"


@pytest.mark.sim
@pytest.mark.parametrize("name", ["start", "poll", "send", "commit", "abort", "close"])
def test_cancelled_session(name: str) -> None:
    after = _nothing if name == "poll" else None
    patch = wrapped(AsyncTransactionSession, name, after)
    count = every_suspension(name, {"session": 1, "producer": 1}, patch)
    assert count >= 1 or name == "abort"
