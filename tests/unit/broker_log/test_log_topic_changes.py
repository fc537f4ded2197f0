"""Goal: a topic is created, grown and deleted as a whole, whatever the process dies of.

Method: the folder after every single change of an operation is opened again, with the change whole
and, for writes, torn; what is found must be the topic before or after, never half of it. Failing
changes must leave nothing that a later topic of that name could inherit.
"""

from __future__ import annotations

import logging
import uuid

import pytest
from log_batches import NOW_MS, batch, read_all

from onceflow.broker_lite.log import LogConfig, LogManager, MemoryStorage, Storage
from onceflow.broker_lite.log.topic_changes import TOPIC_CHANGES_FILE
from onceflow.broker_lite.testing.failing_storage import Change, FailingStorage

OLD_ID = uuid.UUID(int=7)
NEW_ID = uuid.UUID(int=8)


def manager_on(storage: Storage) -> LogManager:
    return LogManager(storage, NOW_MS, new_uuid=uuid.uuid4)


def create(manager: LogManager, topic_id: uuid.UUID, total: int) -> None:
    list(manager.growing("t", topic_id, total, LogConfig(), now_ms=NOW_MS))


def folder_with(partitions: int) -> MemoryStorage:
    """A folder with topic t, one record in each partition."""
    storage = MemoryStorage()
    manager = manager_on(storage)
    create(manager, OLD_ID, partitions)
    for log in manager.partitions():
        log.append(batch(b"old"), now_ms=NOW_MS)
    manager.close()
    return storage


def everything(manager: LogManager) -> dict[str, list[bytes | None]]:
    return {
        str(log.topic_partition): [value for _, value in read_all(log)]
        for log in manager.partitions()
    }


@pytest.mark.parametrize(("before", "after"), [(0, 3), (0, 1), (1, 4), (2, 3), (3, 0), (1, 0)])
def test_death_at_any_change_leaves_the_topic_before_or_after(before: int, after: int) -> None:
    storage = FailingStorage(folder_with(before) if before else MemoryStorage())
    manager = manager_on(storage)
    first = len(storage.writes)
    if after:
        create(manager, OLD_ID, after)
    else:
        manager.delete_topic("t", NOW_MS)
    complete = everything(manager)
    assert len(complete) == after
    for count in range(first, len(storage.writes) + 1):
        disk = storage.disk_after(count)
        found = manager_on(disk)
        sizes = {len(found.partitions()), *(total for _, total in found.topics().values())}
        assert sizes <= {before, after}, f"death after change {count - first}: {found.topics()}"
        assert {topic_id for topic_id, _ in found.topics().values()} <= {OLD_ID} or before == 0
        old = {name: values for name, values in everything(found).items() if values}
        assert len(old) in (0, before), "records of some partitions only"
        assert TOPIC_CHANGES_FILE not in disk.content[""], "it is done and forgotten"
    assert everything(found) == complete


@pytest.mark.parametrize("partitions", [1, 3])
def test_creation_that_fails_leaves_no_topic(partitions: int) -> None:
    probe = FailingStorage()
    manager = manager_on(probe)
    first = len(probe.writes)
    create(manager, NEW_ID, partitions)
    # Flushes come afterwards, and the end of the note is not needed.
    flushes = (Change.FLUSH, Change.FLUSH_DIRECTORY)
    made = [write for write in probe.writes if write.change not in flushes]
    for number in range(first, len(made) - (partitions > 1)):
        storage = FailingStorage()
        manager = manager_on(storage)
        storage.fail_write(number)
        with pytest.raises(OSError, match="no space left"):
            create(manager, NEW_ID, partitions)
        manager.delete_topic("t", NOW_MS)
        assert manager.topics() == {}
        manager.close(clean=False)
        assert manager_on(storage.inner).topics() == {}, f"change {number - first} failed"


def test_a_new_topic_inherits_nothing_from_a_deletion_that_failed() -> None:
    probe = FailingStorage(folder_with(3))
    manager = manager_on(probe)
    first = len(probe.writes)
    manager.delete_topic("t", NOW_MS)
    for number in range(first, len(probe.writes)):
        for total in (1, 2, 4):
            storage = FailingStorage(folder_with(3))
            manager = manager_on(storage)
            storage.fail_write(number)
            try:
                manager.delete_topic("t", NOW_MS)
            except OSError:
                assert manager.topics() == {}, "the topic is gone all the same"
            create(manager, NEW_ID, total)
            assert not any(everything(manager).values())
            manager.close(clean=False)
            again = manager_on(storage.inner)
            assert again.topics() == {"t": (NEW_ID, total)}
            assert not any(everything(again).values())


def test_a_folder_of_another_topic_id_is_kept_aside(caplog: pytest.LogCaptureFixture) -> None:
    storage = folder_with(2)
    storage.content["t-2"] = folder_with(1).content["t-0"]
    text = storage.content["t-2"]["partition.metadata"]
    text[:] = text.replace(b"AAAAAAAAAAAAAAAAAAAABw", b"AAAAAAAAAAAAAAAAAAAACA")
    with caplog.at_level(logging.ERROR):
        manager = manager_on(storage)
    assert manager.topics() == {"t": (OLD_ID, 2)}
    (stray,) = [name for name in storage.directories() if name.endswith("-stray")]
    assert storage.content[stray]["00000000000000000000.log"], "its records are still there"
    assert stray in caplog.text


def test_a_damaged_note_counts_as_none() -> None:
    storage = folder_with(2)
    storage.content[""][TOPIC_CHANGES_FILE] = bytearray(b'{"t": 3')
    assert manager_on(storage).topics() == {"t": (OLD_ID, 2)}
