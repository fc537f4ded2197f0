"""One broker's side of a conversation: sends its steps, keeps what the answers taught.

A step is plain data: ``key``, ``version``, ``body`` (symbolic), and what its answer is to be
remembered as (``binds``). The answer of each step is plain too (`differential_messages.Normal`),
or a word: "closed", "no answer", "parked" until the end, or "busy" where the connection waits.
"""

from __future__ import annotations

import re
import select
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from differential_messages import Normal, build
from record_bytes import batch, record

from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.compression import compress
from onceflow.sdk.protocol.frame import FrameSplitter, decode_response_header, encode_request
from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.protocol.schema import Message

Plain = Any
Step = dict[str, Plain]

ANSWER_S = 15.0
PAUSE_S = 0.01
ATTEMPTS_MAX = 500
RETRIED = {14, 15, 16}  # The coordinator is loading, away, elsewhere: every client asks again.
CONCURRENT_TRANSACTIONS = 51
MEMBER_ID_REQUIRED = 79
PARKING = {11, 14}
PRODUCE, FETCH, METADATA, LIST_OFFSETS, FIND_COORDINATOR = 0, 1, 3, 2, 10
API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS, INIT_PRODUCER_ID, END_TXN = 18, 19, 20, 22, 26
DESCRIBE_GROUPS = 15
CREATE_PARTITIONS, DESCRIBE_TRANSACTIONS, JOIN_GROUP, CONSUMER_GROUP_HEARTBEAT = 37, 65, 11, 68
PREPARING = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
_SYMBOL = re.compile(r"\$(\w+):(.*?)([+-]\d+)?")
_DEFAULTS: Mapping[str, Plain] = {
    "pid": -1, "epoch": -1, "seq": 0, "member": "", "generation": -1, "id": ZERO_UUID,
    "session": 0, "sessionepoch": 0, "memberepoch": 0,
}  # fmt: skip


class Connection:
    """One socket; requests are sent one at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=ANSWER_S)
        self._splitter = FrameSplitter(1 << 28)
        self.waiting: tuple[Step, int, Message] | None = None

    def send(self, request: Message, version: int) -> None:
        parts = encode_request(
            request, api_version=version, correlation_id=1, client_id="differential"
        )  # type: ignore[arg-type]
        self.socket.sendall(b"".join(parts))

    def receive(self, key: int, version: int, timeout_s: float) -> Message | str | None:
        """The answer; "closed" when the broker hung up, None when nothing came in time."""
        frame = self.receive_frame(timeout_s)
        if frame is None or isinstance(frame, str):
            return frame
        _, end = decode_response_header(frame, key, version)
        return API[key].response_type.decode(frame, version, end)[0]

    def receive_frame(self, timeout_s: float = ANSWER_S) -> bytes | str | None:
        """The same, not decoded."""
        deadline = time.monotonic() + timeout_s
        frames: list[bytes] = []
        while not frames:
            left = deadline - time.monotonic()
            if not select.select([self.socket], [], [], max(left, 0))[0]:
                return None
            try:
                data = self.socket.recv(1 << 18)
            except OSError:
                data = b""
            if not data:
                return "closed"
            frames += [bytes(frame) for frame in self._splitter.feed(data)]
        return frames[0]


class World:
    """What one broker answered so far in one conversation.

    Args:
        bootstrap_servers: HOST:PORT of the broker.
        prefix: Begins every name, so that conversations do not meet.
        park_s: How long an answer may take before it counts as parked.
        settle_s: How long changed settings take to be used, without any sign.
    """

    def __init__(
        self, bootstrap_servers: str, prefix: str, *, park_s: float, settle_s: float = 0.0
    ) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._address = (host, int(port))
        self._prefix = prefix
        self._park_s = park_s
        self._settle_s = settle_s
        self._normal = Normal(prefix)
        self._connections: dict[str, Connection] = {}
        self._values: dict[str, Plain] = {}
        self._answers: list[Plain] = []
        self._settled = False

    def warm(self, group: str = "warm", transactional_id: str = "warm") -> None:
        """Ask for coordinators until both kinds are there, which makes the internal topics, and
        until they know what they have.
        """
        names = (self._name(group), self._name(transactional_id))
        looks = (
            (DESCRIBE_GROUPS, 5, {"groups": [names[0]]}),
            (DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [names[1]]}),
        )
        for key_type, look in enumerate(looks):
            body = {"key_type": key_type, "coordinator_keys": [names[key_type]]}
            for _ in self._attempts("coordinators"):
                found = _codes(self._quietly(FIND_COORDINATOR, 4, body))
                if not found - {0} and not _codes(self._quietly(*look)) & RETRIED:
                    break
        self._connections.pop("look").socket.close()

    def run(self, steps: Sequence[Step]) -> list[Plain]:
        """Play all steps and give their answers."""
        try:
            for index, step in enumerate(steps):
                self._answers.append("parked")
                try:
                    self._answers[index] = self._play(index, step)
                except TimeoutError as error:
                    self._answers[index] = f"stuck: {error}"
            for name in list(self._connections):
                self._collect(name, self._park_s)
            return self._answers
        finally:
            for connection in self._connections.values():
                connection.socket.close()

    # --- one step

    def _play(self, index: int, step: Step) -> Plain:
        if step.get("do") == "await transaction":
            self._await_transaction(self._name(step["transactional_id"]), ("Ongoing", *PREPARING))
            return None
        if step["key"] == CONSUMER_GROUP_HEARTBEAT and not self._settled:
            time.sleep(self._settle_s)  # The groups' part of Kafka hears of new topics by itself.
            self._settled = True
        name = step.get("connection", "main")
        for other in step.get("after", ()):
            self._collect(other, self._park_s)
        if not self._collect(name, self._park_s):
            return "busy"
        key, version = step["key"], step["version"]
        request = build(API[key].request_type, version, step["body"], self.resolve)
        if key == PRODUCE and request.acks == 0:  # type: ignore[attr-defined]
            return self._unanswered(name, request, version, step)
        if key in PARKING:
            return self._maybe_parked(name, index, request, step)
        answer = self._ask(name, request, version)
        for _ in range(ATTEMPTS_MAX):
            if not self._is_to_be_repeated(answer, request):
                break
            time.sleep(PAUSE_S)
            answer = self._ask(name, request, version)
        return self._learned(step, request, answer)

    def _connection(self, name: str) -> Connection:
        if name not in self._connections:
            self._connections[name] = Connection(self._address)
        return self._connections[name]

    def _ask(self, name: str, request: Message, version: int) -> Message | str:
        connection = self._connection(name)
        key: int = request.api_key  # type: ignore[attr-defined]
        try:
            connection.send(request, version)
            answer = connection.receive(key, version, ANSWER_S)
        except OSError:
            answer = "closed"
        if answer is None or isinstance(answer, str):
            connection.socket.close()
            del self._connections[name]
        return "no answer" if answer is None else answer

    def _unanswered(self, name: str, request: Message, version: int, step: Step) -> str:
        self._connection(name).send(request, version)
        probe = API[API_VERSIONS].request_type(client_software_name="", client_software_version="")
        answer = self._ask(name, probe, 0)
        if not isinstance(answer, str):
            self._note_sequences(step, None)
        return answer if isinstance(answer, str) else "taken"

    def _maybe_parked(self, name: str, index: int, request: Message, step: Step) -> Plain:
        connection = self._connection(name)
        for _ in range(ATTEMPTS_MAX):
            connection.send(request, step["version"])
            connection.waiting = (step, index, request)
            if not self._collect(name, self._park_s):
                return "parked"
            if not _codes(self._last) & RETRIED:
                break
            time.sleep(PAUSE_S)
        return self._answers[index]

    def _collect(self, name: str, timeout_s: float) -> bool:
        """Take a parked answer if it is there; whether the connection is free."""
        connection = self._connections.get(name)
        if connection is None or connection.waiting is None:
            return True
        step, index, request = connection.waiting
        answer = connection.receive(step["key"], step["version"], timeout_s)
        if answer is None:
            return False
        connection.waiting = None
        self._last = answer
        if isinstance(answer, str):
            del self._connections[name]
        self._answers[index] = self._learned(step, request, answer)
        return True

    def _is_to_be_repeated(self, answer: Message | str, request: Message) -> bool:
        codes = _codes(answer)
        if CONCURRENT_TRANSACTIONS in codes and hasattr(request, "transactional_id"):
            self._await_transaction(request.transactional_id, PREPARING)
            return True
        return bool(codes & RETRIED) and not isinstance(answer, str)

    # --- symbols

    def resolve(self, value: Plain) -> Plain:
        """The value of a symbol or of a described batch; anything else as it is."""
        if isinstance(value, dict) and "batch" in value:
            return b"".join(self._batch(item) for item in value["batch"])
        if isinstance(value, dict) and "hex" in value:
            return bytes.fromhex(value["hex"])
        if isinstance(value, dict) and "subscription" in value:
            return self._subscription(value["subscription"])
        if not isinstance(value, str) or not value.startswith("$"):
            return value
        match = _SYMBOL.fullmatch(value)
        assert match, value
        kind, argument, shift = match.groups()
        if kind == "name":
            return self._name(argument)
        found = self._values.get(f"{kind}:{argument}", _DEFAULTS[kind])
        if shift:
            found += int(shift)
            if kind == "seq" and found > 0x7FFFFFFF:
                found -= 1 << 31
        return found

    def _name(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _subscription(self, topics: Sequence[str]) -> bytes:
        names = [self._name(topic).encode() for topic in topics]
        body = b"".join(len(name).to_bytes(2, "big") + name for name in names)
        return b"\0\0" + len(names).to_bytes(4, "big") + body + b"\xff\xff\xff\xff"

    def _batch(self, described: Mapping[str, Plain]) -> bytes:
        count, codec = described["count"], described.get("codec", 0)
        first = described.get("timestamp", 0)
        records = b"".join(
            record(
                i,
                timestamp_delta=described.get("step", 0) * i,
                key=_numbered(described.get("key"), i),
                value=b"v%d" % i * described.get("times", 1),
                headers=[(b"h", b"1")] * described.get("headers", 0),
            )
            for i in range(count)
        )
        producer = described.get("producer")
        fields: dict[str, Plain] = {
            "attributes": codec | (16 if described.get("transactional") else 0),
            "base_timestamp": first,
            "max_timestamp": first + max(0, described.get("step", 0) * (count - 1)),
        }
        if producer is not None:
            fields["producer_id"] = self.resolve(f"$pid:{producer}")
            fields["producer_epoch"] = self.resolve(described["epoch"])
            fields["base_sequence"] = self.resolve(described["sequence"])
        fields |= described.get("fields", {})
        return batch(bytes(compress(codec, records)) if codec else records, count, **fields)

    # --- what answers teach

    def _learned(self, step: Step, request: Message, answer: Message | str) -> Plain:
        if isinstance(answer, str):
            return answer
        key, binds = step["key"], step.get("binds")
        if key == CREATE_TOPICS:
            for topic in answer.topics:  # type: ignore[attr-defined]
                if request.validate_only:  # type: ignore[attr-defined]
                    topic.topic_id = ZERO_UUID  # Kafka names one that nobody will see again.
                elif topic.error_code == 0:
                    self._await_topic(topic.name)
        elif key == CREATE_PARTITIONS and not request.validate_only:  # type: ignore[attr-defined]
            for result in answer.results:  # type: ignore[attr-defined]
                if result.error_code == 0:
                    self._await_topic(result.name, self._count(step, result.name))
        elif key == DELETE_TOPICS:
            self._await_deletion(answer)
        elif key == INIT_PRODUCER_ID and answer.error_code == 0:  # type: ignore[attr-defined]
            self._identity(binds, answer)
        elif key == END_TXN and answer.error_code == 0:  # type: ignore[attr-defined]
            self._await_transaction(request.transactional_id, PREPARING)  # type: ignore[attr-defined]
            if step["version"] >= 5 and binds:
                self._identity(binds, answer)
        elif key == PRODUCE:
            self._note_sequences(step, answer)
        elif key == JOIN_GROUP and answer.member_id:  # type: ignore[attr-defined]
            self._joined(binds, answer)
        elif key == CONSUMER_GROUP_HEARTBEAT and binds and answer.error_code == 0:  # type: ignore[attr-defined]
            self._values[f"memberepoch:{binds}"] = answer.member_epoch  # type: ignore[attr-defined]
            if answer.member_id:  # type: ignore[attr-defined]
                self._values[f"member:{binds}"] = answer.member_id  # type: ignore[attr-defined]
                self._normal.learn("member", answer.member_id)  # type: ignore[attr-defined]
        elif key == FETCH and binds and answer.error_code == 0:  # type: ignore[attr-defined]
            self._values[f"session:{binds}"] = answer.session_id  # type: ignore[attr-defined]
            epoch = request.session_epoch  # type: ignore[attr-defined]
            self._values[f"sessionepoch:{binds}"] = max(epoch, 0) + 1
        elif key in (33, 44, 49) and self._settle_s:
            time.sleep(self._settle_s)
        return self._normal.answer(answer, step["version"])

    def _identity(self, binds: str | None, answer: Message) -> None:
        pid, epoch = answer.producer_id, answer.producer_epoch  # type: ignore[attr-defined]
        if pid < 0:
            return
        self._normal.learn("pid", ("pid", pid))
        before = (self._values.get(f"pid:{binds}"), self._values.get(f"epoch:{binds}"))
        if binds and before != (pid, epoch):
            self._values[f"pid:{binds}"], self._values[f"epoch:{binds}"] = pid, epoch
            for name in [n for n in self._values if n.startswith(f"seq:{binds}:")]:
                del self._values[name]

    def _joined(self, binds: str, answer: Message) -> None:
        member_id: str = answer.member_id  # type: ignore[attr-defined]
        if answer.error_code in (0, MEMBER_ID_REQUIRED):  # type: ignore[attr-defined]
            self._normal.learn("member", member_id)
            self._values[f"member:{binds}"] = member_id
            if answer.error_code == 0:  # type: ignore[attr-defined]
                self._values[f"generation:{binds}"] = answer.generation_id  # type: ignore[attr-defined]

    def _note_sequences(self, step: Step, answer: Message | None) -> None:
        failed = set()
        for topic in answer.responses if answer else ():  # type: ignore[attr-defined]
            for partition in topic.partition_responses:
                if partition.error_code:
                    failed.add((topic.name or topic.topic_id, partition.index))
        moved: dict[str, int] = {}
        for topic in step["body"]["topic_data"]:
            slot = topic["name"]
            names = {self.resolve(slot), self.resolve(topic["topic_id"])}
            for partition in topic["partition_data"]:
                described = (partition["records"] or {}).get("batch") or [{}]
                producer = described[0].get("producer")
                if producer is None or any((n, partition["index"]) in failed for n in names):
                    continue
                at = f"seq:{producer}:{slot.removeprefix('$name:')}:{partition['index']}"
                after = self.resolve(described[0]["sequence"]) + described[0]["count"]
                moved[at] = max(after & 0x7FFFFFFF, 0)
        self._values |= moved

    # --- waiting for what Apache Kafka does after it answered

    def _quietly(self, key: int, version: int, body: Plain) -> Message:
        request = build(API[key].request_type, version, body, self.resolve)
        answer = self._ask("look", request, version)
        assert not isinstance(answer, str), f"no answer to {request}"
        return answer

    def _attempts(self, what: str) -> Iterator[None]:
        for _ in range(ATTEMPTS_MAX):
            yield
            time.sleep(PAUSE_S)
        raise TimeoutError(f"it never came to that: {what}")

    def _await_topic(self, name: str, count: int = 1) -> None:
        for _ in self._attempts(f"topic {name} with {count} partitions"):
            body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
            topic = self._quietly(METADATA, 12, body).topics[0]  # type: ignore[attr-defined]
            if topic.error_code or len(topic.partitions) < count:
                continue
            asked = [{"partition_index": i, "timestamp": -2} for i in range(len(topic.partitions))]
            looked = self._quietly(
                LIST_OFFSETS, 5, {"topics": [{"name": name, "partitions": asked}]}
            )
            if not _codes(looked) - {0}:
                break
        self._values[f"id:{name.removeprefix(self._prefix)}"] = topic.topic_id
        self._normal.learn("topic", topic.topic_id)

    def _await_deletion(self, answer: Message) -> None:
        for result in answer.responses:  # type: ignore[attr-defined]
            if result.error_code or not result.name:
                continue
            for _ in self._attempts(f"deletion of {result.name}"):
                body = {"topics": [{"name": result.name}], "allow_auto_topic_creation": False}
                if self._quietly(METADATA, 12, body).topics[0].error_code:  # type: ignore[attr-defined]
                    break

    def _count(self, step: Step, name: str) -> int:
        topics = step["body"]["topics"]
        return next(t["count"] for t in topics if self.resolve(t["name"]) == name)

    def _await_transaction(self, transactional_id: str, states: Sequence[str]) -> None:
        for _ in self._attempts(f"transaction {transactional_id} out of {states}"):
            body = {"transactional_ids": [transactional_id]}
            found = self._quietly(DESCRIBE_TRANSACTIONS, 0, body)
            if found.transaction_states[0].transaction_state not in states:  # type: ignore[attr-defined]
                break


def _numbered(text: str | None, number: int) -> bytes | None:
    return None if text is None else text.replace("%d", str(number)).encode()


def _codes(answer: object) -> set[int]:
    """All error codes anywhere in an answer."""
    if isinstance(answer, list):
        return set().union(*map(_codes, answer)) if answer else set()
    if not isinstance(answer, Message):
        return set()
    found: set[int] = set()
    for name in answer.fields():
        value = getattr(answer, name)
        if name.endswith("error_code"):
            found.add(value)
        elif isinstance(value, (list, Message)):
            found |= _codes(value)
    return found


def versions_of(bootstrap_servers: str) -> dict[int, tuple[int, int]]:
    """What a broker advertises."""
    host, _, port = bootstrap_servers.rpartition(":")
    connection = Connection((host, int(port)))
    probe = API[API_VERSIONS].request_type(client_software_name="", client_software_version="")
    connection.send(probe, 0)
    answer = connection.receive(API_VERSIONS, 0, ANSWER_S)
    connection.socket.close()
    assert answer is not None
    assert not isinstance(answer, str)
    return {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}  # type: ignore[attr-defined]


__all__ = ["UUID", "Step", "World", "versions_of"]
