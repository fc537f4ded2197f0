"""Goal: lost answers, dead peers and refusals reach the user as promised, or not at all.

Method: the asyncio producer over real sockets against a scripted broker that loses what each test
tells it to, with a model log that would show a duplicate or a gap.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any, Unpack

import pytest
from producer_peer import Fate, ScriptedBroker, refuse_produce, scripted_broker

from onceflow.sdk import AsyncProducer, ConsumerGroupMetadata, ProducerIdentity, TopicPartition
from onceflow.sdk.aio.produce.engine import ProducerEngine
from onceflow.sdk.errors import (
    BufferExhaustedError,
    ClientClosedError,
    ClusterAuthorizationFailedError,
    CommitOutcomeUnknownError,
    DeliveryTimeoutError,
    IllegalGenerationError,
    IllegalStateError,
    KafkaError,
    NoBrokersAvailableError,
    ProducerFencedError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
    TransactionAbortableError,
    TransactionAbortedError,
    UnknownTopicOrPartitionError,
)
from onceflow.sdk.protocol.api.cluster import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
)
from onceflow.sdk.protocol.api.group_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode as E
from onceflow.sdk.protocol.schema import Request, Response
from onceflow.sdk.settings.keywords import ProducerKeywords

QUICK: ProducerKeywords = {
    "linger_ms": 0,
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 20,
    "reconnect_backoff_ms": 5,
    "reconnect_backoff_max_ms": 20,
    "request_timeout_ms": 1_000,
    "delivery_timeout_ms": 30_000,
    "max_block_ms": 30_000,
}


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """A scripted broker."""
    async with scripted_broker() as found:
        yield found


def producer_for(broker: ScriptedBroker, **settings: Unpack[ProducerKeywords]) -> AsyncProducer:
    """A producer with short waits."""
    return AsyncProducer(**{**QUICK, "bootstrap_servers": broker.address, **settings})


# lost answers


@pytest.mark.parametrize("fate", list(Fate))
async def test_a_lost_request_or_answer_neither_loses_nor_duplicates(
    broker: ScriptedBroker, fate: Fate
) -> None:
    async with producer_for(broker) as producer:
        await (await producer.send("t", b"0"))
        broker.next(ProduceRequest, fate)
        found = [await (await producer.send("t", b"%d" % n)) for n in (1, 2)]
    assert broker.logs[0].values == [b"0", b"1", b"2"]
    assert [m.offset for m in found] == [1, 2]


async def test_every_third_answer_lost_under_load_leaves_each_record_once(
    broker: ScriptedBroker,
) -> None:
    for _ in range(12):
        broker.next(ProduceRequest, lambda _: None, lambda _: None, Fate.CLOSE)
    async with producer_for(broker, batch_size=200) as producer:
        handles = [await producer.send("t", b"%d" % n) for n in range(400)]
        offsets = [(await handle).offset for handle in handles]
    assert broker.logs[0].values == [b"%d" % n for n in range(400)]
    assert offsets == list(range(400))


async def test_a_half_open_connection_is_given_up_after_the_request_timeout(
    broker: ScriptedBroker,
) -> None:
    async with producer_for(broker, request_timeout_ms=200) as producer:
        await (await producer.send("t", b"0"))
        broker.next(ProduceRequest, Fate.SWALLOW)
        began = asyncio.get_running_loop().time()
        await (await producer.send("t", b"1"))
        assert asyncio.get_running_loop().time() - began < 20
    assert broker.logs[0].values == [b"0", b"1"]


async def test_a_connection_that_idled_away_is_made_anew_without_an_error(
    broker: ScriptedBroker,
) -> None:
    async with producer_for(broker) as producer:
        for n in range(4):
            await (await producer.send("t", b"%d" % n))
            broker.drop_connections()
    assert broker.logs[0].values == [b"0", b"1", b"2", b"3"]


async def test_a_broker_that_comes_back_elsewhere_is_found_by_the_bootstrap_list() -> None:
    async with scripted_broker() as old, scripted_broker() as new:
        new.advertised_node = 5
        servers = [old.address, new.address]
        async with producer_for(old, bootstrap_servers=servers) as producer:
            await (await producer.send("t", b"0"))
            await old.stop()
            await (await producer.send("t", b"1"))
        assert new.logs[0].values == [b"1"]


# deadlines


async def test_records_fail_in_time_when_the_broker_is_gone(broker: ScriptedBroker) -> None:
    producer = producer_for(broker, delivery_timeout_ms=1_500)
    await producer.start()
    first = await producer.send("t", b"0")
    await first
    await broker.stop()
    handles = [await producer.send("t", b"x") for _ in range(10)]
    for handle in handles:
        with pytest.raises(DeliveryTimeoutError, match="delivery_timeout_ms"):
            await handle
    await producer.close()


async def test_closing_is_bounded_and_settles_everything(broker: ScriptedBroker) -> None:
    producer = producer_for(broker)
    await producer.start()
    await (await producer.send("t", b"0"))
    await broker.stop()
    handles = [await producer.send("t", b"x") for _ in range(10)]
    began = asyncio.get_running_loop().time()
    with pytest.raises(ClientClosedError):
        await producer.close(timeout_ms=200)
    assert asyncio.get_running_loop().time() - began < 20
    for handle in handles:
        with pytest.raises(ClientClosedError):
            await handle


async def test_a_flush_without_answers_ends_in_time_and_the_records_stay_on_their_way(
    broker: ScriptedBroker,
) -> None:
    async with producer_for(broker) as producer:
        await (await producer.send("t", b"0"))
        broker.next(ProduceRequest, Fate.SWALLOW)
        handle = await producer.send("t", b"1")
        with pytest.raises(RequestTimedOutError, match="not acknowledged"):
            await producer.flush(timeout_ms=50)
        assert (await handle).offset == 1


async def test_a_full_memory_is_an_error_after_max_block_ms(broker: ScriptedBroker) -> None:
    producer = producer_for(
        broker,
        buffer_memory=2_000,
        max_request_size=1_000,
        max_block_ms=1_000,
        delivery_timeout_ms=3_000,
    )
    async with producer:
        await (await producer.send("t", b"0"))
        await broker.stop()
        for _ in range(5):
            await producer.send("t", b"x" * 400)
        with pytest.raises(BufferExhaustedError, match="buffer_memory"):
            await producer.send("t", b"x" * 400)
        with pytest.raises(DeliveryTimeoutError):
            await producer.flush()


async def test_a_full_memory_is_an_error_at_once_when_asked_for(broker: ScriptedBroker) -> None:
    producer = producer_for(
        broker,
        buffer_memory=2_000,
        max_request_size=1_000,
        buffer_full="raise",
        linger_ms=4_000,
    )
    async with producer:
        taken = []
        while not producer._engine.accumulator.is_full:
            taken.append(await producer.send("t", b"x" * 400))
        with pytest.raises(BufferExhaustedError, match='buffer_full is "raise"'):
            await producer.send("t", b"x" * 400)
        # What was taken lingers no more, so that there is room again.
        while producer._engine.accumulator.is_full:  # noqa: ASYNC110 - emptied by the answers
            await asyncio.sleep(0)
        last = await producer.send("t", b"y")
        await producer.flush()
        assert (await last).offset == len(taken)
        assert producer.metrics().buffer_exhausted_total == 1


async def test_an_unknown_topic_is_named_after_max_block_ms(broker: ScriptedBroker) -> None:
    async with producer_for(broker, max_block_ms=1_000) as producer:
        with pytest.raises(UnknownTopicOrPartitionError, match="'nowhere'"):
            await producer.send("nowhere", b"x")
        await (await producer.send("t", b"0"))
    assert all(r.allow_auto_topic_creation for r in broker.requests(MetadataRequest) if r.topics)


async def test_a_producer_that_may_not_have_an_id_fails_its_records(
    broker: ScriptedBroker,
) -> None:
    broker.next(
        InitProducerIdRequest,
        InitProducerIdResponse(error_code=E.CLUSTER_AUTHORIZATION_FAILED),
    )
    async with producer_for(broker) as producer:
        with pytest.raises(ClusterAuthorizationFailedError):
            await (await producer.send("t", b"0"))


async def test_an_id_that_is_late_is_waited_for(broker: ScriptedBroker) -> None:
    broker.next(
        InitProducerIdRequest,
        InitProducerIdResponse(error_code=E.COORDINATOR_LOAD_IN_PROGRESS),
        Fate.CLOSE_BEFORE,
    )
    async with producer_for(broker) as producer:
        await (await producer.send("t", b"0"))
    assert broker.logs[0].values == [b"0"]


# asyncio


async def test_constructing_needs_no_loop_and_using_needs_a_start() -> None:
    producer = await asyncio.to_thread(lambda: AsyncProducer(bootstrap_servers="127.0.0.1:1"))
    with pytest.raises(IllegalStateError, match="not started"):
        await producer.send("t", b"x")
    await producer.close()
    await producer.close()
    with pytest.raises(ClientClosedError):
        await producer.start()


async def test_a_failed_start_may_be_tried_again(broker: ScriptedBroker) -> None:
    await broker.stop()
    producer = producer_for(broker, max_block_ms=1_000)
    with pytest.raises(NoBrokersAvailableError, match=broker.address):
        await producer.start()
    await broker.start()
    async with producer:
        await (await producer.send("t", b"x"))


async def test_starting_and_stopping_twice_is_one_producer(broker: ScriptedBroker) -> None:
    producer = producer_for(broker)
    await asyncio.gather(producer.start(), producer.start())
    await producer.start()
    await (await producer.send("t", b"x"))
    assert len(broker.requests(InitProducerIdRequest)) == 1
    await producer.stop()
    await producer.stop()


def test_another_loop_is_noticed() -> None:
    async def first() -> tuple[AsyncProducer, ScriptedBroker]:
        broker = ScriptedBroker()
        await broker.start()
        producer = producer_for(broker)
        await producer.start()
        await producer.send("t", b"x")
        return producer, broker

    async def second(producer: AsyncProducer) -> None:
        with pytest.raises(IllegalStateError, match="another event loop"):
            await producer.flush()
        with pytest.raises(IllegalStateError, match="another event loop"):
            await producer.start()

    loop = asyncio.new_event_loop()
    try:
        producer, broker = loop.run_until_complete(first())
        asyncio.run(second(producer))

        async def end() -> None:
            await producer.close()
            await broker.stop()

        loop.run_until_complete(end())
    finally:
        loop.close()


async def test_cancelling_a_wait_leaves_the_record_on_its_way(broker: ScriptedBroker) -> None:
    async with producer_for(broker) as producer:
        await (await producer.send("t", b"0"))
        broker.next(ProduceRequest, Fate.SILENT)
        handle = await producer.send("t", b"1")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await handle
        assert (await handle).offset == 1
    assert broker.logs[0].values == [b"0", b"1"]


async def test_a_cancelled_waiter_does_not_hide_a_failure(broker: ScriptedBroker) -> None:
    async with producer_for(broker) as producer:
        await (await producer.send("t", b"0"))
        broker.next(ProduceRequest, Fate.SWALLOW, refuse_produce(E.TOPIC_AUTHORIZATION_FAILED))
        handle = await producer.send("t", b"1")
        waiter = asyncio.ensure_future(_await(handle))
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(TopicAuthorizationFailedError):
            await producer.flush()


async def _await(handle: object) -> object:
    return await handle  # type: ignore[misc]


async def test_a_blocked_loop_does_not_lose_what_was_sent(broker: ScriptedBroker) -> None:
    producer = producer_for(broker)
    await producer.start()
    await producer.send("t", b"x")
    threading.Event().wait(0.6)  # The misuse under test: nothing of the loop can run.
    await producer.stop()
    assert broker.logs[0].values == [b"x"]


async def test_send_and_wait_and_bulk(broker: ScriptedBroker) -> None:
    async with producer_for(broker) as producer:
        assert (await producer.send_and_wait("t", b"a")).offset == 0
        group = await producer.send_many("t", [b"b", b"c"])
        assert [m.offset for m in await group] == [1, 2]
        assert await producer.partition_for("t", b"key") == 0
        assert await producer.partitions_for("t") == {0}
        assert (await producer.partition_infos("t"))[0].leader == 1


# transactions


@pytest.mark.parametrize("fate", [Fate.CLOSE, Fate.SILENT, Fate.CLOSE_BEFORE])
async def test_a_lost_answer_to_the_commit_is_asked_for_again(
    broker: ScriptedBroker, fate: Fate
) -> None:
    async with producer_for(broker, transactional_id="x") as producer:
        broker.next(EndTxnRequest, fate)
        async with producer.transaction():
            await producer.send("t", b"a")
        ends = broker.requests(EndTxnRequest)
        assert [(r.producer_epoch, r.committed) for r in ends] == [(0, True)] * 2
        assert producer.identity == ProducerIdentity("x", 7, 1)


async def test_a_commit_whose_answer_cannot_be_read_is_asked_for_again(
    broker: ScriptedBroker,
) -> None:
    """Found by hostile answers: it was told as a failure, and the broker had committed."""
    async with producer_for(broker, transactional_id="x") as producer:
        broker.next(EndTxnRequest, Fate.MISNUMBERED)
        async with producer.transaction():
            await producer.send("t", b"a")
    assert len(broker.requests(EndTxnRequest)) == 2


async def test_an_error_that_no_answer_to_the_commit_holds_leaves_its_outcome_open(
    broker: ScriptedBroker,
) -> None:
    """The first attempt may have got through, whatever keeps the second from being made."""
    async with producer_for(broker, transactional_id="x") as producer:
        await producer.begin_transaction()
        await (await producer.send("t", b"a"))
        broker.next(EndTxnRequest, Fate.CLOSE)
        refused = FindCoordinatorResponse(
            coordinators=[
                FindCoordinatorResponse.Coordinator(
                    key="x", node_id=-1, host="", port=-1, error_code=E.INVALID_REQUEST
                )
            ]
        )
        broker.next(FindCoordinatorRequest, refused)
        with pytest.raises(CommitOutcomeUnknownError):
            await producer.commit_transaction()


async def test_a_throttled_producer_waits_instead_of_asking_again_and_again(
    broker: ScriptedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-219. Found by hostile answers: the loop was busy for as long as the broker throttled."""
    steps: list[int] = []
    original = ProducerEngine._step

    def step(self: ProducerEngine[Any]) -> None:
        steps.append(1)
        original(self)

    monkeypatch.setattr(ProducerEngine, "_step", step)
    async with producer_for(broker) as producer:

        def throttled(request: Request) -> Response:
            answer = broker._answer(request)
            assert isinstance(answer, ProduceResponse)
            answer.throttle_time_ms = 300
            return answer

        broker.next(ProduceRequest, throttled)
        for value in (b"0", b"1"):
            await (await producer.send("t", value))
    assert broker.logs[0].values == [b"0", b"1"]
    assert len(steps) < 100


async def test_an_end_while_markers_are_written_is_tried_again_soon(
    broker: ScriptedBroker,
) -> None:
    async with producer_for(broker, transactional_id="x", retry_backoff_ms=20) as producer:
        concurrent = EndTxnResponse(error_code=E.CONCURRENT_TRANSACTIONS)
        broker.next(EndTxnRequest, concurrent, concurrent)
        async with producer.transaction():
            await producer.send("t", b"a")
    assert len(broker.requests(EndTxnRequest)) == 3


async def test_a_transaction_that_the_coordinator_wants_aborted_is_aborted(
    broker: ScriptedBroker,
) -> None:
    async with producer_for(broker, transactional_id="x") as producer:
        await producer.begin_transaction()
        broker.next(ProduceRequest, refuse_produce(E.TRANSACTION_ABORTABLE))
        await producer.send("t", b"a")
        with pytest.raises(TransactionAbortableError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        assert [r.committed for r in broker.requests(EndTxnRequest)] == [False]
        async with producer.transaction():
            await producer.send("t", b"b")
    assert broker.logs[0].values == [b"b"]


async def test_a_context_aborts_when_its_commit_is_refused(broker: ScriptedBroker) -> None:
    async with producer_for(broker, transactional_id="x") as producer:
        broker.next(ProduceRequest, refuse_produce(E.TOPIC_AUTHORIZATION_FAILED))
        with pytest.raises(TopicAuthorizationFailedError):
            async with producer.transaction():
                await producer.send("t", b"a")
        assert [r.committed for r in broker.requests(EndTxnRequest)] == [False]
        async with producer.transaction():
            await producer.send("t", b"b")


@pytest.mark.parametrize("code", [E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH])
async def test_a_refused_end_with_a_newer_producer_is_being_fenced(
    broker: ScriptedBroker, code: E
) -> None:
    producer = producer_for(broker, transactional_id="x")
    await producer.start()
    await producer.begin_transaction()
    await (await producer.send("t", b"a"))
    broker.epoch += 2
    broker.next(EndTxnRequest, EndTxnResponse(error_code=code))
    with pytest.raises(ProducerFencedError, match="took over"):
        await producer.commit_transaction()
    for call in (producer.begin_transaction, producer.abort_transaction):
        with pytest.raises(ProducerFencedError):
            await call()
    await producer.close()


@pytest.mark.parametrize("code", [E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH, E.INVALID_TXN_STATE])
async def test_a_refused_end_after_the_coordinators_own_abort_can_go_on(
    broker: ScriptedBroker, code: E
) -> None:
    async with producer_for(broker, transactional_id="x") as producer:
        await producer.begin_transaction()
        await (await producer.send("t", b"a"))
        broker.epoch += 1
        broker.next(EndTxnRequest, EndTxnResponse(error_code=code))
        with pytest.raises(TransactionAbortedError, match="aborted by the coordinator"):
            await producer.commit_transaction()
        async with producer.transaction():
            await producer.send("t", b"b")


@pytest.mark.parametrize(
    ("version", "bumps", "error"),
    [
        (1, 0, TransactionAbortedError),
        (1, 1, CommitOutcomeUnknownError),
        (2, 1, TransactionAbortedError),
        (1, 2, ProducerFencedError),
    ],
)
async def test_a_refusal_after_a_lost_answer_says_aborted_only_if_that_is_certain(
    broker: ScriptedBroker, version: int, bumps: int, error: type[KafkaError]
) -> None:
    """Found by simulation: under version 1 a newer producer may have taken over after the lost
    commit, and have aborted: that looks as if the coordinator had aborted ours."""
    broker.transaction_version = version
    async with producer_for(broker, transactional_id="x") as producer:
        await producer.begin_transaction()
        await (await producer.send("t", b"a"))
        epoch = broker.epoch
        refused = EndTxnResponse(error_code=E.INVALID_PRODUCER_EPOCH)

        def later(_: Request) -> Response:
            broker.epoch = epoch + bumps
            return refused

        broker.next(EndTxnRequest, Fate.CLOSE, later)
        with pytest.raises(error):
            await producer.commit_transaction()


async def test_a_coordinator_that_could_not_confirm_a_commit_may_have_made_it(
    broker: ScriptedBroker,
) -> None:
    """Its log may hold the decision although it answered an error."""
    broker.transaction_version = 1
    async with producer_for(broker, transactional_id="x") as producer:
        await producer.begin_transaction()
        await (await producer.send("t", b"a"))
        broker.epoch += 1
        broker.next(
            EndTxnRequest,
            EndTxnResponse(error_code=E.COORDINATOR_NOT_AVAILABLE),
            EndTxnResponse(error_code=E.INVALID_PRODUCER_EPOCH),
        )
        with pytest.raises(CommitOutcomeUnknownError):
            await producer.commit_transaction()


async def test_an_old_epoch_in_a_produce_is_healed_by_the_abort(broker: ScriptedBroker) -> None:
    async with producer_for(broker, transactional_id="x") as producer:
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"0")
        broker.next(ProduceRequest, refuse_produce(E.INVALID_PRODUCER_EPOCH))
        await producer.send("t", b"a")
        broker.epoch += 1
        broker.next(EndTxnRequest, EndTxnResponse(error_code=E.INVALID_PRODUCER_EPOCH))
        with pytest.raises(KafkaError):
            await producer.flush()
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send("t", b"b")
    assert broker.logs[0].values == [b"0", b"b"]


async def test_a_moved_coordinator_is_found_again(broker: ScriptedBroker) -> None:
    async with producer_for(broker, transactional_id="x") as producer:
        before = len(broker.requests(FindCoordinatorRequest))
        broker.next(EndTxnRequest, EndTxnResponse(error_code=E.NOT_COORDINATOR))
        async with producer.transaction():
            await producer.send("t", b"a")
        assert len(broker.requests(FindCoordinatorRequest)) == before + 1


async def test_offsets_of_a_zombie_poison_the_transaction(broker: ScriptedBroker) -> None:
    async with producer_for(broker, transactional_id="x") as producer:
        refusal = TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                    name="in",
                    partitions=[
                        TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                            partition_index=0, error_code=E.ILLEGAL_GENERATION
                        )
                    ],
                )
            ]
        )
        broker.next(TxnOffsetCommitRequest, refusal)
        await producer.begin_transaction()
        offsets = {TopicPartition("in", 0): 5}
        with pytest.raises(IllegalGenerationError):
            await producer.send_offsets_to_transaction(offsets, ConsumerGroupMetadata("g", 3, "m"))
        with pytest.raises(IllegalGenerationError):
            await producer.commit_transaction()
        await producer.abort_transaction()


async def test_version_one_announces_partitions_and_keeps_the_epoch() -> None:
    async with scripted_broker(partitions=2) as broker:
        broker.transaction_version = 1
        async with producer_for(broker, transactional_id="x") as producer:
            for n in range(2):
                async with producer.transaction():
                    await producer.send("t", b"a%d" % n, partition=0)
                    await producer.send("t", b"b%d" % n, partition=1)
            assert producer.identity == ProducerIdentity("x", 7, 0)
        assert broker.requests(AddPartitionsToTxnRequest)
        assert broker.logs[0].values == [b"a0", b"a1"]
        kinds = [type(r) for r in broker.journal]
        assert kinds.index(AddPartitionsToTxnRequest) < kinds.index(ProduceRequest)


async def test_version_one_raises_the_epoch_after_an_abort_of_unknown_batches(
    broker: ScriptedBroker,
) -> None:
    broker.transaction_version = 1
    async with producer_for(broker, transactional_id="x") as producer:
        await producer.begin_transaction()
        broker.next(ProduceRequest, refuse_produce(E.OUT_OF_ORDER_SEQUENCE_NUMBER))
        with pytest.raises(KafkaError):
            await (await producer.send("t", b"a"))
        await producer.abort_transaction()
        await producer.begin_transaction()
        last = broker.requests(InitProducerIdRequest)[-1]
        assert (last.producer_id, last.producer_epoch) == (7, 0)
        assert producer.identity == ProducerIdentity("x", 7, 1)
        await (await producer.send("t", b"b"))
        await producer.commit_transaction()
    assert broker.logs[0].values == [b"b"]


async def test_an_abort_sends_nothing_more(broker: ScriptedBroker) -> None:
    async with producer_for(broker, transactional_id="x", linger_ms=300) as producer:
        await producer.begin_transaction()
        handles = [await producer.send("t", b"x") for _ in range(5)]
        await producer.abort_transaction()
        assert not broker.requests(ProduceRequest)
        assert not broker.requests(EndTxnRequest), "the broker never heard of it"
        for handle in handles:
            with pytest.raises(TransactionAbortedError):
                await handle
