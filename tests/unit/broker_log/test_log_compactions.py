"""Goal: no log keeps another one from being compacted, and the dirtiest one comes first.

Method: a log manager with several compacted logs in memory, one of them damaged, busy, or on a disk
that is full; steps are counted, sizes and log lines compared.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Iterator

import pytest
from log_batches import NOW_MS, batch

from onceflow.broker_lite.log import LogConfig, LogManager, MemoryStorage, PartitionLog
from onceflow.broker_lite.log import compactions as compactions_module
from onceflow.broker_lite.testing.failing_storage import FailingStorage

CONFIG = LogConfig(cleanup_policy="compact", segment_bytes=2000)
STEPS_MAX = 3000


def manager_on(storage: MemoryStorage | FailingStorage) -> LogManager:
    ids = random.Random(1)
    return LogManager(
        storage, NOW_MS, new_uuid=lambda: uuid.UUID(int=ids.getrandbits(128), version=4)
    )


def add(manager: LogManager, topic: str, config: LogConfig = CONFIG) -> PartitionLog:
    topic_id = uuid.uuid5(uuid.NAMESPACE_DNS, topic)
    return manager.create_partition(topic, topic_id, 0, config, now_ms=NOW_MS)


def fill(log: PartitionLog, count: int = 100) -> None:
    for number in range(count):
        log.append(batch(b"x" * 100, key=b"k%d" % (number % 5)), now_ms=NOW_MS)


def run(manager: LogManager, now_ms: int = NOW_MS) -> int:
    """Compact until there is nothing to do; returns the steps."""
    for steps in range(STEPS_MAX):
        if not manager.compact(now_ms):
            return steps
    pytest.fail("compaction comes to no end")


def damage(storage: MemoryStorage, topic: str) -> None:
    storage.content[f"{topic}-0"][f"{0:020d}.log"][80] ^= 1


def test_a_damaged_log_stops_no_other_and_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    manager = manager_on(storage)
    damaged, sound = add(manager, "a"), add(manager, "b")
    fill(damaged)
    fill(sound)
    before = sound.size_bytes
    damage(storage, "a")
    with caplog.at_level(logging.ERROR):
        for interval in range(5):
            run(manager, NOW_MS + interval * 15_000)
            fill(sound)
    assert sound.size_bytes < 2 * before
    assert sound.compacted_offset > 300
    told = [message for message in caplog.messages if "a-0" in message]
    assert len(told) == 1
    assert "until a restart" in told[0]
    assert damaged.size_bytes == before


def test_what_no_error_was_thought_of_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    manager = manager_on(MemoryStorage())
    odd, sound = add(manager, "a"), add(manager, "b")
    fill(odd, 120)
    fill(sound)

    def broken(now_ms: int) -> Iterator[None]:
        yield
        raise ZeroDivisionError

    monkeypatch.setattr(odd, "compaction", broken)
    with pytest.raises(ZeroDivisionError):
        run(manager)
    run(manager)
    assert sound.compacted_offset > 0


def test_a_deleted_log_that_was_damaged_does_not_hurt_its_successor() -> None:
    storage = MemoryStorage()
    manager = manager_on(storage)
    fill(add(manager, "a"))
    damage(storage, "a")
    run(manager)
    manager.delete_topic("a", NOW_MS)
    again = add(manager, "a")
    assert again.compacted_offset == 0
    fill(again)
    run(manager)
    assert again.compacted_offset > 0


def test_a_restart_looks_at_a_damaged_log_again() -> None:
    storage = MemoryStorage()
    manager = manager_on(storage)
    fill(add(manager, "a"))
    damage(storage, "a")
    run(manager)
    manager.close()
    damage(storage, "a")
    manager = LogManager(storage, NOW_MS, new_uuid=uuid.uuid4, config_for=lambda overrides: CONFIG)
    run(manager)
    log = manager.partition("a", 0)
    assert log is not None
    assert log.compacted_offset > 0


def test_a_full_disk_is_tried_again_and_others_go_on() -> None:
    storage = FailingStorage()
    manager = manager_on(storage)
    logs = [add(manager, topic) for topic in ("a", "b")]
    for log in logs:
        fill(log)
    # The second append of a cleaned file fails once.
    storage.fail_write(len(storage.writes) + 8)
    run(manager)
    assert [log.compacted_offset > 0 for log in logs].count(True) == 1
    run(manager)
    assert all(log.compacted_offset > 0 for log in logs)


def test_a_busy_log_does_not_keep_others_from_being_compacted() -> None:
    manager = manager_on(MemoryStorage())
    busy, quiet = add(manager, "a"), add(manager, "b")
    fill(quiet)
    fill(busy, 50)
    for _ in range(400):
        manager.compact(NOW_MS)
        fill(busy, 12)
        if quiet.compacted_offset:
            break
    assert quiet.compacted_offset > 0


def compacted_first(manager: LogManager, logs: dict[str, PartitionLog], now_ms: int) -> str:
    for _ in range(STEPS_MAX):
        manager.compact(now_ms)
        for name, log in logs.items():
            if log.compacted_offset > offsets[name]:
                return name
    pytest.fail("nothing is compacted")


offsets: dict[str, int] = {}


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_dirtiest_log_comes_first_unless_another_is_overdue(order: str) -> None:
    manager = manager_on(MemoryStorage())
    config = CONFIG.replace(min_cleanable_dirty_ratio=0.01)
    logs = {name: add(manager, name, config) for name in order}
    for log in logs.values():
        fill(log)
    run(manager)
    fill(logs["a"], 40)
    fill(logs["b"], 80)
    offsets.update({name: log.compacted_offset for name, log in logs.items()})
    assert compacted_first(manager, logs, NOW_MS) == "b"
    run(manager)
    fill(logs["a"], 40)
    fill(logs["b"], 80)
    offsets.update({name: log.compacted_offset for name, log in logs.items()})
    logs["a"].config = config.replace(max_compaction_lag_ms=1000)
    assert compacted_first(manager, logs, NOW_MS + 2000) == "a"


def test_the_search_is_cut_into_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compactions_module, "LOOKED_AT_ONCE", 3)
    manager = manager_on(MemoryStorage())
    logs = [add(manager, f"t{number}") for number in range(10)]
    assert run(manager) >= 3
    fill(logs[-1])
    run(manager)
    assert logs[-1].compacted_offset > 0
