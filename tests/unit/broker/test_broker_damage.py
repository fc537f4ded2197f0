"""Goal: a damaged file of the data folder is rebuilt or named; it never costs records in silence.

Method: a folder with several segments, producers, a transaction, settings and committed offsets is
closed in order or not; then one file is emptied, cut, garbled or removed, and a broker is started.
It must give all records and offsets back, or refuse with the name of the file.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from broker_state import SocketlessBroker
from filled_folder import RECORDS, all_values, committed, filled, log, new_identity

from onceflow.broker_lite.log import DataFolderError, MemoryStorage
from onceflow.sdk.model.partitions import IsolationLevel

NAMED = {"meta.properties", "topic-configs.json", "producer-id-block"}
"""What cannot be rebuilt."""


DAMAGES: dict[str, Callable[[bytearray], object]] = {
    "emptied": lambda data: data.clear(),
    "cut": lambda data: data.__delitem__(slice(len(data) // 2, None)),
    "garbled": lambda data: data.__setitem__(slice(None), b"\xff" * len(data)),
    "zeroed": lambda data: data.__setitem__(slice(None), bytes(len(data))),
    "flipped": lambda data: data.__setitem__(len(data) // 2, data[len(data) // 2] ^ 0xFF),
}


def is_data(name: str) -> bool:
    return name.endswith(".log")


@pytest.fixture(scope="module")
def folders() -> dict[bool, MemoryStorage]:
    """What a stop in order and a kill leave."""
    result = {}
    for clean in (True, False):
        broker = filled()
        storage = broker.state.log_manager._storage
        assert isinstance(storage, MemoryStorage)
        if clean:
            broker.close()
        result[clean] = storage
    return result


def start(storage: MemoryStorage, name: str) -> SocketlessBroker | None:
    """A broker on the folder; None when it refuses, which it may do for a few files only."""
    if name not in NAMED:
        return SocketlessBroker(storage=storage)
    try:
        return SocketlessBroker(storage=storage)
    except DataFolderError as error:
        text = str(error)
    assert name in text
    assert not storage._locked, "a start that failed gives the folder back"
    return None


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", [*DAMAGES, "removed"])
def test_one_damaged_file_costs_no_record_in_silence(
    folders: dict[bool, MemoryStorage], clean: bool, damage: str
) -> None:
    original = folders[clean]
    expected = [b"%d %d" % (kind, number) for kind in (0, 1) for number in range(RECORDS)]
    expected.append(b"last")
    tried = 0
    for directory, files in original.content.items():
        for name, data in files.items():
            if is_data(name) or (damage != "removed" and not data):
                continue
            storage = MemoryStorage()
            storage.content = copy.deepcopy(original.content)
            target = storage.content[directory]
            if damage == "removed":
                del target[name]
            else:
                DAMAGES[damage](target[name])
            where = f"{directory}/{name} {damage}"
            tried += 1
            broker = start(storage, name)
            if broker is None:
                continue
            assert all_values(broker) == expected, where
            assert committed(broker) == 17, where
            assert log(broker).last_stable_offset == log(broker).high_watermark, where
            used = {producer.producer_id for producer in log(broker).producers()}
            assert new_identity(broker, None)[0] not in used, where
            read = log(broker).read(0, 100, isolation_level=IsolationLevel.READ_COMMITTED)
            assert [first for _, first in read.aborted_transactions or ()] == [0], where
    assert tried > 10
