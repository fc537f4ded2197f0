"""Goal: Apache Kafka's own dump tool reads every file of our folders and finds nothing wrong.

Method: a log with plain, idempotent and transactional batches, all codecs, several segments and
aborted transactions is written to disk, with a clean stop and with a crash; ``kafka-dump-log``
(which checks checksums, index entries and timestamps by itself) prints the files, and the output
is compared with what was written. ``ONCEFLOW_REAL_KAFKA`` names another launcher with the same
command line as ``tests/support/real_kafka.py``. Then a real broker is started on our partition.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
import real_kafka
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from log_batches import NOW_MS, batch, idempotent, read_all

from onceflow.broker_lite.log import LogConfig, LogManager, PartitionLog, RealStorage
from onceflow.sdk.model.partitions import IsolationLevel, TopicPartition
from onceflow.sdk.protocol.records import Codec

LAUNCHER = os.environ.get("ONCEFLOW_REAL_KAFKA") or real_kafka.__file__
CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=500)
UNAVAILABLE = real_kafka.unavailable_reason()

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(UNAVAILABLE is not None, reason=str(UNAVAILABLE)),
]


def dump(*files: Path) -> str:
    """What Kafka's tool says about files; it also complains on standard output."""
    done = subprocess.run(
        [
            sys.executable,
            str(LAUNCHER),
            "tool",
            "kafka-dump-log",
            "--files",
            ",".join(str(file) for file in files),
            "--print-data-log",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def write_folder(root: Path, *, clean: bool) -> list[bytes]:
    """Write the log; returns the values in order."""
    manager = LogManager(
        RealStorage(root), NOW_MS, new_uuid=uuid.uuid4, config_for=lambda overrides: CONFIG
    )
    log = manager.create_partition("orders", uuid.uuid4(), 0, CONFIG, now_ms=NOW_MS)
    values: list[bytes] = []
    for number in range(60):
        value = b"value-%03d-" % number + b"x" * 200
        codec = list(Codec)[number % 5]
        time_ms = NOW_MS + (number * 37) % 50
        log.append(batch(value, value, codec=codec, timestamp_ms=time_ms), now_ms=NOW_MS)
        log.append(idempotent(number, value, producer_id=1), now_ms=NOW_MS)
        data = idempotent(number, value, producer_id=2, transactional=True)
        log.append(data, now_ms=NOW_MS)
        values += [value] * 4
        if number % 4 == 3:
            log.append_control(2, 0, 5, number % 8 == 3, NOW_MS)
    log.append(idempotent(0, b"open", producer_id=3, transactional=True), now_ms=NOW_MS)
    values.append(b"open")
    manager.close(clean=clean)
    return values


@pytest.fixture(scope="module", params=["clean stop", "crash and recovery"])
def folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[bytes]]:
    root = tmp_path_factory.mktemp("data")
    clean = request.param == "clean stop"
    values = write_folder(root, clean=clean)
    if not clean:
        manager = LogManager(
            RealStorage(root), NOW_MS, new_uuid=uuid.uuid4, config_for=lambda overrides: CONFIG
        )
        manager.close(clean=True)
    return root / "orders-0", values


def test_log_files_hold_what_was_appended(folder: tuple[Path, list[bytes]]) -> None:
    directory, values = folder
    logs = sorted(directory.glob("*.log"))
    assert len(logs) > 2
    output = dump(*logs)
    assert "isvalid: false" not in output
    assert re.search(r"(?i)mismatch|error|corrupt|exception", output) is None, output[-3000:]
    found = [value.encode() for value in re.findall(r"payload: (\S+)", output)]
    assert found == values
    assert output.count("endTxnMarker: ABORT") == 7
    assert output.count("endTxnMarker: COMMIT") == 8
    assert "coordinatorEpoch: 5" in output


def test_index_files_agree_with_their_logs(folder: tuple[Path, list[bytes]]) -> None:
    directory, _ = folder
    indexes = sorted((*directory.glob("*.index"), *directory.glob("*.timeindex")))
    output = dump(*indexes)
    assert output.count("offset: ") > 20
    assert output.count("timestamp: ") >= len(list(directory.glob("*.timeindex")))
    assert re.search(r"(?i)mismatch|error|corrupt|exception|not found", output) is None, output


def test_transaction_index_names_each_abort(folder: tuple[Path, list[bytes]]) -> None:
    directory, _ = folder
    output = dump(*sorted(directory.glob("*.txnindex")))
    aborts = re.findall(
        r"version: (\d+) producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) "
        r"lastStableOffset: (\d+)",
        output,
    )
    assert len(aborts) == 7, output
    assert {(version, producer_id) for version, producer_id, *_ in aborts} == {("0", "2")}
    for *_, first_offset, last_offset, last_stable_offset in aborts:
        assert int(first_offset) < int(last_offset) < int(last_stable_offset)


def test_producer_snapshots_show_the_producers(folder: tuple[Path, list[bytes]]) -> None:
    directory, values = folder
    snapshots = sorted(directory.glob("*.snapshot"))
    output = dump(snapshots[-1])
    rows = re.findall(
        r"producerId: (\d+) producerEpoch: (-?\d+) coordinatorEpoch: (-?\d+) "
        r"currentTxnFirstOffset: (\S+) lastTimestamp: (\d+) firstSequence: (-?\d+) "
        r"lastSequence: (-?\d+)",
        output,
    )
    found = {row[0]: row for row in rows}
    assert set(found) == {"1", "2", "3"}, output
    assert found["1"][5:] == ("59", "59")
    assert found["2"][2] == "5"
    end_offset = len(values) + 15
    assert str(end_offset - 1) in found["3"][3], output


def test_a_compacted_log_is_sound_for_the_tool(tmp_path: Path) -> None:
    config = LogConfig(
        cleanup_policy="compact",
        segment_bytes=20_000,
        index_interval_bytes=500,
        min_cleanable_dirty_ratio=0.0,
    )
    storage = RealStorage(tmp_path)
    log = PartitionLog(storage, TopicPartition("table", 0), config, now_ms=NOW_MS)
    for number in range(300):
        codec = list(Codec)[number % 5]
        value = None if number % 7 == 6 else b"v%03d-" % number + b"x" * 200
        log.append(batch(value, codec=codec, key=b"k%d" % (number % 50)), now_ms=NOW_MS)
        data = batch(
            b"t%03d" % number,
            b"u%03d" % number,
            key=b"t%d" % (number % 9),
            producer_id=4,
            producer_epoch=0,
            base_sequence=number * 2,
            transactional=True,
        )
        log.append(data, now_ms=NOW_MS)
        if number % 10 == 9:
            log.append_control(4, 0, 0, number % 20 == 9, NOW_MS)
    log.roll(NOW_MS)
    log.append(batch(b"last"), now_ms=NOW_MS)
    steps = log.compaction(NOW_MS)
    assert steps is not None
    list(steps)
    kept = read_all(log)
    log.close()
    storage.close()
    directory = tmp_path / "table-0"
    assert len(list(directory.glob("*.log"))) < 10
    output = dump(*sorted(directory.glob("*.log")))
    assert "isvalid: false" not in output
    found = [
        (int(offset), value)
        for offset, value in re.findall(r"offset: (\d+) .*payload: (\S+)", output)
    ]
    expected = [(offset, value.decode()) for offset, value in kept if value is not None]
    assert found == expected
    assert output.count("deleteHorizonMs: OptionalLong[") > 5
    indexes = dump(*sorted((*directory.glob("*.index"), *directory.glob("*.timeindex"))))
    assert re.search(r"(?i)mismatch|error|corrupt|exception|not found", indexes) is None, indexes


def test_a_real_broker_goes_on_with_our_folder(tmp_path: Path) -> None:
    """Kafka is stopped, its partition folder replaced by ours, and Kafka started again."""
    kafka = real_kafka.ApacheKafka(tmp_path / "kafka")
    kafka.start()
    try:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        created = admin.create_topics([NewTopic("orders", 1, 1)])
        created["orders"].result(30)
        kafka.stop()
        theirs = tmp_path / "kafka" / "log" / "orders-0"
        metadata = (theirs / "partition.metadata").read_bytes()
        shutil.rmtree(theirs)
        values = write_folder(tmp_path / "ours", clean=True)
        shutil.copytree(tmp_path / "ours" / "orders-0", theirs)
        (theirs / "partition.metadata").write_bytes(metadata)
        kafka.start()
        seen = consume_committed(kafka.bootstrap_servers, 60)
    finally:
        kafka.stop()
    log = PartitionLog(
        RealStorage(tmp_path / "ours"), TopicPartition("orders", 0), CONFIG, now_ms=NOW_MS
    )
    expected = [value for _, value in read_all(log, isolation_level=IsolationLevel.READ_COMMITTED)]
    assert seen == expected
    assert len(seen) == len(values) - 1 - sum(1 for number in range(60) if number % 8 >= 4)


def consume_committed(bootstrap_servers: str, timeout_s: float) -> list[bytes | None]:
    """Every committed value of the topic, read by librdkafka."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
    )
    values: list[bytes | None] = []
    try:
        consumer.assign([KafkaPartition("orders", 0, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(timeout_s)
            assert message is not None, "nothing came in time"
            error = message.error()
            if error is None:
                values.append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                return values
    finally:
        consumer.close()
