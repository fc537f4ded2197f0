"""Goal: sinks of files publish each batch once with its offsets, and readers see nothing else.

Method: the conformance kit for each format; a process that is killed at each step; writers that
race for one manifest; files that a claim deletes while their writer sleeps; the order in which
files and folders are synced, as the system is asked for it.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow
import pytest

from onceflow.sdk.errors import ConfigError
from onceflow.transactions.sinks import (
    Batch,
    JsonLines,
    Move,
    Parquet,
    SinkFencedError,
    SinkOutcomeUnknownError,
    SinkRowError,
    SinkUnavailableError,
    read_json_lines,
    read_parquet,
)
from onceflow.transactions.sinks.files import FileSink
from onceflow.transactions.sinks.testing import FIRST, SECOND, SinkConformance

SCHEMA = pyarrow.schema(
    [pyarrow.field("id", pyarrow.int64(), nullable=False), ("text", pyarrow.string())]
)
FORMATS = ("json", "parquet")

KILLED = """
import os, signal, sys
import pyarrow
from onceflow.transactions.sinks import Batch, JsonLines, Move, Parquet
from onceflow.transactions.sinks.testing import FIRST

folder, format, moment = sys.argv[1:]
armed = False  # at the second claim, or behind it
at_claim = moment.startswith("claim: ")

def observe(found):
    if armed and found == moment.removeprefix("claim: "):
        os.kill(os.getpid(), signal.SIGKILL)

schema = pyarrow.schema([("id", pyarrow.int64()), ("text", pyarrow.string())])
if format == "json":
    sink = JsonLines(folder, observer=observe)
else:
    sink = Parquet(folder, schema, observer=observe)
sink.open("g")
sink.claim([FIRST], "first")
armed = at_claim
entry = sink.claim([FIRST], "a")[FIRST]
armed = True
sink.write(Batch("a", {FIRST: Move(entry.epoch, entry.offset, 5)}, [{"id": 1, "text": "x"}]))
"""


def make(folder: Path, form: str, observer: Callable[[str], None] | None = None) -> FileSink:
    if form == "json":
        return JsonLines(folder, observer=observer)
    return Parquet(folder, SCHEMA, observer=observer)


def read(folder: Path, form: str) -> list[dict[str, object]]:
    if form == "json":
        return list(read_json_lines(folder))
    try:
        return list(read_parquet(folder).to_pylist())
    except ConfigError:
        return []


@pytest.mark.parametrize("form", FORMATS)
class TestFiles(SinkConformance):
    @pytest.fixture(autouse=True)
    def _target(self, tmp_path: Path, form: str) -> None:
        self.folder, self.form = tmp_path, form

    def make(self, observer=None) -> FileSink:  # type: ignore[no-untyped-def]
        return make(self.folder, self.form, observer)

    def rows(self) -> Sequence[dict[str, object]]:
        return read(self.folder, self.form)


STEPS = ("offsets read", "rows", "commit", "rename")
MOMENTS = [f"{when} {step}" for step in STEPS for when in ("before", "after")]


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_process_leaves_all_or_nothing(tmp_path: Path, form: str, moment: str) -> None:
    program = [sys.executable, "-c", KILLED, str(tmp_path), form, moment]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    published = MOMENTS.index(moment) >= MOMENTS.index("after commit")
    assert len(read(tmp_path, form)) == (1 if published else 0)  # before anybody mends anything
    sink = make(tmp_path, form)
    sink.open("g")
    assert sink.claim([FIRST], "b")[FIRST].offset == (5 if published else None)
    assert len(read(tmp_path, form)) == len(parts(tmp_path)) == (1 if published else 0)
    assert staged(tmp_path) == []
    sink.close()


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "moment", [f"{when} {step}" for step in ("claim read", "claim") for when in ("before", "after")]
)
def test_a_process_that_is_killed_within_a_claim_has_claimed_or_not(
    tmp_path: Path, form: str, moment: str
) -> None:
    program = [sys.executable, "-c", KILLED, str(tmp_path), form, f"claim: {moment}"]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    sink = make(tmp_path, form)
    sink.open("g")
    entry = sink.claim([FIRST], "b")[FIRST]
    assert (entry.epoch, entry.offset) == (3 if moment == "after claim" else 2, None)
    sink.write(Batch("b", {FIRST: Move(entry.epoch, None, 1)}, [{"id": 1, "text": "x"}]))
    assert len(read(tmp_path, form)) == 1


def parts(folder: Path) -> list[str]:
    """What everybody sees who lists the folder."""
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("_"))


def staged(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("_onceflow/*/stage/*"))


@contextlib.contextmanager
def writer(
    folder: Path, owner: str, observer: Callable[[str], None] | None = None, first: bool = True
) -> Iterator[Callable[[int], None]]:
    """A sink that has claimed a partition; gives the call that writes row and offset N."""
    sink = JsonLines(folder, observer=observer)
    sink.open("g")
    partition = FIRST if first else SECOND
    entry = sink.claim([partition], owner)[partition]
    offset = entry.offset

    def write(number: int) -> None:
        nonlocal offset
        move = Move(entry.epoch, offset, number)
        sink.write(Batch(owner, {partition: move}, [{"id": number}]))
        offset = number

    yield write
    sink.close()


def test_writers_of_other_partitions_race_for_a_manifest_and_all_win(tmp_path: Path) -> None:
    """The loser follows the winner's manifest, and both files are published once."""
    races = 0

    def race(moment: str) -> None:
        nonlocal races
        if moment == "before commit" and races < 2:
            races += 1
            other(races)

    with (
        writer(tmp_path, "b", first=False) as other,
        writer(tmp_path, "a", race) as write,
    ):
        write(10)
        other(11)
        write(12)
    assert [row["id"] for row in read_json_lines(tmp_path)] == [1, 2, 10, 11, 12]
    assert staged(tmp_path) == []


def test_a_claim_that_deletes_a_living_writers_file_makes_it_stage_again(tmp_path: Path) -> None:
    """The claim takes the number of the staged file, which could be a dead writer's."""
    seen: list[list[str]] = []

    def claim(moment: str) -> None:
        if moment == "before commit" and not seen:
            with writer(tmp_path, "b", first=False):
                seen.append(staged(tmp_path))

    with writer(tmp_path, "a", claim) as write:
        write(1)
    assert seen == [[]]
    assert [row["id"] for row in read_json_lines(tmp_path)] == [1]


def test_a_writer_that_is_replaced_while_it_publishes_is_fenced(tmp_path: Path) -> None:
    def replace(moment: str) -> None:
        if moment == "before commit":
            with writer(tmp_path, "b"):
                pass

    with writer(tmp_path, "a", replace) as write, pytest.raises(SinkFencedError):
        write(1)
    assert list(read_json_lines(tmp_path)) == parts(tmp_path) == staged(tmp_path) == []


def test_a_file_that_could_not_be_renamed_is_read_and_put_in_place_by_the_next_write(
    tmp_path: Path,
) -> None:
    failures = [OSError(errno.EIO, "disk")]

    def fail(moment: str) -> None:
        if moment == "before rename" and failures:
            raise failures.pop()

    with writer(tmp_path, "a", fail) as write:
        write(1)
        assert parts(tmp_path) == []
        assert [row["id"] for row in read_json_lines(tmp_path)] == [1]
        write(2)
    assert parts(tmp_path) == ["part-g-000000000002.jsonl", "part-g-000000000003.jsonl"]
    assert [row["id"] for row in read_json_lines(tmp_path)] == [1, 2]


def test_files_that_somebody_deletes_hold_up_nobody(tmp_path: Path) -> None:
    with writer(tmp_path, "a") as write:
        write(1)
        (tmp_path / parts(tmp_path)[0]).unlink()
        assert list(read_json_lines(tmp_path)) == []
        write(2)
        assert [row["id"] for row in read_json_lines(tmp_path)] == [2]


def test_the_latest_of_many_manifests_is_found(tmp_path: Path) -> None:
    with writer(tmp_path, "a") as write:
        for number in range(1, 41):
            write(number)
            sink = JsonLines(tmp_path)
            sink.open("g")
            assert sink.stored([FIRST])[FIRST].offset == number


def test_a_full_disk_stores_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with writer(tmp_path, "a") as write:
        with monkeypatch.context() as broken:

            def full(handle: int) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            broken.setattr(os, "fsync", full)
            with pytest.raises(SinkUnavailableError, match=r"No space.*nothing was stored"):
                write(1)
        assert staged(tmp_path) == parts(tmp_path) == []
        write(1)


def test_a_link_that_fails_otherwise_may_have_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def lost(source: Path, target: Path) -> None:
        link(source, target)
        raise OSError(errno.ETIMEDOUT, "server not responding")

    with writer(tmp_path, "a") as write, monkeypatch.context() as broken:
        broken.setattr(os, "link", lost)
        with pytest.raises(SinkOutcomeUnknownError, match="published or not"):
            write(1)
    with writer(tmp_path, "b"):
        assert [row["id"] for row in read_json_lines(tmp_path)] == [1]


def test_a_link_that_was_asked_for_twice_is_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS repeats a request without an answer. The file must not be deleted as never published."""
    link = os.link

    def repeated(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    with writer(tmp_path, "a") as write:
        with monkeypatch.context() as broken:
            broken.setattr(os, "link", repeated)
            write(1)
        write(2)
    assert [row["id"] for row in read_json_lines(tmp_path)] == [1, 2]


def test_names_and_files_are_synced_before_what_depends_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure the system may keep a later step without an earlier one."""
    asked: list[str] = []

    def place(path: object) -> str:
        return os.fspath(path).removeprefix(f"{tmp_path}/_onceflow/g/").partition("/")[0]  # type: ignore[call-overload, no-any-return]

    def noted(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **words: object) -> object:
            if name == "sync":
                path = os.readlink(f"/proc/self/fd/{arguments[0]}")
                asked.append(f"sync {'folder ' if os.path.isdir(path) else ''}{place(path)}")
            else:
                asked.append(f"{name} {place(arguments[0])}")
            return real(*arguments, **words)

        return call

    with writer(tmp_path, "a") as write:
        monkeypatch.setattr(os, "fsync", noted("sync", os.fsync))
        monkeypatch.setattr(os, "link", noted("link", os.link))
        monkeypatch.setattr(os, "rename", noted("rename", os.rename))
        write(1)
    data = f"sync folder {str(tmp_path)[:0]}"
    assert [step if "sync folder /" not in step else data for step in asked] == [
        "sync stage",
        "sync folder stage",  # the rows
        "sync stage",
        "sync folder stage",  # the manifest
        "link stage",
        "sync folder manifests",
        "rename stage",
        data,
    ]


@pytest.mark.parametrize(
    ("form", "row", "told"),
    [
        ("json", {"id": float("nan")}, "NaN"),
        ("json", {"id": object()}, "cannot be written as JSON"),
        ("json", {"id": "\ud800"}, "JSON"),
        ("parquet", {"id": 1, "colour": "red"}, "no column colour"),
        ("parquet", {"id": "one"}, "int"),
        ("parquet", {"id": 2**70}, "int"),
        ("parquet", {"text": "no id"}, "id is not nullable"),
        ("parquet", {"id": 1, "text": "\ud800"}, "surrogates"),
    ],
)
def test_a_row_that_does_not_fit_stores_nothing(
    tmp_path: Path, form: str, row: dict[str, object], told: str
) -> None:
    sink = make(tmp_path, form)
    sink.open("g")
    move = Move(sink.claim([FIRST], "a")[FIRST].epoch, None, 1)
    with pytest.raises(SinkRowError, match=told):
        sink.write(Batch("a", {FIRST: move}, [{"id": 1}, row]))
    assert read(tmp_path, form) == parts(tmp_path) == staged(tmp_path) == []
    sink.write(Batch("a", {FIRST: move}, [{"id": 1}]))
    assert [found["id"] for found in read(tmp_path, form)] == [1]
    sink.close()


def test_values_are_written_as_the_serde_writes_them(tmp_path: Path) -> None:
    sink = JsonLines(tmp_path)
    sink.open("a/../b.c")
    move = Move(sink.claim([FIRST], "a")[FIRST].epoch, None, 1)
    row = {"day": datetime.date(2024, 2, 29), "nested": [{"x": None}], "text": "ä\n"}
    sink.write(Batch("a", {FIRST: move}, [row]))
    assert list(read_json_lines(tmp_path)) == [
        {"day": "2024-02-29", "nested": [{"x": None}], "text": "ä\n"}
    ]
    assert parts(tmp_path) == ["part-a%2F%2E%2E%2Fb%2Ec-000000000002.jsonl"]


def test_what_cannot_work_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make it"):
        JsonLines(tmp_path / "none").open("g")
    with pytest.raises(ConfigError, match=r"timeout_ms.*positive"):
        JsonLines(tmp_path, timeout_ms=0)
    with pytest.raises(ConfigError, match=r"pyarrow\.Schema"):
        Parquet(tmp_path, {"id": int})
    with pytest.raises(ConfigError, match="compression"):
        Parquet(tmp_path, SCHEMA, compression="zip")
    with pytest.raises(ConfigError, match="no published file"):
        read_parquet(tmp_path)
    with writer(tmp_path, "a"):
        manifest = next(tmp_path.glob("_onceflow/g/manifests/*"))
        content = json.loads(manifest.read_text())
        manifest.write_text(json.dumps({**content, "entries": 7}))
        sink = JsonLines(tmp_path)
        sink.open("g")
        with pytest.raises(ConfigError, match=r"000000000001\.json.*copy"):
            sink.claim([FIRST], "b")
