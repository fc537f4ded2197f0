"""Goal: ACLs, users, quotas and changed settings survive whatever stops the broker, or say so.

Method: save sections on a storage that fails and stops; read what every prefix of the writes left;
damage the file in each of its bytes.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from broker_state import SocketlessBroker

from onceflow.broker_lite.cluster_metadata import CLUSTER_METADATA_FILE, ClusterMetadata, Json
from onceflow.broker_lite.log import DataFolderError, MemoryStorage
from onceflow.broker_lite.log.storage import RealStorage
from onceflow.broker_lite.testing.failing_storage import FailingStorage


def test_sections_come_back_from_real_files(tmp_path: Path) -> None:
    storage = RealStorage(tmp_path)
    metadata = ClusterMetadata(storage)
    metadata.save("acls", {"rules": [{"principal": "User:alice", "allow": True}]})
    metadata.save("features", {"group.version": 1})
    storage.close()
    again = ClusterMetadata(RealStorage(tmp_path))
    assert again.section("acls") == {"rules": [{"principal": "User:alice", "allow": True}]}
    assert again.section("features") == {"group.version": 1}
    assert again.section("never saved") == {}


def test_a_section_is_a_copy_and_an_empty_one_is_removed() -> None:
    metadata = ClusterMetadata(MemoryStorage())
    metadata.save("quotas", {"a": [1]})
    taken = metadata.section("quotas")
    taken["a"] = []
    assert metadata.section("quotas") == {"a": [1]}
    metadata.save("quotas", {})
    assert metadata.section("quotas") == {}


def test_what_is_not_json_is_refused_before_anything_changes() -> None:
    storage = MemoryStorage()
    metadata = ClusterMetadata(storage)
    values: list[dict[object, object]] = [{1: "a"}, {"a": (1, 2)}, {"a": float("nan")}]
    for value in values:
        with pytest.raises(ValueError):
            metadata.save("quotas", value)  # type: ignore[arg-type]
    assert storage.read_bytes(CLUSTER_METADATA_FILE) is None


def test_a_write_that_fails_leaves_the_section_as_it_was() -> None:
    storage = FailingStorage()
    metadata = ClusterMetadata(storage)
    metadata.save("acls", {"rules": 1})
    storage.fail_write(1, written_bytes=20)
    with pytest.raises(OSError, match="no space"):
        metadata.save("acls", {"rules": 2})
    assert metadata.section("acls") == {"rules": 1}
    metadata.save("quotas", {"b": 2})
    again = ClusterMetadata(storage.inner)
    assert (again.section("acls"), again.section("quotas")) == ({"rules": 1}, {"b": 2})


def test_after_death_at_any_write_each_section_is_old_or_new() -> None:
    storage = FailingStorage()
    metadata = ClusterMetadata(storage)
    history: list[dict[str, Json]] = [{}]
    for number in range(1, 6):
        metadata.save("acls", {"rules": number})
        history.append({"rules": number})
    for count in range(len(storage.writes) + 1):
        for torn_bytes in (None, 0, 1, 50):
            disk = storage.disk_after(count, torn_bytes=torn_bytes)
            assert ClusterMetadata(disk).section("acls") == history[count]


def test_no_damaged_byte_goes_unnoticed() -> None:
    storage = MemoryStorage()
    ClusterMetadata(storage).save("acls", {"rules": [["User:a", "Deny", 1.5, None, True]]})
    whole = storage.read_bytes(CLUSTER_METADATA_FILE)
    assert whole is not None
    before = ClusterMetadata(storage).section("acls")
    for position in range(len(whole)):
        for damaged in (whole[:position], _with_byte(whole, position, whole[position] ^ 4)):
            storage.replace(CLUSTER_METADATA_FILE, damaged)
            with contextlib.suppress(DataFolderError):
                assert ClusterMetadata(storage).section("acls") == before  # White space.


def _with_byte(data: bytes, position: int, value: int) -> bytes:
    return data[:position] + bytes([value]) + data[position + 1 :]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "damaged"),
        (b"[]", "damaged"),
        (b"[" * 100_000, "damaged"),
        (b'{"version": 1, "checksum": 0, "sections": {}}', "checksum"),
        (b'{"version": 2, "checksum": 0, "sections": {}}', "later broker"),
        (b'{"version": 2, "parts": []}', "later broker"),
    ],
)
def test_a_broker_does_not_start_on_a_damaged_file(content: bytes, said: str) -> None:
    storage = MemoryStorage()
    storage.replace(CLUSTER_METADATA_FILE, content)
    with pytest.raises(DataFolderError, match=said):
        SocketlessBroker(storage=storage)
    storage.remove(CLUSTER_METADATA_FILE)
    SocketlessBroker(storage=storage).close()  # The lock was given back.


def test_a_file_laid_out_anew_is_read() -> None:
    storage = MemoryStorage()
    ClusterMetadata(storage).save("acls", {"é": 1})
    data = storage.read_bytes(CLUSTER_METADATA_FILE)
    assert data is not None
    storage.replace(CLUSTER_METADATA_FILE, json.dumps(json.loads(data)).encode())
    assert ClusterMetadata(storage).section("acls") == {"é": 1}
