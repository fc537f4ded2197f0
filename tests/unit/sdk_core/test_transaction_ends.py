"""Goal: the end of a transaction is known or can be asked for again, and a producer that may have
been replaced never takes its transactional id back.

Method: the asyncio producer against the scripted broker, which loses or refuses the end of a
transaction and says who holds the id. What the producer asks afterwards is counted: the same end
under the same identity, and no InitProducerId by which it would fence a newer producer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Unpack

import pytest
from producer_peer import Fate, ScriptedBroker, refuse_produce, scripted_broker

from onceflow.sdk import AsyncProducer, ConsumerGroupMetadata, ProducerIdentity, TopicPartition
from onceflow.sdk.errors import (
    CommitOutcomeUnknownError,
    FatalError,
    IllegalStateError,
    InvalidProducerIdMappingError,
    KafkaError,
    ProducerFencedError,
    RequestTimedOutError,
    TransactionAbortedError,
    UnknownServerError,
)
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.api.transactions import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode as E
from onceflow.sdk.settings.keywords import ProducerKeywords

QUICK: ProducerKeywords = {
    "transactional_id": "x",
    "linger_ms": 0,
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 20,
    "reconnect_backoff_ms": 5,
    "reconnect_backoff_max_ms": 20,
    "request_timeout_ms": 2_000,
    "max_block_ms": 30_000,
}
Calls = Callable[[AsyncProducer], Awaitable[object]]


@pytest.fixture(params=[1, 2], ids=["version1", "version2"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[ScriptedBroker]:
    """A scripted broker that speaks one of the two transaction protocols."""
    async with scripted_broker() as found:
        found.transaction_version = request.param
        yield found


def producer_for(broker: ScriptedBroker, **settings: Unpack[ProducerKeywords]) -> AsyncProducer:
    """A transactional producer with short waits."""
    return AsyncProducer(**{**QUICK, "bootstrap_servers": broker.address, **settings})


async def opened(broker: ScriptedBroker, producer: AsyncProducer, value: bytes = b"a") -> None:
    """Open a transaction with one stored record."""
    await producer.begin_transaction()
    await producer.send_and_wait("t", value)


def ends(broker: ScriptedBroker) -> list[tuple[int, bool]]:
    """Epoch and wish of each end that was asked for."""
    return [(r.producer_epoch, r.committed) for r in broker.requests(EndTxnRequest)]


def heal(broker: ScriptedBroker) -> None:
    """Answer again; a peer that swallowed a request may not answer the next one."""
    broker.forget_plans()
    broker.drop_connections()


REFUSED: dict[str, Calls] = {
    "abort": lambda producer: producer.abort_transaction(),
    "begin": lambda producer: producer.begin_transaction(),
    "init": lambda producer: producer.init_transactions(),
    "send": lambda producer: producer.send("t", b"b"),
    "offsets": lambda producer: producer.send_offsets_to_transaction(
        {TopicPartition("t", 0): 1}, ConsumerGroupMetadata("g")
    ),
}


# a commit without an answer


@pytest.mark.parametrize("fate", [Fate.SWALLOW, Fate.SILENT])
async def test_a_commit_without_an_answer_is_asked_for_until_it_is_known(
    broker: ScriptedBroker, fate: Fate
) -> None:
    """Whether its request was lost or only its answer."""
    async with producer_for(broker, request_timeout_ms=50) as producer:
        await opened(broker, producer)
        identities = len(broker.requests(InitProducerIdRequest))
        broker.next(EndTxnRequest, *[fate] * 20)
        with pytest.raises(CommitOutcomeUnknownError, match=r"commit_transaction\(\) again"):
            await producer.commit_transaction(timeout_ms=200)
        for call in REFUSED.values():
            with pytest.raises(IllegalStateError, match=r"call commit_transaction\(\) again"):
                await call(producer)
        with pytest.raises(CommitOutcomeUnknownError):
            await producer.commit_transaction(timeout_ms=200)
        heal(broker)
        await producer.commit_transaction()
        assert set(ends(broker)) == {(0, True)}
        assert producer.metrics().txn_commit_total == 1
        async with producer.transaction():
            await producer.send("t", b"b")
    assert broker.logs[0].values == [b"a", b"b"]
    assert len(broker.requests(InitProducerIdRequest)) == identities


async def test_a_cancelled_commit_is_asked_for_again(broker: ScriptedBroker) -> None:
    async with producer_for(broker) as producer:
        await opened(broker, producer)
        broker.next(EndTxnRequest, Fate.SILENT)
        commit = asyncio.ensure_future(producer.commit_transaction())
        await broker.wait_for(EndTxnRequest)
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        for call in REFUSED.values():
            with pytest.raises(IllegalStateError, match=r"call commit_transaction\(\) again"):
                await call(producer)
        heal(broker)
        await producer.commit_transaction()
        async with producer.transaction():
            await producer.send("t", b"b")
    assert ends(broker)[:2] == [(0, True)] * 2


async def test_a_context_leaves_a_commit_without_an_answer_to_be_asked_for(
    broker: ScriptedBroker,
) -> None:
    async with producer_for(broker, request_timeout_ms=500, max_block_ms=2_000) as producer:
        broker.next(EndTxnRequest, *[Fate.SWALLOW] * 20)
        with pytest.raises(CommitOutcomeUnknownError):
            async with producer.transaction():
                await producer.send("t", b"a")
        heal(broker)
        await producer.commit_transaction()
    assert set(ends(broker)) == {(0, True)}


async def test_closing_asks_again_for_a_commit_without_an_answer(broker: ScriptedBroker) -> None:
    """Otherwise readers would wait for the transaction's timeout."""
    async with producer_for(broker, request_timeout_ms=50) as producer:
        await opened(broker, producer)
        broker.next(EndTxnRequest, *[Fate.SWALLOW] * 20)
        with pytest.raises(CommitOutcomeUnknownError):
            await producer.commit_transaction(timeout_ms=100)
        heal(broker)
        before = len(ends(broker))
    assert ends(broker)[before:] == [(0, True)]


async def test_an_unknown_server_error_to_the_commit_is_an_unknown_outcome(
    broker: ScriptedBroker,
) -> None:
    async with producer_for(broker) as producer:
        await opened(broker, producer)
        broker.next(EndTxnRequest, EndTxnResponse(error_code=E.UNKNOWN_SERVER_ERROR))
        with pytest.raises(CommitOutcomeUnknownError) as caught:
            await producer.commit_transaction()
        assert isinstance(caught.value.__cause__, UnknownServerError)
        await producer.commit_transaction()


async def test_a_final_refusal_after_a_lost_answer_leaves_the_outcome_open(
    broker: ScriptedBroker,
) -> None:
    """The first attempt may have committed, whatever the coordinator says to the second."""
    producer = producer_for(broker)
    await producer.start()
    await opened(broker, producer)
    denied = EndTxnResponse(error_code=E.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    broker.next(EndTxnRequest, Fate.CLOSE, denied)
    with pytest.raises(CommitOutcomeUnknownError, match="Make a new producer"):
        await producer.commit_transaction()
    with pytest.raises(FatalError):
        await producer.begin_transaction()
    await producer.close()


async def test_a_commit_that_got_through_is_a_success_although_its_repetition_is_refused() -> None:
    """Version 2: under our epoch plus one, only our own commit can be."""
    async with scripted_broker() as broker, producer_for(broker) as producer:
        await opened(broker, producer)
        broker.next(EndTxnRequest, Fate.CLOSE, EndTxnResponse(error_code=E.INVALID_PRODUCER_EPOCH))
        broker.next(DescribeTransactionsRequest, held(1, "CompleteCommit"))
        await producer.commit_transaction()
        broker.next(DescribeTransactionsRequest, held(1, "CompleteCommit"))
        await producer.begin_transaction()
        last = broker.requests(InitProducerIdRequest)[-1]
        assert (last.producer_id, last.producer_epoch) == (7, 1)


async def test_who_holds_the_id_is_asked_with_the_next_commit_if_it_cannot_be_asked_now(
    broker: ScriptedBroker,
) -> None:
    """A refusal means nothing until the coordinator says who raised the epoch."""
    async with producer_for(broker, request_timeout_ms=1_000) as producer:
        await opened(broker, producer)
        refused = EndTxnResponse(error_code=E.INVALID_PRODUCER_EPOCH)
        broker.next(EndTxnRequest, refused, refused)
        broker.next(DescribeTransactionsRequest, *[Fate.SWALLOW] * 20)
        with pytest.raises(CommitOutcomeUnknownError):
            await producer.commit_transaction(timeout_ms=1_500)
        broker.forget_plans()
        broker.next(EndTxnRequest, refused)
        broker.drop_connections()
        broker.next(DescribeTransactionsRequest, held(1, "CompleteAbort"))
        with pytest.raises(TransactionAbortedError):
            await producer.commit_transaction()


# a commit that was interrupted before it was asked for


@pytest.mark.parametrize("then", ["commit", "abort"])
async def test_a_commit_that_was_interrupted_before_it_was_asked_leaves_the_transaction_open(
    broker: ScriptedBroker, then: str
) -> None:
    async with producer_for(broker) as producer:
        await opened(broker, producer)
        broker.next(ProduceRequest, Fate.SWALLOW)
        await producer.send("t", b"b")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await producer.commit_transaction()
        with pytest.raises(RequestTimedOutError):
            await producer.commit_transaction(timeout_ms=50)
        assert not ends(broker)
        broker.drop_connections()
        if then == "commit":
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
        assert ends(broker) == [(0, then == "commit")]


# an abort without an answer


@pytest.mark.parametrize("then", ["abort", "begin", "close"])
async def test_an_abort_without_an_answer_is_asked_for_again(
    broker: ScriptedBroker, then: str
) -> None:
    producer = producer_for(broker, request_timeout_ms=50)
    await producer.start()
    await opened(broker, producer)
    broker.next(EndTxnRequest, *[Fate.SWALLOW] * 20)
    with pytest.raises(RequestTimedOutError):
        await producer.abort_transaction(timeout_ms=100)
    for call in (producer.commit_transaction, producer.init_transactions):
        with pytest.raises(IllegalStateError, match=r"call abort_transaction\(\) again"):
            await call()
    heal(broker)
    before = len(ends(broker))
    if then == "abort":
        await producer.abort_transaction()
    elif then == "begin":
        await producer.begin_transaction()
        await producer.abort_transaction()
    await producer.close()
    assert ends(broker)[before:] == [(0, False)]
    assert set(ends(broker)) == {(0, False)}
    assert len(broker.requests(InitProducerIdRequest)) == 1


# who holds the id


def held(epoch: int, state: str, *, producer_id: int = 7) -> DescribeTransactionsResponse:
    """The coordinator's word about the transactional id."""
    found = DescribeTransactionsResponse.TransactionState(
        transactional_id="x",
        transaction_state=state,
        producer_id=producer_id,
        producer_epoch=epoch,
    )
    return DescribeTransactionsResponse(transaction_states=[found])


def forgotten() -> DescribeTransactionsResponse:
    """The coordinator's word about an id that has expired."""
    found = DescribeTransactionsResponse.TransactionState(
        error_code=E.TRANSACTIONAL_ID_NOT_FOUND, transactional_id="x"
    )
    return DescribeTransactionsResponse(transaction_states=[found])


async def is_finished(broker: ScriptedBroker, producer: AsyncProducer, kind: type) -> None:
    """The producer refuses everything, and has not taken the id back."""
    for call in (
        producer.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
        producer.init_transactions,
    ):
        with pytest.raises(kind):
            await call()
    assert len(broker.requests(InitProducerIdRequest)) == 1
    await producer.close()


@pytest.mark.parametrize("code", [E.PRODUCER_FENCED, E.INVALID_PRODUCER_EPOCH, E.INVALID_TXN_STATE])
async def test_a_forgotten_id_is_no_proof_that_nobody_took_it(
    broker: ScriptedBroker, code: E
) -> None:
    producer = producer_for(broker)
    await producer.start()
    await opened(broker, producer)
    broker.next(EndTxnRequest, EndTxnResponse(error_code=code))
    broker.next(DescribeTransactionsRequest, forgotten())
    with pytest.raises(InvalidProducerIdMappingError, match="forgotten transactional_id 'x'"):
        await producer.commit_transaction()
    await is_finished(broker, producer, InvalidProducerIdMappingError)


async def test_a_forgotten_id_after_a_lost_answer_leaves_the_outcome_open(
    broker: ScriptedBroker,
) -> None:
    producer = producer_for(broker)
    await producer.start()
    await opened(broker, producer)
    broker.next(EndTxnRequest, Fate.CLOSE, EndTxnResponse(error_code=E.PRODUCER_FENCED))
    broker.next(DescribeTransactionsRequest, forgotten())
    with pytest.raises(CommitOutcomeUnknownError):
        await producer.commit_transaction()
    await is_finished(broker, producer, InvalidProducerIdMappingError)


async def test_a_producer_id_that_is_mapped_elsewhere_is_the_end(broker: ScriptedBroker) -> None:
    producer = producer_for(broker)
    await producer.start()
    await opened(broker, producer)
    broker.next(ProduceRequest, refuse_produce(E.INVALID_PRODUCER_ID_MAPPING))
    with pytest.raises(InvalidProducerIdMappingError):
        await producer.send_and_wait("t", b"b")
    await is_finished(broker, producer, InvalidProducerIdMappingError)


@pytest.mark.parametrize(
    "answer", [forgotten(), held(1, "Empty"), held(0, "Ongoing", producer_id=8)]
)
@pytest.mark.parametrize("call", ["begin", "init"])
async def test_a_replaced_producer_does_not_raise_its_epoch(
    answer: DescribeTransactionsResponse, call: str
) -> None:
    """Otherwise it would fence the newer one. Under version 1 the end does not raise it."""
    async with scripted_broker() as broker:
        broker.transaction_version = 1
        producer = producer_for(broker)
        await producer.start()
        await producer.begin_transaction()
        producer.note_partitions([TopicPartition("t", 0)])  # So the next begin raises the epoch.
        await producer.abort_transaction()
        broker.next(DescribeTransactionsRequest, answer)
        with pytest.raises(FatalError) as caught:
            await REFUSED[call](producer)
        await is_finished(broker, producer, type(caught.value))


async def test_an_epoch_is_raised_from_the_one_that_is_known(broker: ScriptedBroker) -> None:
    """The coordinator compares, so that a takeover in this moment is noticed (KIP-360)."""
    async with producer_for(broker) as producer:
        await opened(broker, producer)
        await producer.commit_transaction()
        identity = producer.identity
        assert identity is not None
        broker.next(DescribeTransactionsRequest, held(identity.producer_epoch, "CompleteCommit"))
        await producer.init_transactions()
        last = broker.requests(InitProducerIdRequest)[-1]
        assert (last.producer_id, last.producer_epoch) == (7, identity.producer_epoch)


async def test_a_request_for_a_higher_epoch_is_repeated_as_it_was(broker: ScriptedBroker) -> None:
    """Its answer is lost: the epoch that the coordinator names may be our own or another's, and
    only the coordinator can tell by the repetition."""
    producer = producer_for(broker, request_timeout_ms=50)
    await producer.start()
    await opened(broker, producer)
    await producer.commit_transaction()
    before = len(broker.requests(InitProducerIdRequest))
    identity = producer.identity
    assert identity is not None
    epoch = identity.producer_epoch
    broker.next(DescribeTransactionsRequest, held(epoch, "CompleteCommit"))
    broker.next(InitProducerIdRequest, *[Fate.SILENT] * 20)
    with pytest.raises(KafkaError):
        await producer.init_transactions(timeout_ms=200)
    heal(broker)
    broker.next(DescribeTransactionsRequest, held(epoch + 1, "Empty"))
    broker.next(InitProducerIdRequest, InitProducerIdResponse(error_code=E.PRODUCER_FENCED))
    with pytest.raises(ProducerFencedError):
        await producer.begin_transaction()
    asked = broker.requests(InitProducerIdRequest)[before:]
    assert {(r.producer_id, r.producer_epoch) for r in asked} == {(7, epoch)}
    await producer.close()


@pytest.mark.parametrize("refusal", ["record", "end"])
async def test_an_abort_under_the_next_epoch_is_anothers_if_nothing_of_ours_was_known(
    broker: ScriptedBroker, refusal: str
) -> None:
    """A newer producer that speaks version 1 and aborted leaves the same trace as a timeout."""
    producer = producer_for(broker)
    await producer.start()
    await producer.begin_transaction()
    if refusal == "record":
        broker.next(ProduceRequest, refuse_produce(E.INVALID_PRODUCER_EPOCH))
        broker.next(AddPartitionsToTxnRequest, unknown_partition_epoch)
        with pytest.raises(KafkaError):
            await producer.send_and_wait("t", b"a")
    else:
        producer.note_partitions([TopicPartition("t", 0)])
        broker.next(EndTxnRequest, EndTxnResponse(error_code=E.INVALID_PRODUCER_EPOCH))
    broker.next(DescribeTransactionsRequest, held(1, "CompleteAbort"))
    with pytest.raises(ProducerFencedError):
        await producer.commit_transaction()
    await is_finished(broker, producer, ProducerFencedError)


def unknown_partition_epoch(request: object) -> AddPartitionsToTxnResponse:
    """The coordinator refuses the epoch."""
    assert isinstance(request, AddPartitionsToTxnRequest)
    results = [
        AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                    partition_index=number, partition_error_code=E.INVALID_PRODUCER_EPOCH
                )
                for number in topic.partitions
            ],
        )
        for topic in request.v3_and_below_topics
    ]
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


async def test_an_abort_by_the_coordinator_is_gone_on_from(broker: ScriptedBroker) -> None:
    """It knew the transaction, so nobody else can have got the next epoch."""
    async with producer_for(broker) as producer:
        await opened(broker, producer)
        broker.next(EndTxnRequest, EndTxnResponse(error_code=E.INVALID_PRODUCER_EPOCH))
        broker.next(DescribeTransactionsRequest, held(1, "CompleteAbort"))
        with pytest.raises(TransactionAbortedError, match="aborted by the coordinator"):
            await producer.commit_transaction()
        await producer.abort_transaction()
        broker.epoch = 1
        async with producer.transaction():
            await producer.send("t", b"b")
        last = broker.requests(InitProducerIdRequest)[-1]
        assert (last.producer_id, last.producer_epoch) == (7, 1)
        assert producer.identity in (ProducerIdentity("x", 7, 2), ProducerIdentity("x", 7, 3))


async def test_version_one_closes_for_good_where_a_lost_commit_may_hide_a_takeover() -> None:
    async with scripted_broker() as broker:
        broker.transaction_version = 1
        producer = producer_for(broker)
        await producer.start()
        await opened(broker, producer)
        refused = EndTxnResponse(error_code=E.INVALID_PRODUCER_EPOCH)
        broker.next(EndTxnRequest, Fate.CLOSE, refused)
        broker.next(DescribeTransactionsRequest, held(1, "CompleteAbort"))
        with pytest.raises(CommitOutcomeUnknownError, match="Make a new producer"):
            await producer.commit_transaction()
        await is_finished(broker, producer, ProducerFencedError)
