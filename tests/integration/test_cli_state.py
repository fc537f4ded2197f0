"""Goal: the state of a stopped worker is listed, read and reset without the application.

Method: an application with every kind of state runs on our broker and stops; what the commands say
is compared with what it stored. After a reset it runs again: with its changelogs it goes on where
it was, after `--everything` it begins anew. A store that is open, damaged or of a group with
members is refused.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from processor_processes import wait_for

from onceflow.broker_lite import Broker
from onceflow.processors import App, ListState, MapState, State
from onceflow.processors.stores.lmdb import DATA_FILE, open_map
from onceflow.sdk import Admin, Consumer, Producer, TopicPartition

LONG = "k" * 600
"""Longer than the store takes as a key of its own."""
FROM_ZERO: State[int] = State(0)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        with Admin(bootstrap_servers=running.bootstrap_servers) as admin:
            admin.create_topics(["numbers"])
        yield running


@pytest.fixture
def line(broker: Broker) -> CommandLine:
    return CommandLine(broker.bootstrap_servers)


def counting(broker: Broker, folder: Path) -> App:
    app = App("counting", broker.bootstrap_servers, state_dir=folder)

    @app.processor("numbers", to="sums")
    def add(
        value: int,
        by_name: MapState[str, dict[str, int]],
        every: ListState[int],
        total: State[int] = FROM_ZERO,
    ) -> int:
        total.set(total.get() + value)
        by_name[f"n{value}"] = {"value": value}
        every.append(value)
        return total.get()

    return app


def process(broker: Broker, folder: Path, *values: tuple[str, int]) -> list[int]:
    """Send values, run the application until it has written a sum for each; gives the sums."""
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for key, value in values:
            producer.send("numbers", str(value), key=key)
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        before = 0
        if "sums" in admin.list_topics():
            end = admin.list_offsets({TopicPartition("sums", 0): "latest"})
            before = end[TopicPartition("sums", 0)].offset
    app = counting(broker, folder)
    thread = threading.Thread(target=lambda: asyncio.run(app.run_async()))
    thread.start()
    try:
        wait_for(lambda: len(sums(broker, before)) >= len(values), "all sums are written")
    finally:
        app.stop()
        thread.join(30)
    return sums(broker, before)


def sums(broker: Broker, first: int) -> list[int]:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        if "sums" not in admin.list_topics():
            return []
    place = TopicPartition("sums", 0)
    with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        consumer.assign([place])
        consumer.seek(place, first)
        end = consumer.end_offsets([place])[place]
        found: list[Any] = []
        while consumer.position(place) < end:
            found += consumer.poll(timeout_ms=200).get(place, [])
    return [int(record.value) for record in found]


def test_what_is_stored_is_shown(broker: Broker, line: CommandLine, tmp_path: Path) -> None:
    process(broker, tmp_path, ("a", 1), ("b", 10), ("a", 2), (LONG, 5))
    where = ("--state-dir", str(tmp_path))
    rows = line.json("state", "list", *where)
    assert [(row["task"], row["store"], row["type"]) for row in rows] == [
        ("numbers-0", "add.by_name", "str -> dict[str, int]"),
        ("numbers-0", "add.every", "list of int"),
        ("numbers-0", "add.total", "int"),
    ]
    assert rows[2]["changelog"] == "counting-add-total-changelog"
    assert all(row["bytes"] > 0 and row["problem"] is None for row in rows)
    totals = line.json("state", "inspect", "counting", "add.total", *where)
    assert totals == [
        {"partition": 0, "key": "a", "value": 3},
        {"partition": 0, "key": "b", "value": 10},
        {"partition": 0, "key": LONG, "value": 5},
    ]
    assert line.json("state", "inspect", "counting", "add.by_name", "--key", "a", *where) == [
        {"partition": 0, "key": "a", "inner": "n1", "value": {"value": 1}},
        {"partition": 0, "key": "a", "inner": "n2", "value": {"value": 2}},
    ]
    exported = line.call("state", "export", "counting", "add.every", *where).stdout
    found = [json.loads(each) for each in exported.splitlines()]
    values = [(row["key"], row["value"]) for row in found if not isinstance(row["value"], dict)]
    assert [value for key, value in values if key == "a"][:2] == [1, 2]
    assert "10" in line.call("state", "inspect", "counting", "add.total", *where).stdout
    assert "add.total" in line.error("state", "inspect", "counting", "add.none", *where, status=3)
    assert "counting" in line.error("state", "inspect", "other", "x", *where, status=3)


def test_after_a_reset_the_application_goes_on(
    broker: Broker, line: CommandLine, tmp_path: Path
) -> None:
    assert process(broker, tmp_path, ("a", 1)) == [1]
    where = ("--state-dir", str(tmp_path))
    assert "--yes" in line.error("state", "reset", "counting", *where, status=6)
    reset = line.json("state", "reset", "counting", "--yes", *where)
    assert reset["tasks"] == [{"task": "numbers-0", "result": "deleted"}]
    assert reset["topics"] == []
    assert line.json("state", "list", *where) == []
    assert (tmp_path / "counting" / "host-id").exists()
    assert process(broker, tmp_path, ("a", 2)) == [3]


def test_after_a_reset_of_everything_it_begins_anew(
    broker: Broker, line: CommandLine, tmp_path: Path
) -> None:
    assert process(broker, tmp_path, ("a", 1)) == [1]
    where = ("--state-dir", str(tmp_path))
    reset = line.json("state", "reset", "counting", "--everything", "--yes", *where)
    assert len(reset["topics"]) == 3
    assert process(broker, tmp_path, ("a", 2))[-1] == 3  # Both records, from the beginning.
    assert line.json("state", "inspect", "counting", "add.total", *where)[0]["value"] == 3


def test_a_group_with_members_refuses_before_anything_is_deleted(
    broker: Broker, line: CommandLine, tmp_path: Path
) -> None:
    process(broker, tmp_path, ("a", 1))
    with Consumer(
        "numbers", bootstrap_servers=broker.bootstrap_servers, group_id="counting"
    ) as consumer:
        while not consumer.assignment():
            consumer.poll(timeout_ms=100)
        words = ("state", "reset", "counting", "--everything", "--yes")
        assert "members" in line.error(*words, "--state-dir", str(tmp_path), status=1)
    assert line.json("state", "list", "--state-dir", str(tmp_path)) != []
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        assert "counting-add-total-changelog" in admin.list_topics()


def test_a_store_in_use_and_a_damaged_one_are_named(
    broker: Broker, line: CommandLine, tmp_path: Path
) -> None:
    process(broker, tmp_path, ("a", 1))
    (data,) = tmp_path.glob(f"*/state/*/*/*/{DATA_FILE}")
    where = ("--state-dir", str(tmp_path))
    held = open_map(data.parent, 0)
    assert held is not None
    try:
        assert "in use" in line.json("state", "list", *where)[0]["problem"]
        for words in (("inspect", "counting", "add.total"), ("reset", "counting", "--yes")):
            assert "in use" in line.error("state", *words, *where, status=1)
    finally:
        held.close()
    data.write_bytes(data.read_bytes()[:5_000])
    assert line.json("state", "list", *where)[0]["problem"]
