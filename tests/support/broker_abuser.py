"""A client without manners over a broker without sockets, for tests of what must hold nevertheless.

`Abuser` sends requests of every kind about transactions, groups and topics in random order and
versions, with identities, epochs, sequences and sessions of any age, lets peers go away and time
jump, and notes what was acknowledged. `DyingStorage` lets the process die under it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import NamedTuple, TypeVar
from uuid import UUID

from broker_requests import fetch_request, produce_request
from broker_state import START_MS, SocketlessBroker
from broker_wire import batch, values_of
from coordinator_bench import ProcessDied
from coordinator_processor import DyingStorage

from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.request_context import CloseConnection
from onceflow.broker_lite.testing.failing_storage import FailingStorage
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.api.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from onceflow.sdk.protocol.api.group_offsets import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    TxnOffsetCommitRequest,
)
from onceflow.sdk.protocol.api.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from onceflow.sdk.protocol.api.offsets import DeleteRecordsRequest, ListOffsetsRequest
from onceflow.sdk.protocol.api.produce import ProduceResponse
from onceflow.sdk.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.protocol.schema import Request, Response

T = TypeVar("T")

TOPICS = ("a", "b", "c.d")
GROUPS = ("g", "h")
TRANSACTIONAL_IDS = ("t", "u")
SEQUENCE_WRAP = 2**31
DYING_SETTINGS: dict[str, object] = {"group.min.session.timeout.ms": 10}


class Sent(NamedTuple):
    """A batch of one record that was sent at least once."""

    topic: str
    partition: int
    transactional_id: str | None
    producer_id: int
    producer_epoch: int
    sequence: int
    value: bytes


class Abuser:
    """Sends whatever comes to mind.

    Attributes:
        broker: The broker, a new one after each restart.
        stored: What was acknowledged, by the topic id, partition and offset told: the values that
            may be there, several where a sequence was sent with different ones.
    """

    def __init__(
        self, storage: DyingStorage | FailingStorage, seed: int, settings: dict[str, object]
    ) -> None:
        self.storage = storage
        self.random = random.Random(seed)
        self.settings = {**DYING_SETTINGS, **settings}
        self.broker = SocketlessBroker(self.settings, storage, seed)
        self.identities: dict[str | None, list[tuple[int, int]]] = {}
        self.sequences: dict[tuple[int, int, str, int], int] = {}
        self.sent: list[Sent] = []
        self.stored: dict[tuple[UUID, int, int], set[bytes]] = {}
        self.members: list[tuple[str, int]] = [("", -1)]
        self.sessions: list[tuple[int, int]] = [(0, 0)]
        self.parked: list[Deferred[Response]] = []
        self.counter = 0

    # --- life

    def restart(self, *, clean: bool, clock_step_ms: int = 0) -> None:
        """Stop the broker and start another on the same folder, perhaps with the clock set back."""
        now_ms = self.broker.now_ms + clock_step_ms
        self.parked.clear()
        self.sessions = [(0, 0)]
        if clean:
            with contextlib.suppress(ProcessDied):
                self.broker.close()
        while True:
            self.storage.close()  # the operating system gives up a dead process's lock
            try:
                broker = SocketlessBroker(self.settings, self.storage, self.random.getrandbits(30))
                broker.advance(max(0, now_ms - START_MS))
            except (ProcessDied, OSError):
                continue  # It cannot start on a full disk, and says so; it is started again.
            self.broker = broker
            return

    def step(self) -> None:
        """Send one request, let time pass, or let a peer go away."""
        chosen: Callable[[], None] = self.random.choices(
            [action for action, _ in ACTIONS], [weight for _, weight in ACTIONS]
        )[0].__get__(self)
        chosen()

    def ask(self, request: Request, api_version: int) -> Response | None:
        """Send a request; None when there is no answer yet, or the connection was closed."""
        try:
            answer = self.broker.dispatch(request, api_version)
        except CloseConnection:
            return None
        result = answer.result
        if isinstance(result, Deferred):
            self.parked.append(result)
            return None
        return result

    def pick(self, *choices: T) -> T:
        """One of the choices."""
        return self.random.choice(choices)

    def version(self, low: int, high: int) -> int:
        """A version, often the newest."""
        return high if self.random.random() < 0.4 else self.random.randint(low, high)

    def identity(self, transactional_id: str | None) -> tuple[int, int]:
        """An identity of this id, mostly the newest."""
        known = self.identities.get(transactional_id)
        if not known:
            return self.pick((0, 0), (999, 3))
        return known[-1] if self.random.random() < 0.8 else self.random.choice(known)

    # --- producers and transactions

    def init(self) -> None:
        """InitProducerId."""
        transactional_id = self.pick(*TRANSACTIONAL_IDS, None)
        asked = (-1, -1)
        if transactional_id and self.random.random() < 0.4:
            asked = self.identity(transactional_id)
        response = self.ask(
            InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=self.pick(1_000, 20_000, 60_000),
                producer_id=asked[0],
                producer_epoch=asked[1],
            ),
            self.version(3, 5),
        )
        if isinstance(response, InitProducerIdResponse) and not response.error_code:
            self.identities.setdefault(transactional_id, []).append(
                (response.producer_id, response.producer_epoch)
            )

    def produce(self) -> None:
        """Produce one record, in a transaction or not, or something sent before once more."""
        if self.sent and self.random.random() < 0.3:
            self.send(self.random.choice(self.sent[-6:]))
            return
        transactional_id = self.pick(*TRANSACTIONAL_IDS, *TRANSACTIONAL_IDS, None)
        producer_id, epoch = self.identity(transactional_id)
        topic, partition = self.pick(*TOPICS), self.pick(0, 0, 0, 0, 1, 2)
        key = (producer_id, epoch, topic, partition)
        sequence = self.sequences.get(key, 0)
        if self.random.random() < 0.05:
            sequence = self.pick(SEQUENCE_WRAP - 1, sequence + 1, max(0, sequence - 3))
        self.counter += 1
        self.send(
            Sent(topic, partition, transactional_id, producer_id, epoch, sequence,
                 b"%d" % self.counter)
        )  # fmt: skip

    def send(self, sent: Sent) -> None:
        """Send a batch and note what the answer promises."""
        self.sent.append(sent)
        topic = self.broker.state.topics.get(sent.topic)
        api_version = self.version(7, 13)
        name: str | UUID = sent.topic
        if api_version == 13:
            name = ZERO_UUID if topic is None else topic.topic_id
        response = self.ask(
            produce_request(
                name,
                batch(
                    sent.value,
                    producer_id=sent.producer_id,
                    producer_epoch=sent.producer_epoch,
                    base_sequence=sent.sequence,
                    transactional=sent.transactional_id is not None,
                    timestamp_ms=self.broker.now_ms,
                ),
                partition=sent.partition,
                transactional_id=sent.transactional_id,
            ),
            api_version,
        )
        assert isinstance(response, ProduceResponse)
        part = response.responses[0].partition_responses[0]
        if not part.error_code:
            assert topic is not None
            key = (sent.producer_id, sent.producer_epoch, sent.topic, sent.partition)
            self.sequences[key] = (sent.sequence + 1) % SEQUENCE_WRAP
            told = (topic.topic_id, sent.partition, part.base_offset)
            self.stored.setdefault(told, set()).update(
                other.value for other in self.sent if other[:-1] == sent[:-1]
            )

    def add_partitions(self) -> None:
        """AddPartitionsToTxn."""
        transactional_id = self.pick(*TRANSACTIONAL_IDS)
        producer_id, epoch = self.identity(transactional_id)
        topics = [
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
                name=self.pick(*TOPICS, "nowhere"), partitions=[self.pick(0, 1, 2)]
            )
        ]
        api_version = self.version(0, 5)
        if api_version < 4:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=topics,
            )
        else:
            request = AddPartitionsToTxnRequest(
                transactions=[
                    AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
                        transactional_id=transactional_id,
                        producer_id=producer_id,
                        producer_epoch=epoch,
                        verify_only=self.pick(True, False),
                        topics=topics,
                    )
                ]
            )
        self.ask(request, api_version)

    def add_offsets(self) -> None:
        """AddOffsetsToTxn."""
        transactional_id = self.pick(*TRANSACTIONAL_IDS)
        producer_id, epoch = self.identity(transactional_id)
        self.ask(
            AddOffsetsToTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                group_id=self.pick(*GROUPS, ""),
            ),
            self.version(0, 4),
        )

    def commit_in_transaction(self) -> None:
        """TxnOffsetCommit, of members and of others."""
        transactional_id = self.pick(*TRANSACTIONAL_IDS)
        producer_id, epoch = self.identity(transactional_id)
        member_id, generation_id = self.random.choice(self.members)
        self.ask(
            TxnOffsetCommitRequest(
                transactional_id=transactional_id,
                group_id=self.pick(*GROUPS),
                producer_id=producer_id,
                producer_epoch=epoch,
                generation_id=generation_id,
                member_id=member_id,
                topics=[
                    TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                        name=self.pick(*TOPICS, "nowhere"),
                        partitions=[
                            TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                                partition_index=self.pick(0, 1),
                                committed_offset=self.random.randrange(100),
                                committed_metadata=self.pick("", None, "x" * 5_000),
                            )
                        ],
                    )
                ],
            ),
            self.version(3, 5),
        )

    def end(self) -> None:
        """EndTxn; version 5 hands the next identity out."""
        transactional_id = self.pick(*TRANSACTIONAL_IDS)
        producer_id, epoch = self.identity(transactional_id)
        response = self.ask(
            EndTxnRequest(
                transactional_id=transactional_id,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=self.pick(True, False),
            ),
            self.version(0, 5),
        )
        if (
            isinstance(response, EndTxnResponse)
            and not response.error_code
            and response.producer_id >= 0
        ):
            self.identities.setdefault(transactional_id, []).append(
                (response.producer_id, response.producer_epoch)
            )

    # --- topics

    def create_topic(self) -> None:
        """CreateTopics."""
        self.ask(
            CreateTopicsRequest(
                topics=[
                    CreateTopicsRequest.CreatableTopic(
                        name=self.pick(*TOPICS),
                        num_partitions=self.pick(1, 2, 3),
                        replication_factor=1,
                        assignments=[],
                        configs=[],
                    )
                ]
            ),
            self.version(2, 7),
        )

    def grow_topic(self) -> None:
        """CreatePartitions."""
        self.ask(
            CreatePartitionsRequest(
                topics=[
                    CreatePartitionsRequest.CreatePartitionsTopic(
                        name=self.pick(*TOPICS), count=self.pick(2, 3), assignments=None
                    )
                ],
                timeout_ms=1,
                validate_only=False,
            ),
            self.version(0, 3),
        )

    def delete_topic(self) -> None:
        """DeleteTopics, also with open transactions."""
        topic = self.broker.state.topics.get(name := self.pick(*TOPICS))
        if topic is not None:  # Also a deletion that failed may have removed something.
            self.stored = {
                told: sent for told, sent in self.stored.items() if told[0] != topic.topic_id
            }
        self.ask(DeleteTopicsRequest(topic_names=[name], timeout_ms=1), 4)

    def delete_records(self) -> None:
        """DeleteRecords, also into open transactions."""
        self.ask(
            DeleteRecordsRequest(
                topics=[
                    DeleteRecordsRequest.DeleteRecordsTopic(
                        name=self.pick(*TOPICS),
                        partitions=[
                            DeleteRecordsRequest.DeleteRecordsPartition(
                                partition_index=self.pick(0, 1),
                                offset=self.pick(-1, 0, 2, 5, 30, -7),
                            )
                        ],
                    )
                ],
                timeout_ms=1,
            ),
            self.version(0, 2),
        )

    # --- readers

    def fetch(self) -> None:
        """Fetch, with sessions that are new, known, repeated or invented."""
        session_id, epoch = self.random.choice(self.sessions)
        response = self.ask(
            fetch_request(
                self.pick(*TOPICS),
                partitions={self.pick(0, 1, 2): self.pick(0, 1, 7, -1, 2**40)},
                max_wait_ms=self.pick(0, 0, 500),
                min_bytes=self.pick(0, 1, 2**31 - 1),
                isolation_level=self.pick(0, 1),
                session_id=session_id,
                session_epoch=epoch,
                forgotten=self.pick(None, [0], [1, 1, 9]),
            ),
            self.version(7, 12),
        )
        told = getattr(response, "session_id", 0)
        if told:
            self.sessions.append((told, self.pick(1, epoch + 1, 2**31 - 1, -1)))

    def list_offsets(self) -> None:
        """ListOffsets by any time."""
        self.ask(
            ListOffsetsRequest(
                isolation_level=self.pick(0, 1),
                topics=[
                    ListOffsetsRequest.ListOffsetsTopic(
                        name=self.pick(*TOPICS),
                        partitions=[
                            ListOffsetsRequest.ListOffsetsPartition(
                                partition_index=self.pick(0, 1),
                                timestamp=self.pick(-1, -2, -3, 0, 2**60, START_MS),
                            )
                        ],
                    )
                ],
            ),
            self.version(2, 11),
        )

    # --- groups

    def join(self) -> None:
        """JoinGroup, dynamic or static, under ids that are new or old."""
        member_id, _ = self.random.choice(self.members)
        response = self.ask(
            JoinGroupRequest(
                group_id=self.pick(*GROUPS),
                session_timeout_ms=self.pick(10, 10_000),
                rebalance_timeout_ms=self.pick(0, 5_000),
                member_id=member_id,
                group_instance_id=self.pick(None, None, "i"),
                protocol_type=self.pick("consumer", "consumer", "connect"),
                protocols=[
                    JoinGroupRequest.JoinGroupRequestProtocol(
                        name=self.pick("range", "sticky"), metadata=self.pick(b"", b"\0\1junk")
                    )
                ],
            ),
            self.version(5, 9),
        )
        if isinstance(response, JoinGroupResponse) and response.member_id:
            self.members.append((response.member_id, response.generation_id))

    def sync(self) -> None:
        """SyncGroup of anybody."""
        member_id, generation_id = self.random.choice(self.members)
        self.ask(
            SyncGroupRequest(
                group_id=self.pick(*GROUPS),
                generation_id=generation_id,
                member_id=member_id,
                assignments=[
                    SyncGroupRequest.SyncGroupRequestAssignment(
                        member_id=self.random.choice(self.members)[0], assignment=b"x"
                    )
                ],
            ),
            self.version(0, 4),
        )

    def heartbeat(self) -> None:
        """Heartbeat, or leaving."""
        member_id, generation_id = self.random.choice(self.members)
        group_id = self.pick(*GROUPS)
        if self.random.random() < 0.5:
            self.ask(
                HeartbeatRequest(
                    group_id=group_id, generation_id=generation_id, member_id=member_id
                ),
                self.version(0, 4),
            )
        else:
            self.ask(LeaveGroupRequest(group_id=group_id, member_id=member_id), 2)

    def commit(self) -> None:
        """OffsetCommit and OffsetFetch."""
        member_id, generation_id = self.random.choice(self.members)
        group_id = self.pick(*GROUPS)
        self.ask(
            OffsetCommitRequest(
                group_id=group_id,
                generation_id_or_member_epoch=generation_id,
                member_id=member_id,
                topics=[
                    OffsetCommitRequest.OffsetCommitRequestTopic(
                        name=self.pick(*TOPICS),
                        partitions=[
                            OffsetCommitRequest.OffsetCommitRequestPartition(
                                partition_index=0,
                                committed_offset=self.random.randrange(9),
                                committed_metadata="",
                            )
                        ],
                    )
                ],
            ),
            self.version(2, 9),
        )
        self.ask(
            OffsetFetchRequest(
                groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=None)],
                require_stable=True,
            ),
            self.version(8, 9),
        )

    # --- the world

    def pass_time(self) -> None:
        """Some time goes by."""
        self.broker.advance(self.pick(1, 100, 3_000, 12_000))

    def hang_up(self) -> None:
        """Peers go away while their requests are parked."""
        for deferred in self.parked:
            if self.random.random() < 0.5:
                deferred.disconnect()
        self.parked = [deferred for deferred in self.parked if not deferred.completed]

    # --- what must hold

    def finish(self) -> None:
        """Let every transaction come to its end."""
        for _ in range(10):
            self.broker.advance(61_000)

    def check(self) -> None:
        """No transaction hangs; what was acknowledged is there once, and nothing is there twice."""
        values: dict[UUID, dict[int, dict[bytes, list[int]]]] = {}
        for topic in self.broker.state.topics:
            for partition, log in enumerate(topic.partitions):
                where = TopicPartition(topic.name, partition)
                assert log.last_stable_offset == log.high_watermark, f"{where} hangs"
                assert log.high_watermark == log.log_end_offset
                if topic.internal:
                    continue
                found = values.setdefault(topic.topic_id, {}).setdefault(partition, {})
                offset = log.log_start_offset
                while offset < log.log_end_offset:
                    result = log.read(offset, 1)
                    for value in values_of(result.records):
                        found.setdefault(value or b"", []).append(offset)
                    offset += 1
        for partitions in values.values():
            for found in partitions.values():
                assert all(len(offsets) == 1 for offsets in found.values()), "stored twice"
        for (topic_id, partition, offset), sent in self.stored.items():
            known = self.broker.state.topics.get_by_id(topic_id)
            if known is not None and offset >= known.partitions[partition].log_start_offset:
                found = values[topic_id][partition]
                there = {value for value, offsets in found.items() if offset in offsets}
                assert there, f"{sent} is not at {offset}"
                assert there <= sent, f"{sent} is not at {offset}, but {there}"


ACTIONS: tuple[tuple[Callable[[Abuser], None], int], ...] = (
    (Abuser.init, 4),
    (Abuser.produce, 24),
    (Abuser.add_partitions, 8),
    (Abuser.add_offsets, 4),
    (Abuser.commit_in_transaction, 6),
    (Abuser.end, 8),
    (Abuser.create_topic, 6),
    (Abuser.grow_topic, 2),
    (Abuser.delete_topic, 1),
    (Abuser.delete_records, 2),
    (Abuser.fetch, 6),
    (Abuser.list_offsets, 3),
    (Abuser.join, 4),
    (Abuser.sync, 3),
    (Abuser.heartbeat, 2),
    (Abuser.commit, 3),
    (Abuser.pass_time, 5),
    (Abuser.hang_up, 2),
)
