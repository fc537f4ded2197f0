"""A scripted broker on a real socket: answers what it is told, loses what it is told to lose.

It speaks enough to let a producer work (one topic, a model log per partition, a coordinator that
says yes), keeps a journal, and lets a test replace any answer: by a response, by silence, or by
closing the connection before or after the request took effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Callable
from typing import TypedDict, TypeVar, Unpack

from producer_rig import ModelLog

from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.api.cluster import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from onceflow.sdk.protocol.api.group_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from onceflow.sdk.protocol.api.produce import ProduceRequest, ProduceResponse
from onceflow.sdk.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.frame import FrameSplitter, decode_request_header, encode_response
from onceflow.sdk.protocol.schema import Request, Response

R = TypeVar("R", bound=Request)
NODE = 1
OFFERED = (
    ApiVersionsRequest,
    MetadataRequest,
    FindCoordinatorRequest,
    ProduceRequest,
    InitProducerIdRequest,
    AddPartitionsToTxnRequest,
    AddOffsetsToTxnRequest,
    TxnOffsetCommitRequest,
    EndTxnRequest,
    DescribeTransactionsRequest,
)


class Fate(enum.Enum):
    """What happens to a request instead of an answer."""

    SILENT = "it takes effect, and nothing is answered"
    CLOSE = "it takes effect, and the connection is closed"
    CLOSE_BEFORE = "it never takes effect, and the connection is closed"
    SWALLOW = "it never takes effect, and nothing is answered"
    MISNUMBERED = "it takes effect, and the answer is numbered as another one's"


Action = Response | Fate | Callable[[Request], Response | Fate | None]


class ScriptedBroker:
    """One broker, one topic.

    Attributes:
        journal: Every request, in the order of arrival.
        logs: Model log by partition.
        epoch: Epoch of the transactional producer.
        transaction_version: 1 or 2.
        listening: Whether new connections are taken.
    """

    def __init__(self, *, partitions: int = 1, topic: str = "t", host: str = "127.0.0.1") -> None:
        self.host = host
        self.journal: list[Request] = []
        self.logs = {n: ModelLog() for n in range(partitions)}
        self.topic = topic
        self.epoch = -1
        self.transaction_version = 2
        self.advertised_node = NODE
        self.max_versions: dict[type[Request], int] = {}
        self._plans: dict[type[Request], list[Action]] = {}
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._arrived = asyncio.Event()
        self.port = 0

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def next(self, request_type: type[Request], *actions: Action) -> None:
        """Replace the next answers to a request."""
        self._plans.setdefault(request_type, []).extend(actions)

    def forget_plans(self) -> None:
        """Answer normally again."""
        self._plans.clear()

    def requests(self, request_type: type[R]) -> list[R]:
        """The requests of one kind so far."""
        return [r for r in self.journal if isinstance(r, request_type)]

    async def wait_for(self, request_type: type[Request]) -> None:
        """Wait until a request of this kind has come."""
        while not self.requests(request_type):
            self._arrived.clear()
            await self._arrived.wait()

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(self._serve, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and drop every connection."""
        if self._server is not None:
            self._server.close()
        self.drop_connections()
        await asyncio.sleep(0)

    def drop_connections(self) -> None:
        """Close every connection."""
        for writer in list(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        splitter = FrameSplitter(1 << 26)
        try:
            while data := await reader.read(1 << 16):
                for frame in splitter.feed(data):
                    if not self._take(frame, writer):
                        return
        except ConnectionError:
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    def _take(self, frame: bytes | memoryview, writer: asyncio.StreamWriter) -> bool:
        header = decode_request_header(frame)
        entry = API[header.api_key]
        request, _ = entry.request_type.decode(frame, header.api_version, header.end)
        self.journal.append(request)
        self._arrived.set()
        plan = self._plans.get(entry.request_type)
        action: Action | None = plan.pop(0) if plan else None
        if callable(action):
            action = action(request)
        if action is Fate.CLOSE_BEFORE:
            return False
        if action is Fate.SWALLOW:
            return True
        reply = action if isinstance(action, Response) else self._answer(request)
        if action is Fate.CLOSE:
            return False
        if action is Fate.SILENT or reply is None:
            return True
        version = header.api_version
        if isinstance(reply, ApiVersionsResponse) and reply.error_code:
            version = 0
        number = header.correlation_id + (action is Fate.MISNUMBERED)
        for part in encode_response(reply, api_version=version, correlation_id=number):
            writer.write(bytes(part))
        return True

    def _answer(self, request: Request) -> Response | None:
        if isinstance(request, ApiVersionsRequest):
            return self._versions()
        if isinstance(request, MetadataRequest):
            return self._metadata(request)
        if isinstance(request, FindCoordinatorRequest):
            found = FindCoordinatorResponse.Coordinator(
                key=(request.coordinator_keys or [""])[0],
                node_id=self.advertised_node,
                host=self.host,
                port=self.port,
                error_code=0,
            )
            return FindCoordinatorResponse(coordinators=[found])
        if isinstance(request, InitProducerIdRequest):
            self.epoch += 1
            return InitProducerIdResponse(producer_id=7, producer_epoch=self.epoch)
        if isinstance(request, ProduceRequest):
            return self._produce(request)
        return self._transactional(request)

    def _transactional(self, request: Request) -> Response:
        if isinstance(request, EndTxnRequest):
            if self.transaction_version == 1:
                return EndTxnResponse()
            self.epoch = request.producer_epoch + 1
            return EndTxnResponse(producer_id=7, producer_epoch=self.epoch)
        if isinstance(request, AddPartitionsToTxnRequest):
            return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[])
        if isinstance(request, AddOffsetsToTxnRequest):
            return AddOffsetsToTxnResponse()
        if isinstance(request, TxnOffsetCommitRequest):
            return TxnOffsetCommitResponse(topics=[])
        if isinstance(request, DescribeTransactionsRequest):
            state = DescribeTransactionsResponse.TransactionState(
                transactional_id=request.transactional_ids[0],
                transaction_state="CompleteAbort",
                producer_id=7,
                producer_epoch=self.epoch,
            )
            return DescribeTransactionsResponse(transaction_states=[state])
        raise AssertionError(f"nothing is known about {request!r}")

    def _versions(self) -> ApiVersionsResponse:
        ranges = []
        for kind in OFFERED:
            low, high = kind.versions
            high = min(high, self.max_versions.get(kind, high))
            ranges.append(
                ApiVersionsResponse.ApiVersion(
                    api_key=kind.api_key, min_version=low, max_version=high
                )
            )
        feature = ApiVersionsResponse.FinalizedFeatureKey(
            name="transaction.version",
            max_version_level=self.transaction_version,
            min_version_level=self.transaction_version,
        )
        return ApiVersionsResponse(api_keys=ranges, finalized_features=[feature])

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        topics = []
        for asked in request.topics or []:
            known = asked.name == self.topic
            topics.append(
                MetadataResponse.MetadataResponseTopic(
                    error_code=0 if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    name=asked.name,
                    partitions=[
                        MetadataResponse.MetadataResponsePartition(
                            error_code=0,
                            partition_index=n,
                            leader_id=self.advertised_node,
                            leader_epoch=0,
                            replica_nodes=[self.advertised_node],
                            isr_nodes=[self.advertised_node],
                        )
                        for n in (self.logs if known else ())
                    ],
                )
            )
        broker = MetadataResponse.MetadataResponseBroker(
            node_id=self.advertised_node, host=self.host, port=self.port
        )
        return MetadataResponse(brokers=[broker], topics=topics)

    def _produce(self, request: ProduceRequest) -> ProduceResponse | None:
        topics = []
        for topic in request.topic_data:
            results = []
            for data in topic.partition_data:
                code, offset = self.logs[data.index].append(bytes(data.records or b""))
                results.append(
                    ProduceResponse.TopicProduceResponse.PartitionProduceResponse(
                        index=data.index, error_code=code, base_offset=offset
                    )
                )
            topics.append(
                ProduceResponse.TopicProduceResponse(name=topic.name, partition_responses=results)
            )
        return ProduceResponse(responses=topics) if request.acks else None


class BrokerSettings(TypedDict, total=False):
    """See ``ScriptedBroker``."""

    partitions: int
    topic: str
    host: str


@contextlib.asynccontextmanager
async def scripted_broker(**settings: Unpack[BrokerSettings]) -> AsyncIterator[ScriptedBroker]:
    """A scripted broker that listens for the length of a test."""
    broker = ScriptedBroker(**settings)
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def refuse_produce(code: int) -> Action:
    """Answer a Produce with an error for every partition, without storing anything."""

    def act(request: Request) -> Response:
        assert isinstance(request, ProduceRequest)
        return ProduceResponse(
            responses=[
                ProduceResponse.TopicProduceResponse(
                    name=topic.name,
                    partition_responses=[
                        ProduceResponse.TopicProduceResponse.PartitionProduceResponse(
                            index=data.index, error_code=code
                        )
                        for data in topic.partition_data
                    ],
                )
                for topic in request.topic_data
            ]
        )

    return act
