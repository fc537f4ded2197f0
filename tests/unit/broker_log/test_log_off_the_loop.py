"""Goal: the broker's loop does not wait for the disk: large files are removed, synced and read
elsewhere.

Method: a broker without sockets on real files. The test's thread is the loop; every call of the
system that waits for the disk is recorded with its thread and the size of the file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from broker_state import SocketlessBroker
from log_batches import batch

from onceflow.broker_lite.log import PartitionLog, RealStorage
from onceflow.broker_lite.log.removals import DELETED_SUFFIX
from onceflow.broker_lite.slices import finished

SMALL_BYTES = 4096
"""A file of this size is removed at once: a snapshot, a checkpoint."""

SETTINGS = {
    "onceflow.durability": "kafka",
    "log.segment.delete.delay.ms": 5_000,
    "log.cleaner.backoff.ms": 1_000,
    "log.retention.check.interval.ms": 1_000,
}


class Call(NamedTuple):
    """A call that may wait for the disk."""

    name: str
    path: str
    size: int


@pytest.fixture
def on_loop(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Calls that the test's own thread makes."""
    calls: list[Call] = []
    loop = threading.get_ident()

    def watched(name: str) -> Callable[..., Any]:
        original = getattr(os, name)

        def call(target: Any, *arguments: Any, **options: Any) -> Any:
            if threading.get_ident() == loop:
                path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else target
                size = os.stat(path).st_size if os.path.exists(path) else 0
                calls.append(Call(name, os.path.basename(path), size))
            return original(target, *arguments, **options)

        return call

    for name in ("fsync", "fdatasync", "unlink", "remove", "rmdir"):
        monkeypatch.setattr(os, name, watched(name))
    return calls


def waits(calls: list[Call]) -> list[Call]:
    """Those that take the longer, the larger a file is."""
    return [call for call in calls if "sync" in call.name or call.size > SMALL_BYTES]


class Folder:
    """A broker on a real folder, and what its thread for jobs has left to do."""

    def __init__(self, path: Path, **settings: object) -> None:
        self.path = path
        self.storage = RealStorage(path)
        self.broker = SocketlessBroker({**SETTINGS, **settings}, self.storage)

    def topic(self, name: str, **overrides: str) -> PartitionLog:
        named = {key.replace("_", "."): value for key, value in overrides.items()}
        return self.broker.state.topics.create(name, 1, named, self.broker.now_ms).partitions[0]

    def advance(self, duration_ms: int, steps: int = 60) -> None:
        """Let time go by, with the jobs that begin meanwhile."""
        for _ in range(steps):
            self.broker.advance(duration_ms // steps)
            done = threading.Event()
            self.storage.begin(done.set)
            assert done.wait(60)

    def close(self) -> None:
        self.broker.close()


def fill(folder: Folder, log: PartitionLog, segments: int) -> None:
    while len(log._segments) < segments:
        for number in range(12):
            records = batch(
                os.urandom(30_000), key=b"%d" % number, timestamp_ms=folder.broker.now_ms
            )
            log.append(records, now_ms=folder.broker.now_ms)


def test_rolls_wait_for_nothing(tmp_path: Path, on_loop: list[Call]) -> None:
    folder = Folder(tmp_path)
    log = folder.topic("t", segment_bytes="1048576")
    on_loop.clear()
    fill(folder, log, 5)
    assert waits(on_loop) == []
    folder.close()


def test_compaction_waits_for_nothing(tmp_path: Path, on_loop: list[Call]) -> None:
    folder = Folder(tmp_path)
    log = folder.topic(
        "t",
        segment_bytes="1048576",
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.01",
    )
    fill(folder, log, 5)
    on_loop.clear()
    folder.advance(3_000, steps=600)
    assert log.compacted_offset > 0
    assert [name for name in os.listdir(tmp_path / "t-0") if name.endswith(DELETED_SUFFIX)]
    folder.advance(6_000)
    assert not [name for name in os.listdir(tmp_path / "t-0") if name.endswith(DELETED_SUFFIX)]
    assert waits(on_loop) == []
    folder.close()


def test_retention_waits_for_nothing(tmp_path: Path, on_loop: list[Call]) -> None:
    folder = Folder(tmp_path)
    log = folder.topic("t", segment_bytes="1048576", retention_bytes="1")
    fill(folder, log, 5)
    on_loop.clear()
    folder.advance(2_000)
    assert len(log._segments) == 1
    old = f"{0:020d}.log"
    assert old + DELETED_SUFFIX in os.listdir(tmp_path / "t-0")
    folder.advance(6_000)
    assert not [name for name in os.listdir(tmp_path / "t-0") if name.startswith(old)]
    assert waits(on_loop) == []
    folder.close()


def test_a_deleted_topic_waits_for_nothing(tmp_path: Path, on_loop: list[Call]) -> None:
    folder = Folder(tmp_path)
    log = folder.topic("t")
    fill_at_once = batch(os.urandom(900_000))
    for _ in range(8):
        log.append(fill_at_once, now_ms=folder.broker.now_ms)
    topic = folder.broker.state.topics.get("t")
    assert topic is not None
    on_loop.clear()
    finished(folder.broker.state.topics.deleting(topic, folder.broker.now_ms))
    assert [name for name in os.listdir(tmp_path) if name.endswith("-delete")]
    folder.advance(7_000)
    assert not [name for name in os.listdir(tmp_path) if name.startswith("t-0")]
    assert waits(on_loop) == []
    folder.close()


def test_what_a_crash_left_is_removed_after_the_start(tmp_path: Path, on_loop: list[Call]) -> None:
    folder = Folder(tmp_path, **{"log.segment.delete.delay.ms": 10**9})
    log = folder.topic("t", segment_bytes="1048576", retention_bytes="1")
    gone = folder.topic("gone")
    gone.append(batch(os.urandom(900_000)), now_ms=folder.broker.now_ms)
    fill(folder, log, 3)
    folder.advance(2_000)
    topic = folder.broker.state.topics.get("gone")
    assert topic is not None
    folder.broker.state.topics.delete(topic, folder.broker.now_ms)
    (tmp_path / "t-0" / f"{7:020d}.log.cleaned").write_bytes(bytes(100_000))
    folder.broker.state.close(folder.broker.now_ms, clean=False)
    on_loop.clear()
    again = Folder(tmp_path)
    again.advance(1_000)
    names = [*os.listdir(tmp_path / "t-0"), *os.listdir(tmp_path)]
    assert not [name for name in names if name.endswith(("-delete", ".deleted", ".cleaned"))]
    assert [call for call in on_loop if call.size > SMALL_BYTES] == []
    again.close()
