"""Goal: a data folder is opened, kept up and closed as Kafka's is, by one broker at a time.

Method: managers on memory and on a temporary folder; the files in the root and the topics found
after each kind of stop are compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest
from log_batches import NOW_MS, batch, read_all

from onceflow.broker_lite.log import (
    DataFolderError,
    LogConfig,
    LogManager,
    MemoryStorage,
    RealStorage,
    Storage,
    StorageLockedError,
)
from onceflow.broker_lite.log.checkpoints import (
    parse_leader_epochs,
    parse_offsets,
    parse_properties,
    render_leader_epochs,
    render_offsets,
    render_uuid,
)
from onceflow.broker_lite.testing.failing_storage import FailingStorage
from onceflow.sdk.model.partitions import TopicPartition

TOPIC_ID = uuid.uuid4()


def manager_on(storage: Storage, **options: object) -> LogManager:
    def config_for(overrides: Mapping[str, str]) -> LogConfig:
        return LogConfig(retention_ms=int(overrides.get("retention.ms", "1000")))

    return LogManager(
        storage,
        NOW_MS,
        new_uuid=uuid.uuid4,
        config_for=config_for,
        **options,  # type: ignore[arg-type]
    )


def add_topic(manager: LogManager, topic: str = "orders", partitions: int = 3) -> uuid.UUID:
    topic_id = uuid.uuid4()
    for partition in range(partitions):
        manager.create_partition(topic, topic_id, partition, LogConfig(), now_ms=NOW_MS)
    return topic_id


@pytest.mark.parametrize("clean", [True, False])
def test_topics_ids_and_records_are_found_again(tmp_path: Path, clean: bool) -> None:
    manager = manager_on(RealStorage(tmp_path))
    ids = {topic: add_topic(manager, topic) for topic in ("a", "a-1", "b.c_d")}
    for log in manager.partitions():
        log.append(batch(str(log.topic_partition).encode()), now_ms=NOW_MS)
    manager.close(clean)
    again = manager_on(RealStorage(tmp_path))
    assert again.clean_start is clean
    assert again.topics() == {topic: (topic_id, 3) for topic, topic_id in ids.items()}
    for log in again.partitions():
        assert read_all(log) == [(0, str(log.topic_partition).encode())]
    again.close()


def test_the_root_holds_kafkas_files() -> None:
    storage = MemoryStorage()
    manager = manager_on(storage, node_id=4)
    topic_id = add_topic(manager, partitions=2)
    log = manager.partition("orders", 1)
    assert log is not None
    log.append(batch(b"a", b"b", b"c"), now_ms=NOW_MS)
    log.delete_records_before(2)
    assert parse_offsets(bytes(storage.content[""]["log-start-offset-checkpoint"])) == {
        TopicPartition("orders", 1): 2
    }
    manager.close()
    root = storage.content[""]
    assert bytes(root["recovery-point-offset-checkpoint"]) == b"0\n2\norders 0 0\norders 1 3\n"
    assert bytes(root["replication-offset-checkpoint"]) == b"0\n2\norders 0 0\norders 1 3\n"
    assert json.loads(root[".kafka_cleanshutdown"]) == {"version": 0, "brokerEpoch": -1}
    meta = parse_properties(bytes(root["meta.properties"]))
    assert (meta["version"], meta["node.id"]) == ("1", "4")
    assert meta["cluster.id"] == manager.cluster_id
    assert len(meta["directory.id"]) == 22
    folder = storage.content["orders-1"]
    text = f"version: 0\ntopic_id: {render_uuid(topic_id)}\n"
    assert folder["partition.metadata"].decode() == text
    assert bytes(folder["leader-epoch-checkpoint"]) == b"0\n1\n0 2\n"
    again = manager_on(storage, node_id=4)
    log = again.partition("orders", 1)
    assert log is not None
    assert log.log_start_offset == 2
    assert ".kafka_cleanshutdown" not in root, "it must not outlive the start"
    assert again.cluster_id == manager.cluster_id


def test_a_second_broker_on_the_folder_is_told_so(tmp_path: Path) -> None:
    manager = manager_on(RealStorage(tmp_path))
    with pytest.raises(StorageLockedError, match="used by another broker"):
        manager_on(RealStorage(tmp_path))
    program = (
        "import sys, uuid\n"
        "from onceflow.broker_lite.log import LogManager, RealStorage, StorageLockedError\n"
        "try:\n"
        "    LogManager(RealStorage(sys.argv[1]), 0, new_uuid=uuid.uuid4)\n"
        "except StorageLockedError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert str(tmp_path) in done.stdout
    manager.close()
    manager_on(RealStorage(tmp_path)).close()


def test_a_folder_of_another_cluster_or_node_is_refused_and_not_kept_locked() -> None:
    storage = MemoryStorage()
    manager_on(storage, cluster_id="one").close()
    with pytest.raises(DataFolderError, match="cluster one, not two"):
        manager_on(storage, cluster_id="two")
    with pytest.raises(DataFolderError, match="node 1, not 2"):
        manager_on(storage, node_id=2)
    assert manager_on(storage, cluster_id="one").cluster_id == "one"


def test_settings_of_topics_are_kept_and_take_effect_at_once() -> None:
    storage = MemoryStorage()
    manager = manager_on(storage)
    add_topic(manager)
    manager.set_topic_overrides("orders", {"retention.ms": "77"})
    assert [log.config.retention_ms for log in manager.partitions()] == [77] * 3
    manager.close(clean=False)
    again = manager_on(storage)
    assert again.topic_overrides("orders") == {"retention.ms": "77"}
    assert [log.config.retention_ms for log in again.partitions()] == [77] * 3
    again.set_topic_overrides("orders", {})
    assert again.topic_overrides("orders") == {}


def test_a_deleted_topic_stays_deleted_whatever_write_the_crash_interrupts() -> None:
    inner = MemoryStorage()
    manager = manager_on(inner)
    add_topic(manager, "kept", 1)
    add_topic(manager, "gone", 2)
    manager.set_topic_overrides("gone", {"retention.ms": "5"})
    manager.close()
    storage = FailingStorage(inner)
    manager = manager_on(storage)
    before = len(storage.writes)
    manager.delete_topic("gone", NOW_MS)
    assert set(manager.topics()) == {"kept"}
    manager.remove_due(NOW_MS + 59_999)
    assert [name[-7:] for name in inner.directories()] == ["-delete", "-delete", "kept-0"]
    manager.remove_due(NOW_MS + 60_000)
    assert inner.directories() == ["kept-0"]
    complete = len(storage.writes)
    for count in range(before, complete + 1):
        found = manager_on(storage.disk_after(count))
        assert "kept" in found.topics()
        assert not any(name.endswith("-delete") for name in found._storage.directories())
    assert set(found.topics()) == {"kept"}
    assert found.topic_overrides("gone") == {}
    new_id = add_topic(manager, "gone", 2)
    assert manager.topics()["gone"] == (new_id, 2)
    assert manager.topic_overrides("gone") == {}


def test_the_name_of_a_deleted_folder_fits_the_file_system(tmp_path: Path) -> None:
    manager = manager_on(RealStorage(tmp_path))
    topic = "t" * 249
    add_topic(manager, topic, 1)
    manager.delete_topic(topic)
    assert manager.topics() == {}
    manager.close()


def test_a_folder_without_its_id_takes_that_of_its_siblings() -> None:
    storage = MemoryStorage()
    manager = manager_on(storage)
    topic_id = add_topic(manager)
    manager.close(clean=False)
    storage.content["orders-1"]["partition.metadata"].clear()
    assert manager_on(storage).topics() == {"orders": (topic_id, 3)}


def test_the_same_partition_cannot_be_made_twice_or_under_another_id() -> None:
    manager = manager_on(MemoryStorage())
    topic_id = add_topic(manager, partitions=1)
    with pytest.raises(ValueError, match="exists"):
        manager.create_partition("orders", topic_id, 0, LogConfig())
    with pytest.raises(ValueError, match="has id"):
        manager.create_partition("orders", uuid.uuid4(), 1, LogConfig())


def test_folders_that_are_no_partitions_are_left_alone() -> None:
    storage = MemoryStorage()
    for name in ("lost+found", "x-y", "-3"):
        storage.make_directory(name)
    assert manager_on(storage).topics() == {}
    assert storage.directories() == ["-3", "lost+found", "x-y"]


def test_damaged_checkpoints_count_as_empty_and_small_files_are_kept() -> None:
    storage = MemoryStorage()
    manager = manager_on(storage)
    add_topic(manager, partitions=1)
    manager.write_small_file("producer-id-block", b"1000")
    manager.checkpoint(NOW_MS)
    manager.close(clean=False)
    storage.content[""]["recovery-point-offset-checkpoint"] += b"torn"
    again = manager_on(storage)
    assert again.read_small_file("producer-id-block") == b"1000"
    assert again.read_small_file("nothing") is None
    assert set(again.topics()) == {"orders"}


def test_a_log_that_cannot_be_closed_makes_the_stop_unclean() -> None:
    storage = FailingStorage()
    manager = manager_on(storage)
    add_topic(manager, partitions=1)
    log = manager.partition("orders", 0)
    assert log is not None
    log.append(batch(b"a"), now_ms=NOW_MS)
    storage.fail_write(len(storage.writes))
    manager.close()
    assert not manager_on(storage.inner).clean_start


@pytest.mark.parametrize(
    "data",
    [b"", b"0\n", b"1\n0\n", b"0\n2\n1 1\n", b"0\nx\n", b"0\n1\nx y\n", b"0\n1\n1 1"],
)
def test_damaged_text_files_are_recognised(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_leader_epochs(data)
    assert parse_leader_epochs(render_leader_epochs([(0, 0), (3, 17)])) == [(0, 0), (3, 17)]


def test_a_flush_is_done_when_due() -> None:
    manager = manager_on(MemoryStorage())
    topic_id = uuid.uuid4()
    logs = [
        manager.create_partition("orders", topic_id, partition, LogConfig(flush_ms=flush_ms))
        for partition, flush_ms in enumerate((1000, 300, 2**63 - 1))
    ]
    for log in logs:
        log.append(batch(b"a"), now_ms=NOW_MS)
    manager.flush_due(NOW_MS + 300)
    assert [log.recovery_point for log in logs] == [0, 1, 0]


def test_compaction_goes_on_step_by_step_over_all_logs_and_is_remembered() -> None:
    storage = MemoryStorage()
    manager = manager_on(storage)
    config = LogConfig(cleanup_policy="compact", segment_bytes=2000, min_cleanable_dirty_ratio=0.0)
    topic_id = uuid.uuid4()
    logs = [
        manager.create_partition("orders", topic_id, partition, config) for partition in range(3)
    ]
    for log in logs[:2]:
        for _ in range(40):
            log.append(batch(b"x" * 100), now_ms=NOW_MS)
    before = [log.size_bytes for log in logs]
    steps = 0
    while manager.compact(NOW_MS):
        steps += 1
    assert steps >= 2
    assert [log.size_bytes < size for log, size in zip(logs, before, strict=True)] == [
        True,
        True,
        False,
    ]
    assert all(log.compacted_offset > 0 for log in logs[:2])
    text = storage.content[""]["cleaner-offset-checkpoint"]
    assert parse_offsets(bytes(text))[TopicPartition("orders", 0)] == logs[0].compacted_offset
    manager.close()
    again = manager_on(storage)
    found = again.partition("orders", 0)
    assert found is not None
    assert found.compacted_offset == logs[0].compacted_offset


def test_a_topic_may_be_deleted_while_it_is_compacted() -> None:
    manager = manager_on(MemoryStorage())
    config = LogConfig(
        cleanup_policy="compact", segment_bytes=1 << 20, min_cleanable_dirty_ratio=0.0
    )
    log = manager.create_partition("orders", uuid.uuid4(), 0, config)
    for _ in range(40):
        log.append(batch(b"x" * 100_000), now_ms=NOW_MS)
    assert manager.compact(NOW_MS)
    manager.delete_topic("orders")
    assert not manager.compact(NOW_MS)


class _CountingStorage(MemoryStorage):
    """Counts the files that are read, by the ending of their names."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def read_bytes(self, path: str) -> bytes | None:
        self.read.append(path)
        return super().read_bytes(path)


def test_a_start_reads_two_files_of_a_partition_that_nobody_wrote_to() -> None:
    """A thousand topics of ten partitions are to be there within three seconds."""
    storage = _CountingStorage()
    manager = manager_on(storage)
    add_topic(manager, partitions=20)
    manager.close()
    assert not [name for name in storage.names("orders-0") if "snapshot" in name]
    storage.read.clear()
    again = manager_on(storage)
    assert again.clean_start
    ours = [path for path in storage.read if path.startswith("orders-")]
    assert len(ours) == 2 * 20
    again.close()


def test_a_checkpoint_that_is_cut_anywhere_is_damaged() -> None:
    """A power loss cuts a file at any byte; "4 20" must not become "4 2"."""
    epochs = render_leader_epochs([(0, 0), (3, 17), (12, 345)])
    offsets = render_offsets({TopicPartition("t", 0): 123, TopicPartition("u", 14): 2345})
    for size in range(len(epochs)):
        with pytest.raises(ValueError, match=r".*"):
            parse_leader_epochs(epochs[:size])
    for size in range(len(offsets)):
        with pytest.raises(ValueError, match=r".*"):
            parse_offsets(offsets[:size])
