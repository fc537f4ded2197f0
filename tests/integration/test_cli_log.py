"""Goal: the files of a data folder are shown and checked without a broker, and damage is found.

Method: a broker writes committed, aborted and open transactions into a folder and is stopped; the
same folder is then read, and read again with bytes changed, cut off and added. The folder of a
running Apache Kafka is read with `make conformance`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import real_kafka
from command_line import CommandLine
from consumer_worlds import fresh, write, write_in_transaction

from onceflow.broker_lite import Broker
from onceflow.sdk import Producer

OFFLINE = CommandLine("127.0.0.1:1")
"""No broker is asked."""
FIRST = f"{0:020}.log"


def fill(bootstrap: str, topic: str) -> None:
    """One record of each fate; markers lie at the offsets 2 and 4."""
    CommandLine(bootstrap).call("topics", "create", topic, "--partitions", "1")
    write(bootstrap, topic, ["plain"])
    write_in_transaction(bootstrap, topic, ["taken back"], commit=False)
    write_in_transaction(bootstrap, topic, ["kept"], commit=True)


FATES = [
    (0, None, "plain"),
    (1, "aborted", "taken back"),
    (2, "abort", None),
    (3, "committed", "kept"),
    (4, "commit", None),
]


def dumped(folder: Path, *options: str) -> list[dict[str, object]]:
    printed = OFFLINE.call("log", "dump", str(folder), *options).stdout
    return [json.loads(line) for line in printed.splitlines()]


def fates(folder: Path) -> list[tuple[object, object, object]]:
    return [
        (each["offset"], each.get("marker") or each.get("transaction"), each.get("value"))
        for each in dumped(folder, "--records")
    ]


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """Folder of a partition with an open transaction at its end."""
    with Broker(data=tmp_path / "data") as broker:
        fill(broker.bootstrap_servers, "orders")
        with Producer(
            bootstrap_servers=broker.bootstrap_servers, transactional_id="open"
        ) as producer:
            producer.begin_transaction()
            producer.send("orders", b"not decided").result()
            copy = tmp_path / "copy" / "orders-0"
            copy.mkdir(parents=True)
            for file in (tmp_path / "data" / "orders-0").glob("*.log"):
                (copy / file.name).write_bytes(file.read_bytes())
            producer.abort_transaction()
    return copy


def test_each_record_is_shown_with_its_fate(partition: Path) -> None:
    assert fates(partition) == [*FATES, (5, "open", "not decided")]
    assert fates(partition / FIRST) == [*FATES, (5, "open", "not decided")]
    later = dumped(partition, "--records", "--from", "3", "--max", "2")
    assert [each["offset"] for each in later] == [3, 4]


def test_batches_are_shown_for_people_and_scripts(partition: Path) -> None:
    shown = dumped(partition, "--json")
    assert [each["base_offset"] for each in shown] == [0, 1, 2, 3, 4, 5]
    assert [each["marker"] for each in shown] == [None, None, "abort", None, "commit", None]
    lines = OFFLINE.call("log", "dump", str(partition)).stdout.splitlines()
    assert lines[0].split()[0] == "offsets"
    assert "aborted" in lines[2]


def test_a_sound_folder_is_called_sound(partition: Path) -> None:
    (row,) = OFFLINE.json("log", "verify", str(partition.parent))
    assert (row["partition"], row["verdict"], row["records"]) == ("orders-0", "sound", 4)
    assert (row["start"], row["end"]) == (0, 6)
    assert [each["first_offset"] for each in row["open_transactions"]] == [5]
    assert "sound" in OFFLINE.call("log", "verify", str(partition)).stdout


def test_every_changed_byte_under_the_checksum_is_found(partition: Path) -> None:
    file = partition / FIRST
    sound = file.read_bytes()
    second = int(dumped(partition, "--json")[1]["position"])  # type: ignore[call-overload]
    third = int(dumped(partition, "--json")[2]["position"])  # type: ignore[call-overload]
    for place in range(second + 16, third):  # Magic and checksum come first, then what it covers.
        changed = bytearray(sound)
        changed[place] ^= 0x40
        file.write_bytes(changed)
        result = OFFLINE.call("log", "verify", str(partition), "--json", status=1)
        (row,) = json.loads(result.stdout)
        assert row["damages"][0]["position"] == second, place
        assert row["end"] == 1
    OFFLINE.call("log", "dump", str(partition), status=1)


@pytest.mark.parametrize("left", [1, 11, 12, 60, 61, 62])
def test_a_batch_that_is_cut_off_is_a_torn_end(partition: Path, left: int) -> None:
    file = partition / FIRST
    last = int(dumped(partition, "--json")[5]["position"])  # type: ignore[call-overload]
    file.write_bytes(file.read_bytes()[: last + left])
    result = OFFLINE.call("log", "verify", str(partition), "--json", status=1)
    (row,) = json.loads(result.stdout)
    assert (row["verdict"], row["end"]) == ("torn end", 5)
    assert row["damages"][0]["bytes_left"] == left


def test_offsets_that_go_back_are_found(partition: Path) -> None:
    file = partition / FIRST
    first = file.read_bytes()[: int(dumped(partition, "--json")[1]["position"])]  # type: ignore[call-overload]
    file.write_bytes(file.read_bytes() + first)
    (partition / f"{7:020}.log").write_bytes(first)
    result = OFFLINE.call("log", "verify", str(partition), "--json", status=1)
    (row,) = json.loads(result.stdout)
    assert row["verdict"] == "damaged"
    assert [each["segment"] for each in row["damages"]] == [FIRST, f"{7:020}.log"]
    assert "6 must be next" in row["damages"][0]["reason"]


def test_what_is_no_folder_of_a_broker_is_told(tmp_path: Path) -> None:
    assert "data folder" in OFFLINE.error("log", "verify", str(tmp_path), status=3)
    assert "DATA/orders-0" in OFFLINE.error("log", "dump", str(tmp_path), status=3)
    OFFLINE.error("log", "dump", str(tmp_path / "nothing"), status=2)


@pytest.mark.kafka
def test_a_folder_of_apache_kafka_is_read(apache_kafka: real_kafka.ApacheKafka) -> None:
    topic = fresh("topic")
    fill(apache_kafka.bootstrap_servers, topic)
    (disk,) = CommandLine(apache_kafka.bootstrap_servers).json("cluster", "disks")
    folder = Path(disk["folder"]) / f"{topic}-0"
    assert fates(folder) == FATES
    (row,) = OFFLINE.json("log", "verify", str(folder))
    assert (row["verdict"], row["records"]) == ("sound", 3)
