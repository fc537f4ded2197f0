"""Goal: whatever a data folder holds, a start works with every record whose bytes are whole, or it
stops with an error that names the file.

Method: a folder with something of everything, after both ways to stop, of which seeded changes hit
any file: bytes, huge numbers, cuts, repeats, garbage behind, files swapped. A start gives a broker
or an error of the SDK with the file's name, in bounded memory; where no segment of the topic was
touched (nor where it begins was told anew), it holds exactly what was acknowledged, and else each
offset gives what was acknowledged, an error, or a record behind it: a closed segment whose end was
cut at a border looks, as in Apache Kafka, like one whose last records were compacted away. Seeds
are fixed; ``ONCEFLOW_FUZZ_SEEDS`` runs more.
"""

from __future__ import annotations

import copy
import os
import random
import resource

import pytest
from broker_state import SocketlessBroker
from filled_folder import RECORDS, filled, log

from onceflow.broker_lite.log import LogError, MemoryStorage
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.protocol.batch_errors import InvalidBatchError
from onceflow.sdk.protocol.batch_header import (
    CONTROL_BIT,
)
from onceflow.sdk.protocol.records import decode_batch, iter_batch_headers

SEEDS = int(os.environ.get("ONCEFLOW_FUZZ_SEEDS", "3")) * 20
MEMORY_KB_MAX = 32 * 1024
START_FILE = "log-start-offset-checkpoint"
ACKNOWLEDGED = {  # Behind each transaction is its marker.
    kind * (RECORDS + 1) + number: b"%d %d" % (kind, number)
    for kind in (0, 1)
    for number in range(RECORDS)
} | {2 * (RECORDS + 1): b"last"}


def change(rng: random.Random, data: bytearray) -> None:
    """Damage a file in one way."""
    at = rng.randrange(len(data) + 1)
    match rng.randrange(6):
        case 0:
            data[at : at + 1] = rng.randbytes(1)
        case 1:
            size = rng.choice((2, 4, 8))
            data[at : at + size] = rng.choice((b"\xff", b"\x7f", b"\0")) * size
        case 2:
            del data[at:]
        case 3:
            data += rng.randbytes(rng.randrange(1, 400))
        case 4:
            data[at:at] = data[at : at + rng.randrange(1, 200)]
        case 5:
            digits = [i for i, byte in enumerate(data) if byte in b"0123456789"]
            if digits:
                place = rng.choice(digits)
                data[place : place + 1] = rng.choice((b"-1", b"9" * 30, b"", b"x", b"1e9"))


def damage(rng: random.Random, storage: MemoryStorage) -> list[str]:
    """Damage some files; gives their paths."""
    every = [(folder, name) for folder, files in storage.content.items() for name in files]
    touched = []
    for folder, name in rng.sample(every, rng.choice((1, 1, 2, 4))):
        touched.append(f"{folder}/{name}" if folder else name)
        if rng.random() < 0.1:
            other_folder, other = rng.choice(every)
            touched.append(f"{other_folder}/{other}" if other_folder else other)
            files, others = storage.content[folder], storage.content[other_folder]
            files[name], others[other] = others[other], files[name]
        else:
            change(rng, storage.content[folder][name])
    return touched


@pytest.fixture(scope="module")
def folders() -> list[MemoryStorage]:
    """What a stop in order and a kill leave."""
    result = []
    for clean in (True, False):
        broker = filled()
        storage = broker.state.log_manager._storage
        assert isinstance(storage, MemoryStorage)
        if clean:
            broker.close()
        result.append(storage)
    return result


def start(storage: MemoryStorage, touched: list[str]) -> SocketlessBroker | None:
    try:
        return SocketlessBroker(storage=storage)
    except KafkaError as error:
        text = str(error)
    named = {part for path in touched for part in path.rsplit("/", 1)}
    assert any(part in text for part in named), text
    assert not storage._locked, "a start that failed gives the folder back"
    return None


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_start_works_or_names_the_file(folders: list[MemoryStorage], seed: int) -> None:
    rng = random.Random(seed)
    storage = MemoryStorage()
    storage.content = copy.deepcopy(rng.choice(folders).content)
    touched = damage(rng, storage)
    print(touched)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    broker = start(storage, touched)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < MEMORY_KB_MAX
    if broker is None:
        return
    if broker.state.topics.partition("t", 0) is None:
        assert any(not path.endswith(".log") for path in touched)
        return
    found = readable(broker)
    if not any(
        path == START_FILE or (path.endswith(".log") and path.startswith("t-0/"))
        for path in touched
    ):
        assert found == ACKNOWLEDGED
    assert found == {offset: ACKNOWLEDGED.get(offset) for offset in found}
    broker.close()


def readable(broker: SocketlessBroker) -> dict[int, bytes | None]:
    """What clients get, by its offset; where they get an error, nothing."""
    partition = log(broker)
    assert partition.log_end_offset < 10_000
    found: dict[int, bytes | None] = {}
    for offset in range(partition.log_start_offset, partition.log_end_offset):
        try:
            data = bytes(partition.read(offset, 1).records)
            records = [
                record
                for position, header in iter_batch_headers(data)
                if not header.attributes & CONTROL_BIT
                for record in decode_batch(data, position)
            ]
        except (LogError, InvalidBatchError):
            continue
        assert all(record.offset >= offset for record in records)
        found.update((record.offset, record.value) for record in records)
    return found
