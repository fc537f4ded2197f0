"""Goal: calls in an order that makes no sense, or within one another, say what to do first: none
waits for itself, none is passed over, and the client goes on.

Method: tables of calls for both faces of a client, and what the last of them must say; calls within
rebalance callbacks, interceptors, and second threads and tasks.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from onceflow.broker_lite import Broker
from onceflow.sdk import (
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    ConsumerGroupMetadata,
    ConsumerInterceptor,
    Producer,
    ProducerInterceptor,
    ProducerRecord,
    RecordMetadata,
    TopicPartition,
)
from onceflow.sdk.errors import (
    ClientClosedError,
    CommitFailedError,
    ConfigError,
    IllegalStateError,
    KafkaError,
)

PART = TopicPartition("t", 0)
OTHER = TopicPartition("t", 9)
GROUP = ConsumerGroupMetadata("g")
LIMIT_S = 30
_numbers = itertools.count()

Call = Callable[[Any], object]
Case = tuple[Sequence[Call], type[KafkaError], str]


def begin(p: Any) -> object:
    return p.begin_transaction()


def commit(p: Any) -> object:
    return p.commit_transaction()


def abort(p: Any) -> object:
    return p.abort_transaction()


def send(p: Any) -> object:
    return p.send("t", b"x")


def offsets(p: Any) -> object:
    return p.send_offsets_to_transaction({PART: 1}, GROUP)


def note(p: Any) -> object:
    return p.note_partitions([PART])


def init(p: Any) -> object:
    return p.init_transactions()


def close(client: Any) -> object:
    return client.close()


def assign(c: Any) -> object:
    return c.assign([PART])


def subscribe(c: Any) -> object:
    return c.subscribe(["t"])


NONE_OPEN = r"no open transaction; call begin_transaction\(\) first"
NOT_TRANSACTIONAL = "a producer with transactional_id"
TRANSACTIONAL: dict[str, Case] = {
    "commit first": ([commit], IllegalStateError, NONE_OPEN),
    "abort first": ([abort], IllegalStateError, NONE_OPEN),
    "send first": ([send], IllegalStateError, NONE_OPEN),
    "many first": ([lambda p: p.send_many("t", [b"x"])], IllegalStateError, NONE_OPEN),
    "offsets first": ([offsets], IllegalStateError, NONE_OPEN),
    "note first": ([note], IllegalStateError, NONE_OPEN),
    "begin twice": ([begin, begin], IllegalStateError, "commit or abort it first"),
    "init within": ([begin, send, init], IllegalStateError, "commit or abort it first"),
    "send after abort": ([begin, send, abort, send], IllegalStateError, NONE_OPEN),
    "send after commit": ([begin, send, commit, send], IllegalStateError, NONE_OPEN),
    "commit twice": ([begin, send, commit, commit], IllegalStateError, NONE_OPEN),
    "commit after abort": ([begin, send, abort, commit], IllegalStateError, NONE_OPEN),
    "offsets after commit": ([begin, send, commit, offsets], IllegalStateError, NONE_OPEN),
    "begin after close": ([close, begin], ClientClosedError, "closed"),
    "commit after close": ([begin, close, commit], ClientClosedError, "closed"),
    "abort after close": ([begin, close, abort], ClientClosedError, "closed"),
    "init after close": ([close, init], ClientClosedError, "closed"),
    "offsets after close": ([begin, close, offsets], ClientClosedError, "closed"),
    "note after close": ([begin, close, note], ClientClosedError, "closed"),
}
PLAIN: dict[str, Case] = {
    "begin": ([begin], IllegalStateError, NOT_TRANSACTIONAL),
    "commit": ([send, commit], IllegalStateError, NOT_TRANSACTIONAL),
    "abort": ([send, abort], IllegalStateError, NOT_TRANSACTIONAL),
    "offsets": ([offsets], IllegalStateError, NOT_TRANSACTIONAL),
    "note": ([note], IllegalStateError, NOT_TRANSACTIONAL),
    "init": ([init], IllegalStateError, NOT_TRANSACTIONAL),
    "no such partition": (
        [lambda p: p.send("t", b"x", partition=9)],
        ConfigError,
        "'t' has partitions 0 to 0",
    ),
    "partition_for after close": (
        [send, close, lambda p: p.partition_for("t", b"x")],
        ClientClosedError,
        "closed",
    ),
}
WITHOUT_GROUP: dict[str, Case] = {
    "commit": ([assign, lambda c: c.commit()], IllegalStateError, "needs a group_id"),
    "offsets": ([assign, lambda c: c.commit({PART: 1})], IllegalStateError, "needs a group_id"),
    "committed": ([lambda c: c.committed([PART])], IllegalStateError, "needs a group_id"),
    "metadata": ([lambda c: c.group_metadata()], IllegalStateError, "needs a group_id"),
    "membership": ([lambda c: c.ensure_membership()], IllegalStateError, "needs a group_id"),
    "subscribe": ([subscribe], IllegalStateError, "needs a group_id"),
}
NOT_ASSIGNED = "t-9 is not assigned"
NOTHING_TO_SEEK = r"no partition is assigned yet.*poll\(\)"
IN_GROUP: dict[str, Case] = {
    "assign, subscribe": ([assign, subscribe], IllegalStateError, "exclude each other"),
    "subscribe, assign": ([subscribe, assign], IllegalStateError, "exclude each other"),
    "no topics": ([lambda c: c.subscribe([])], IllegalStateError, "either topics or a pattern"),
    "seek elsewhere": ([assign, lambda c: c.seek(OTHER, 1)], IllegalStateError, NOT_ASSIGNED),
    "seek too early": ([subscribe, lambda c: c.seek(OTHER, 1)], IllegalStateError, NOT_ASSIGNED),
    "pause elsewhere": ([assign, lambda c: c.pause([OTHER])], IllegalStateError, NOT_ASSIGNED),
    "resume elsewhere": ([assign, lambda c: c.resume([OTHER])], IllegalStateError, NOT_ASSIGNED),
    "position elsewhere": ([assign, lambda c: c.position(OTHER)], IllegalStateError, NOT_ASSIGNED),
    "lag elsewhere": ([assign, lambda c: c.lag(OTHER)], IllegalStateError, NOT_ASSIGNED),
    "rewind elsewhere": (
        [assign, lambda c: c.seek_to_beginning([OTHER])],
        IllegalStateError,
        NOT_ASSIGNED,
    ),
    "rewind nothing": ([lambda c: c.seek_to_beginning()], IllegalStateError, "nothing to read"),
    "rewind too early": (
        [subscribe, lambda c: c.seek_to_end()],
        IllegalStateError,
        NOTHING_TO_SEEK,
    ),
    "poll nothing": ([lambda c: c.poll(0)], IllegalStateError, "nothing to read"),
    "commit too early": (
        [subscribe, lambda c: c.commit({PART: 1})],
        CommitFailedError,
        "not assigned to this consumer",
    ),
    "metadata too early": (
        [subscribe, lambda c: c.group_metadata()],
        IllegalStateError,
        "poll until it has partitions",
    ),
    "seek after close": ([assign, close, lambda c: c.seek(PART, 0)], ClientClosedError, "closed"),
    "unsubscribe after close": ([close, lambda c: c.unsubscribe()], ClientClosedError, "closed"),
}
CASES = [
    (kind, settings, name, case)
    for kinds, settings, table in (
        ((Producer, AsyncProducer), {"transactional_id": ""}, TRANSACTIONAL),
        ((Producer, AsyncProducer), {}, PLAIN),
        ((Consumer, AsyncConsumer), {}, WITHOUT_GROUP),
        ((Consumer, AsyncConsumer), {"group_id": ""}, IN_GROUP),
    )
    for name, case in table.items()
    for kind in kinds
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("t")
        with Producer(bootstrap_servers=running.bootstrap_servers) as producer:
            producer.send_many("t", [b"%d" % number for number in range(20)])
        yield running


async def made(kind: type, broker: Broker, settings: dict[str, Any]) -> Any:
    """A started client; a setting without a value gets a fresh name."""
    named = {name: value or f"n{next(_numbers)}" for name, value in settings.items()}
    client: Any = kind(bootstrap_servers=broker.bootstrap_servers, **named)
    if kind.__name__.startswith("Async"):
        await client.start()
    return client


async def finished(result: object) -> object:
    return await asyncio.wait_for(result, LIMIT_S) if inspect.isawaitable(result) else result


@pytest.mark.parametrize(
    ("kind", "settings", "case"),
    [
        pytest.param(kind, settings, case, id=f"{kind.__name__}-{name}-{len(settings)}")
        for kind, settings, name, case in CASES
    ],
)
async def test_a_call_out_of_order_says_what_to_do_first(
    broker: Broker, kind: type, settings: dict[str, Any], case: Case
) -> None:
    *before, last = case[0]
    client = await made(kind, broker, settings)
    for call in before:
        await finished(call(client))
    with pytest.raises(case[1], match=case[2]):
        await finished(last(client))
    await finished(client.close())


@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
async def test_a_transaction_within_another_is_refused_and_aborts_both(
    broker: Broker, kind: type
) -> None:
    producer = await made(kind, broker, {"transactional_id": ""})

    async def nested() -> None:
        if kind is Producer:
            with producer.transaction(), producer.transaction():
                pass
        else:
            async with producer.transaction(), producer.transaction():
                pass

    with pytest.raises(IllegalStateError, match="commit or abort it first"):
        await nested()
    await finished(producer.begin_transaction())  # The outer one is over.
    await finished(producer.close())


async def test_two_commits_at_once_are_refused_but_one(broker: Broker) -> None:
    async with AsyncProducer(
        bootstrap_servers=broker.bootstrap_servers, transactional_id="two commits"
    ) as producer:
        await producer.begin_transaction()
        await producer.send("t", b"x")
        ends = await asyncio.gather(
            producer.commit_transaction(), producer.commit_transaction(), return_exceptions=True
        )
    assert ends[0] is None
    assert isinstance(ends[1], IllegalStateError)
    assert "wait for the commit to return" in str(ends[1])


REFUSED_WITHIN: dict[str, Call] = {
    "poll": lambda c: c.poll(0),
    "poll_columns": lambda c: c.poll_columns(0),
    "iteration": lambda c: next(c) if isinstance(c, Consumer) else anext(c),
}


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
@pytest.mark.parametrize("name", REFUSED_WITHIN)
@pytest.mark.parametrize("when", ["on_assigned", "on_revoked"])
async def test_a_poll_within_a_rebalance_callback_is_refused(
    broker: Broker, kind: type, name: str, when: str
) -> None:
    """It had called the callback again, and so on, or waited for ever."""
    refused: list[KafkaError] = []

    def blocking(_: list[TopicPartition]) -> None:
        with pytest.raises(IllegalStateError, match="within a callback") as raised:
            REFUSED_WITHIN[name](consumer)
        refused.append(raised.value)

    async def awaiting(_: list[TopicPartition]) -> None:
        with pytest.raises(IllegalStateError, match="within a callback") as raised:
            await REFUSED_WITHIN[name](consumer)  # type: ignore[misc]
        refused.append(raised.value)

    settings = {"group_id": "", "auto_offset_reset": "earliest"}
    consumer = await made(kind, broker, settings)
    consumer.subscribe(["t"], **{when: blocking if kind is Consumer else awaiting})
    assert await finished(consumer.poll(20_000))
    await finished(consumer.unsubscribe())
    consumer.subscribe(["t"])
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send("t", b"another")
    assert await finished(consumer.poll(20_000))
    await finished(consumer.close())
    assert len(refused) == 1


@pytest.mark.parametrize("kind", [Consumer, AsyncConsumer])
@pytest.mark.parametrize("ended_by", ["unsubscribe", "close"])
async def test_giving_up_within_the_callback_of_giving_up_calls_it_once(
    broker: Broker, kind: type, ended_by: str
) -> None:
    calls: list[list[TopicPartition]] = []

    def blocking(partitions: list[TopicPartition]) -> None:
        calls.append(partitions)
        assert len(calls) < 5
        consumer.unsubscribe()

    async def awaiting(partitions: list[TopicPartition]) -> None:
        calls.append(partitions)
        assert len(calls) < 5
        await consumer.unsubscribe()

    settings = {"group_id": "", "auto_offset_reset": "earliest"}
    consumer = await made(kind, broker, settings)
    consumer.subscribe(["t"], on_revoked=blocking if kind is Consumer else awaiting)
    assert await finished(consumer.poll(20_000))
    await finished(getattr(consumer, ended_by)())
    await finished(consumer.close())
    assert calls == [[PART]]


def test_a_consumer_is_polled_by_one_thread_at_a_time(broker: Broker) -> None:
    """Two would have shared out its records at random, and some twice."""
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="threads") as consumer:
        consumer.assign([OTHER])  # There is no such partition, so the poll waits.
        poll = threading.Thread(target=consumer.poll, args=(600_000,))
        poll.start()
        found: list[str] = []
        while not found:
            for call in REFUSED_WITHIN.values():
                try:
                    if call is REFUSED_WITHIN["iteration"] and not found:
                        continue  # Without a poll under way it would wait for ever.
                    call(consumer)
                except IllegalStateError as error:
                    found.append(str(error))
        consumer.wakeup()
        poll.join(LIMIT_S)
        assert not poll.is_alive()
        assert all("is already being polled" in text for text in found)
        consumer.assign([PART])
        consumer.seek_to_beginning()
        assert consumer.poll(20_000)


async def test_a_consumer_is_polled_by_one_task_at_a_time(broker: Broker) -> None:
    async with AsyncConsumer(
        bootstrap_servers=broker.bootstrap_servers, group_id="tasks"
    ) as consumer:
        consumer.assign([OTHER])
        poll = asyncio.create_task(consumer.poll(600_000))
        await asyncio.sleep(0)
        for call in REFUSED_WITHIN.values():
            with pytest.raises(IllegalStateError, match="is already being polled"):
                await finished(call(consumer))
        consumer.wakeup()
        assert await finished(poll) == {}


def test_a_blocking_consumer_takes_no_coroutine_function_as_a_callback(broker: Broker) -> None:
    async def called(_: list[TopicPartition]) -> None:
        raise AssertionError("nobody can await this")

    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="g") as consumer:
        for when in ("on_assigned", "on_revoked", "on_lost"):
            with pytest.raises(ConfigError, match=f"{when}='called': give a plain function"):
                consumer.subscribe(["t"], **{when: called})


class Asking(ProducerInterceptor):
    """Waits, in the producer's own thread, for what only that thread can bring about."""

    def __init__(self) -> None:
        self.producer: Producer | None = None
        self.refused: list[str] = []

    def on_acknowledgement(self, record: ProducerRecord, metadata: RecordMetadata) -> None:
        producer = self.producer
        if producer is None or self.refused:
            return
        for wait in (
            producer.send("t", b"again").result,
            producer.send_many("t", [b"again"]).result,
            producer.flush,
            producer.close,
        ):
            with pytest.raises(IllegalStateError, match="would never end") as raised:
                wait()
            self.refused.append(str(raised.value))


def test_waiting_in_a_producers_own_callback_is_refused(broker: Broker) -> None:
    asking = Asking()
    with Producer(
        bootstrap_servers=broker.bootstrap_servers, interceptors=[asking], linger_ms=50
    ) as producer:
        asking.producer = producer
        producer.send("t", b"x").result(LIMIT_S)
        producer.flush(LIMIT_S * 1000)
        assert len(asking.refused) == 4
        producer.send("t", b"y").result(LIMIT_S)


class Polling(ConsumerInterceptor):
    """Polls while it is shown what a poll found."""

    def __init__(self) -> None:
        self.consumer: Consumer | None = None
        self.refused = 0

    def on_records(self, records: object) -> None:
        assert self.consumer is not None
        with pytest.raises(IllegalStateError, match="already being polled"):
            self.consumer.poll(0)
        self.refused += 1


def test_an_interceptor_that_polls_is_refused(broker: Broker) -> None:
    polling = Polling()
    with Consumer(
        bootstrap_servers=broker.bootstrap_servers, group_id="g", interceptors=[polling]
    ) as consumer:
        polling.consumer = consumer
        consumer.assign([PART])
        consumer.seek_to_beginning()
        assert consumer.poll(20_000, max_records=5)
        assert consumer.poll_columns(20_000, max_records=5)
        assert next(consumer).topic == "t"
    assert polling.refused == 3


@pytest.mark.parametrize("seconds", [float("inf"), 1e300, threading.TIMEOUT_MAX])
def test_a_wait_of_any_length_ends_with_the_outcome(broker: Broker, seconds: float) -> None:
    with Producer(bootstrap_servers=broker.bootstrap_servers, linger_ms=20) as producer:
        assert producer.send("t", b"x").result(seconds).offset >= 0
        assert producer.send_many("t", [b"x"]).result(seconds)[0].offset >= 0
        producer.flush(2**70)
    consumer = Consumer(bootstrap_servers=broker.bootstrap_servers, group_id="g")
    consumer.close(2**70)
    with pytest.raises(ClientClosedError):
        consumer.topics()


def test_a_deserializer_that_calls_its_own_consumer_is_refused_and_closes_nothing(
    broker: Broker,
) -> None:
    consumers: list[Consumer] = []
    refused: list[str] = []

    def asking(data: bytes) -> bytes:
        for call in (consumers[0].close, consumers[0].commit, consumers[0].topics):
            if len(refused) < 3:
                with pytest.raises(IllegalStateError, match="would never end") as raised:
                    call()
                refused.append(str(raised.value))
        return data

    with Consumer(
        bootstrap_servers=broker.bootstrap_servers, group_id="asking", value_deserializer=asking
    ) as consumer:
        consumers.append(consumer)
        consumer.assign([PART])
        consumer.seek_to_beginning()
        assert consumer.poll(20_000)
        assert consumer.topics() >= {"t"}
    assert len(refused) == 3


def test_nothing_may_be_assigned_and_is_sought_and_polled_in_vain(broker: Broker) -> None:
    """As a program does that was given a list of partitions which happens to be empty."""
    with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        consumer.assign([])
        consumer.seek_to_beginning()
        consumer.pause([])
        assert consumer.poll(0) == {}
