"""Goal: a batch is skipped only when it was published, and goes on only from what was published.

Method: checkpoint folders as Spark writes them and progress entries as groups hold them are
compared; no broker takes part.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceflow.sdk import OffsetAndMetadata, TopicPartition
from onceflow.sdk.errors import ConfigError
from onceflow.spark_integration.checkpoint import Checkpoint
from onceflow.spark_integration.progress import (
    ENTRIES_MAX,
    Progress,
    Published,
    check_starts,
    is_ahead,
    is_replay,
)

PLACE = TopicPartition("out", 0)


def checkpoint(folder: Path, *planned: tuple[int, int]) -> Checkpoint:
    """A checkpoint with batches by number and time of planning."""
    (folder / "offsets").mkdir(parents=True, exist_ok=True)
    for batch_id, time_ms in planned:
        text = f'v1\n{{"batchTimestampMs":{time_ms}}}\n{{"logOffset":1}}'
        (folder / "offsets" / str(batch_id)).write_text(text)
    return Checkpoint(str(folder))


def published(kept: Checkpoint, batch_id: int) -> Published:
    return Published("q", "out", batch_id, kept.digest(batch_id))


def test_last_batch_is_a_replay_and_the_next_one_is_not(tmp_path: Path) -> None:
    kept = checkpoint(tmp_path, (0, 1), (1, 2))
    assert is_replay(published(kept, 1), kept.plan(), kept, "g")
    assert not is_replay(published(kept, 0), kept.plan(), kept, "g")
    assert not is_replay(None, kept.plan(), kept, "g")


def test_checkpoint_that_was_set_back_is_refused_at_each_number(tmp_path: Path) -> None:
    ahead = checkpoint(tmp_path / "ahead", (0, 1), (1, 2), (2, 3))
    last = published(ahead, 2)
    for planned in ([(0, 1), (1, 9)], [(0, 1), (1, 8), (2, 9)], [(1, 7), (2, 8), (3, 9)]):
        back = checkpoint(tmp_path / str(planned[-1][0]), *planned)
        with pytest.raises(ConfigError, match=r"set back or copied.*groupId=g"):
            is_replay(last, back.plan(), back, "g")
        assert is_ahead(last, back.plan()) == (planned[-1][0] < 3)


def test_batches_that_spark_deleted_cannot_be_compared_and_are_allowed(tmp_path: Path) -> None:
    kept = checkpoint(tmp_path, (100, 5), (101, 6))
    old = Published("q", "out", 7, "hash of a deleted file")
    assert not is_replay(old, kept.plan(), kept, "g")
    (tmp_path / "offsets" / "3").write_text("v1\n{}\n-")
    with pytest.raises(ConfigError, match="set back or copied"):
        is_replay(old, kept.plan(), kept, "g")


def test_entries_of_queries_that_share_a_name_do_not_replace_each_other() -> None:
    progress = Progress()
    for query in ("a", "b", "a"):
        note = progress.note(Published(query, "out", 5, f"plan-{query}"))
        progress = Progress.read({PLACE: OffsetAndMetadata(5, note)}, "g.progress")
    assert [entry.query for entry in progress.entries] == ["a", "b"]
    assert progress.last("b", "out") == Published("b", "out", 5, "plan-b")
    assert progress.last("b", "another topic") is None
    assert progress.is_newest("a", "out")
    assert not progress.is_newest("b", "out")
    assert progress.place == PLACE


def test_note_stays_below_the_brokers_limit_of_metadata() -> None:
    progress = Progress()
    for number in range(30):
        new = Published(f"{number:036d}", "t" * 249, 10**9, "f" * 32)
        note = progress.note(new)
        progress = Progress.read({PLACE: OffsetAndMetadata(1, note)}, "g.progress")
    assert len(progress.entries) == ENTRIES_MAX
    assert len(note) < 4096


def test_entry_of_the_former_form_is_read(tmp_path: Path) -> None:
    kept = checkpoint(tmp_path, (3, 1))
    former = {PLACE: OffsetAndMetadata(3, json.dumps({"query": "q", "batch": 3}))}
    progress = Progress.read(former, "g.progress")
    assert is_replay(progress.last("q", "out"), kept.plan(), kept, "g")
    renewed = progress.note(published(kept, 3))
    assert len(Progress.read({PLACE: OffsetAndMetadata(3, renewed)}, "g").entries) == 1


def test_foreign_commits_are_refused() -> None:
    for metadata in ("", "[]", "{}", '{"published": 3}'):
        with pytest.raises(ConfigError, match=r"groupId='g'.*choose another groupId"):
            Progress.read({PLACE: OffsetAndMetadata(3, metadata)}, "g.progress")


def test_batch_that_begins_below_the_groups_offsets_is_refused() -> None:
    note = json.dumps({"query": "q", "batch": 3})
    stored = {("in", 0): OffsetAndMetadata(10, note), ("in", 1): OffsetAndMetadata(10, "")}
    group = {TopicPartition(*tp): kept for tp, kept in stored.items()}

    def check(start: int) -> None:
        starts = {TopicPartition("in", 0): start, TopicPartition("in", 1): 0}
        check_starts(starts, group, location="/c", group_id="g")

    check(10)
    with pytest.raises(ConfigError, match="in-0: begins at 9, published up to 10") as refused:
        check(9)
    assert "in-1" not in str(refused.value)
