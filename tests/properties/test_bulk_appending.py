"""Goal: what a bulk call takes is in its batches, whole, in order, and the same bytes everywhere.

Method: columns of every kind at random into accumulators of odd sizes that run full in the middle:
compiled and as plain Python the same batches, answers and errors, and the records read
back are those that were given.
"""

from __future__ import annotations

import random
import threading
from types import ModuleType
from typing import Any

import plain_modules
import pyarrow
import pytest

from onceflow.sdk.core.produce import accumulator
from onceflow.sdk.core.produce.appending import make_bulk
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.columns import as_sequence
from onceflow.sdk.protocol.records import decode_batch
from onceflow.sdk.serde import to_json
from onceflow.sdk.settings.config import ProducerConfig
from onceflow.sdk.sync.delivery import DeliveryMaker

CONFIG = ProducerConfig(bootstrap_servers="127.0.0.1:1")
PARTITIONS = 5
TIMES = (0, -1, 5, 1_700_000_000_000, 2**62, 2**63 - 1)


class Subclass(bytes):
    """Bytes, and still not of that type."""


def mixed(chance: random.Random, item: bytes | None) -> object:
    if item is None or chance.random() < 0.5:
        return item
    if chance.random() < 0.01:
        return 5  # no value at all
    return chance.choice((Subclass(item), bytearray(item), memoryview(item), "text é", {"a": item}))


def as_numpy(items: list[Any], kind: object) -> Any:
    return pyarrow.array(items, kind).to_numpy(zero_copy_only=False)


def make_columns(chance: random.Random) -> tuple[Any, Any, Any, Any, int | None]:
    """Values, keys, timestamps, headers and partition of one call."""
    count = chance.choice((0, 1, 3, 50, 300, 1_200))
    sizes = (-1, 0, 1, 5, 20, 60, 63, 64, 130, 700)
    found = [chance.choice(sizes) for _ in range(count)]
    values: Any = [None if size < 0 else chance.randbytes(size) for size in found]
    keys: Any = [
        chance.choice((None, b"", b"a", b"key%d" % chance.randint(0, 40), b"\xff\x00\x80" * 3))
        for _ in range(count)
    ]
    kind = chance.choice(("list", "tuple", "arrow", "numpy", "mixed"))
    if kind == "tuple":
        values, keys = tuple(values), tuple(keys)
    elif kind == "arrow":
        values = pyarrow.array(values, pyarrow.binary())
        keys = pyarrow.chunked_array([pyarrow.array(keys, pyarrow.binary())])
    elif kind == "numpy":
        values, keys = as_numpy(values, pyarrow.binary()), as_numpy(keys, pyarrow.binary())
    elif kind == "mixed":
        values = [mixed(chance, value) for value in values]
        keys = [Subclass(key) if key else key for key in keys]
    times: Any = chance.choice((*TIMES, "each", "numpy"))
    if isinstance(times, str):
        each = [chance.choice(TIMES) for _ in range(count)]
        times = each if times == "each" else as_numpy(each, pyarrow.int64())
    headers = None
    if chance.random() < 0.4:
        odd = [("\ud800", b"")] if chance.random() < 0.2 else None  # It cannot be written.
        some = ([], {"a": b"1"}, [("x", None), ("é", b"")], (("z" * 70, b"q" * 70),))
        headers = [odd if chance.random() < 0.01 else chance.choice(some) for _ in range(count)]
    if chance.random() < 0.3:
        keys = None
    return values, keys, times, headers, chance.choice((None, None, 0, 2))


def as_bytes(item: Any) -> bytes | None:
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, dict):
        return to_json(item)
    return None if item is None else bytes(item)


class Appended:
    """What some calls did: everything that can be seen of them, and the records they took."""

    def __init__(self, seed: int, module: ModuleType, handles: object) -> None:
        chance = random.Random(seed)
        self.seen: list[object] = []
        self.taken: dict[int, list[object]] = {number: [] for number in range(PARTITIONS)}
        self.stored: dict[int, list[object]] = {number: [] for number in range(PARTITIONS)}
        self.accumulator = module.Accumulator(
            lock=threading.Lock(),
            clock_ms=lambda: 7,
            random=lambda: 0.5,
            handles=handles,
            on_ready=lambda: None,
            batch_size=chance.choice((200, 1_000, 16_384)),
            linger_ms=5,
            max_request_size=chance.choice((600, 2_000, 1 << 20)),
            buffer_memory=chance.choice((1_500, 100_000, 1 << 25)),
            codec=0,
        )
        self.state = self.accumulator.topic_state("t", PARTITIONS, range(PARTITIONS))
        for _ in range(3):
            self._call(*make_columns(chance))
        self._drain()

    def _call(self, values: Any, keys: Any, times: Any, headers: Any, partition: Any) -> None:
        values = as_sequence(values)
        keys = None if keys is None else as_sequence(keys)
        times = times if isinstance(times, int) else as_sequence(times)
        try:
            bulk = make_bulk(
                self.accumulator,
                CONFIG,
                self.state,
                values,
                keys,
                partition=partition,
                timestamps_ms=times,
                headers=headers,
            )
        except KafkaError as error:
            self.seen.append(str(error))
            return
        try:
            while not bulk.advance():
                self._drain()
        except KafkaError as error:
            self.seen.append(str(error))
        parts = {n: [(at, size) for _, at, size in part] for n, part in bulk.parts.items()}
        self.seen.append((bulk.position, parts, self.accumulator.memory_used))
        assert len(bulk.partitions) == bulk.position
        assert bulk.is_finished or isinstance(self.seen[-2], str)
        for at, number in enumerate(bulk.partitions):
            some = headers[at] if headers else []
            record = (
                bulk.timestamp_ms(at),
                None if keys is None else as_bytes(keys[at]),
                as_bytes(values[at]),
                list(some.items()) if isinstance(some, dict) else list(some or []),
            )
            self.taken[number].append(record)

    def _drain(self) -> None:
        for batch in self.accumulator.remove_open_and_sealed():
            batch.base_sequence = 3
            batch.build(False)
            data = bytes(batch.data or b"")
            self.seen.append((batch.partition, batch.count, data))
            for item in decode_batch(data):
                time = -1 if item.timestamp is None else item.timestamp
                record = (time, item.key, item.value, list(item.headers))
                self.stored[batch.partition].append(record)
        self.accumulator.memory_used = 0


@pytest.mark.parametrize("seed", range(60))
def test_a_bulk_call_writes_what_it_was_given_and_alike_everywhere(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Appended(seed, accumulator, DeliveryMaker())
    assert first.stored == first.taken
    plain_modules.use("plain", monkeypatch)
    plain = Appended(seed, plain_modules.accumulator, DeliveryMaker())
    assert plain.seen == first.seen
    assert plain.stored == plain.taken
