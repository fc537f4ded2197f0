"""Goal: a batch enters the log only as Kafka would let it in, and is stored as Kafka would.

Method: one log in memory for each rule of Kafka's validator; the refusal's code is compared, and
that the log did not move.
"""

from __future__ import annotations

import contextlib
import struct

import pytest
from log_batches import NOW_MS, batch, idempotent, open_log, read_all

from onceflow.broker_lite.log import AppendError, LogConfig, PartitionLog
from onceflow.sdk.model.partitions import TimestampType
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.records import (
    check_crc,
    control_batch,
    decode_batch,
    encode_batch,
    parse_batch_header,
    patch_base_offset,
    set_log_append_time,
    set_timestamps,
)
from onceflow.sdk.settings.declare import Kind


def refusal(log: PartitionLog, data: bytes, **options: bool) -> AppendError:
    end_offset = log.log_end_offset
    with pytest.raises(AppendError) as refused:
        log.append(data, now_ms=NOW_MS, **options)
    assert log.log_end_offset == end_offset
    return refused.value


def test_offsets_follow_each_other_and_the_leader_epoch_is_ours() -> None:
    log = open_log()
    first = bytearray(batch(b"a", b"b"))
    patch_base_offset(first, 0, 1234)
    assert log.append(first, now_ms=NOW_MS)[:2] == (0, 1)
    log.begin_leader_epoch(3)
    assert log.append(memoryview(batch(b"c")), now_ms=NOW_MS)[:2] == (2, 2)
    records = log.read(0, 1000).records
    header = parse_batch_header(records)
    assert (header.base_offset, header.partition_leader_epoch) == (0, 0)
    second = parse_batch_header(records, header.size_bytes)
    assert (second.base_offset, second.partition_leader_epoch) == (2, 3)
    check_crc(records, header.size_bytes, second)


def test_what_the_client_sent_is_not_changed() -> None:
    data = batch(b"a")
    kept = bytes(data)
    log = open_log(config=LogConfig(message_timestamp_type="LogAppendTime"))
    log.append(b"".join([batch(b"x")]), now_ms=NOW_MS)
    log.append(data, now_ms=NOW_MS)
    assert data == kept


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (batch(b"a")[:40], ErrorCode.INVALID_RECORD),
        (batch(b"a")[:-1], ErrorCode.INVALID_RECORD),
        (batch(b"a") + batch(b"b"), ErrorCode.INVALID_RECORD),
        (batch(b"a")[:-1] + b"\xff", ErrorCode.CORRUPT_MESSAGE),
        (bytes(control_batch(1, 0, 0, True, timestamp_ms=NOW_MS)), ErrorCode.INVALID_RECORD),
        (batch(b"a", producer_id=5, producer_epoch=0), ErrorCode.INVALID_RECORD),
    ],
    ids=["empty", "no header", "cut", "two", "checksum", "control", "no sequence"],
)
def test_a_batch_of_a_wrong_shape_is_refused(data: bytes, code: ErrorCode) -> None:
    assert refusal(open_log(), data).code is code


def test_a_base_offset_other_than_zero_is_refused() -> None:
    data = bytearray(batch(b"a"))
    patch_base_offset(data, 4, -1)
    assert refusal(open_log(), bytes(data)).code is ErrorCode.INVALID_RECORD


def test_sizes_are_those_of_the_stored_batch() -> None:
    data = batch(b"x" * 500)
    small = LogConfig(max_message_bytes=len(data) - 1)
    assert refusal(open_log(config=small), data).code is ErrorCode.MESSAGE_TOO_LARGE
    short = LogConfig(segment_bytes=len(data) - 1)
    assert refusal(open_log(config=short), data).code is ErrorCode.RECORD_LIST_TOO_LARGE
    exact = LogConfig(max_message_bytes=len(data), segment_bytes=len(data))
    assert open_log(config=exact).append(data, now_ms=NOW_MS).base_offset == 0


def test_a_compacted_topic_names_each_record_without_a_key() -> None:
    log = open_log(config=LogConfig(cleanup_policy="compact,delete"))
    data = encode_batch(
        [(NOW_MS, b"k", b"1", []), (NOW_MS, None, b"2", []), (NOW_MS, None, None, [])]
    )
    error = refusal(log, bytes(data))
    assert error.code is ErrorCode.INVALID_RECORD
    assert [issue.batch_index for issue in error.record_errors] == [1, 2]
    log.append(batch(None, key=b"k"), now_ms=NOW_MS)
    assert read_all(log) == [(0, None)]


def test_log_append_time_is_written_into_the_batch_with_a_new_checksum() -> None:
    log = open_log(config=LogConfig(message_timestamp_type="LogAppendTime"))
    result = log.append(batch(b"a", b"b", timestamp_ms=5), now_ms=NOW_MS)
    assert result.log_append_time_ms == NOW_MS
    records = log.read(0, 1000).records
    header = parse_batch_header(records)
    check_crc(records, 0, header)
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert [record.timestamp for record in decode_batch(records)] == [NOW_MS, NOW_MS]
    forged = bytearray(batch(b"a"))
    set_log_append_time(forged, NOW_MS)
    assert refusal(log, bytes(forged)).code is ErrorCode.INVALID_TIMESTAMP


def test_with_create_time_the_clients_timestamps_stay_and_a_forged_mark_goes() -> None:
    log = open_log()
    assert log.append(batch(b"a", timestamp_ms=5), now_ms=NOW_MS).log_append_time_ms == -1
    forged = bytearray(batch(b"a", timestamp_ms=6))
    set_log_append_time(forged, 999)
    log.append(forged, now_ms=NOW_MS)
    records = log.read(1, 1000).records
    assert parse_batch_header(records).timestamp_type is TimestampType.CREATE_TIME
    check_crc(records, 0, parse_batch_header(records))


def test_a_wrong_greatest_timestamp_in_the_header_is_put_right() -> None:
    log = open_log()
    forged = bytearray(batch(b"a", b"b", timestamp_ms=100, step_ms=7))
    set_timestamps(forged, TimestampType.CREATE_TIME, 100_000)
    log.append(forged, now_ms=NOW_MS)
    header = parse_batch_header(log.read(0, 1000).records)
    assert header.max_timestamp == 107
    found = log.max_timestamp()
    assert found is not None
    assert found[:2] == (1, 107)


@pytest.mark.parametrize(
    ("timestamp_ms", "refused"),
    [
        (NOW_MS + 1000, False),
        (NOW_MS + 1001, True),
        (NOW_MS - 5000, False),
        (NOW_MS - 5001, True),
    ],
)
def test_timestamps_outside_of_the_bounds_are_refused(timestamp_ms: int, refused: bool) -> None:
    config = LogConfig(message_timestamp_after_max_ms=1000, message_timestamp_before_max_ms=5000)
    log = open_log(config=config)
    data = batch(b"a", timestamp_ms=timestamp_ms)
    if refused:
        error = refusal(log, data)
        assert error.code is ErrorCode.INVALID_TIMESTAMP
        assert [issue.batch_index for issue in error.record_errors] == [0]
    else:
        log.append(data, now_ms=NOW_MS)


LIMITS = [
    pytest.param(name, value, id=f"{name}={value}")
    for name, setting in LogConfig.declared.items()
    if setting.kind in (Kind.INT, Kind.LONG)
    for value in (setting.least, setting.most)
]


@pytest.mark.parametrize(("name", "value"), LIMITS)
def test_the_limits_of_each_number_are_limits_that_work(name: str, value: int) -> None:
    """Long.MAX_VALUE stands for "no limit", also where the clock is added to it."""
    log = open_log(config=LogConfig(max_message_bytes=1000).replace(**{name: value}))
    data = batch(b"a")
    if name in ("max_message_bytes", "segment_bytes", "max_decompressed_message_bytes"):
        with contextlib.suppress(AppendError):  # The least may be less than this batch.
            log.append(data, now_ms=NOW_MS)
        return
    assert log.append(data, now_ms=NOW_MS)[:2] == (0, 0)
    log.roll(NOW_MS + 1)
    log.append(batch(b"a", timestamp_ms=NOW_MS + 1), now_ms=NOW_MS + 1)
    log.flush_if_due(NOW_MS + 2)
    log.cleanable(NOW_MS + 2)
    log.apply_retention(NOW_MS + 2)


def test_no_limit_takes_any_timestamp() -> None:
    log = open_log(config=LogConfig(message_timestamp_after_max_ms=2**63 - 1))
    for offset, timestamp_ms in enumerate((0, NOW_MS, 253_402_300_800_000, 2**63 - 1)):
        data = batch(b"a", timestamp_ms=timestamp_ms)
        assert log.append(data, now_ms=NOW_MS)[:2] == (offset, offset)


def test_settings_may_change_while_the_log_is_open() -> None:
    log = open_log()
    data = batch(b"x" * 200)
    log.append(data, now_ms=NOW_MS)
    log.config = log.config.replace(max_message_bytes=100)
    assert refusal(log, data).code is ErrorCode.MESSAGE_TOO_LARGE


def test_listeners_hear_of_each_append_once() -> None:
    log = open_log()
    heard: list[int] = []
    log.listeners.append(lambda: heard.append(log.high_watermark))
    log.append(idempotent(0, b"a", transactional=True), now_ms=NOW_MS)
    log.append(idempotent(0, b"a", transactional=True), now_ms=NOW_MS)
    log.append_control(7, 0, 0, True, NOW_MS)
    assert heard == [1, 2]


def test_a_coordinator_appends_several_batches_in_one_piece() -> None:
    log = open_log(config=LogConfig(cleanup_policy="compact"))
    data = batch(b"1", b"2") + batch(None, producer_id=9, producer_epoch=4, transactional=True)
    result = log.append(data, now_ms=NOW_MS, from_client=False)
    assert result[:2] == (0, 2)
    assert read_all(log) == [(0, b"1"), (1, b"2"), (2, None)]
    assert log.last_stable_offset == 2
    again = batch(b"3", producer_id=9, producer_epoch=6, transactional=True)
    log.append(again, now_ms=NOW_MS, from_client=False)
    stale = batch(b"4", producer_id=9, producer_epoch=5, transactional=True)
    assert refusal(log, stale, from_client=False).code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert refusal(log, b"", from_client=False).code is ErrorCode.INVALID_RECORD
    assert refusal(log, data[:-1], from_client=False).code is ErrorCode.CORRUPT_MESSAGE
    large = LogConfig(max_message_bytes=50)
    assert (
        refusal(open_log(config=large), data, from_client=False).code is ErrorCode.MESSAGE_TOO_LARGE
    )


def test_the_marker_on_disk_is_kafkas_78_bytes() -> None:
    log = open_log()
    log.append(idempotent(0, b"a", transactional=True), now_ms=NOW_MS)
    result = log.append_control(7, 1, 42, True, NOW_MS)
    records = log.read(result.base_offset, 1000).records
    header = parse_batch_header(records)
    assert len(records) == 78
    assert (header.attributes, header.base_sequence, header.records_count) == (0x30, -1, 1)
    assert (header.producer_id, header.producer_epoch) == (7, 1)
    assert struct.unpack(">hi", bytes(records[-7:-1])) == (0, 42)


@pytest.mark.parametrize("wanted", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("sent", [0, 2, 4])
def test_batches_are_stored_under_the_topics_codec(wanted: str, sent: int) -> None:
    log = open_log(config=LogConfig(compression_type=wanted))
    values = [b"%d" % number * 100 for number in range(5)]
    data = batch(*values, codec=sent, producer_id=5, producer_epoch=0, base_sequence=0)
    log.append(data, now_ms=NOW_MS)
    assert log.append(data, now_ms=NOW_MS).duplicate
    records = log.read(0, 1 << 20).records
    header = parse_batch_header(records)
    check_crc(records, 0, header)
    assert header.codec == ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(wanted)
    assert (header.producer_id, header.base_sequence, header.records_count) == (5, 0, 5)
    assert [value for _, value in read_all(log)] == values


def test_a_batch_that_outgrows_the_topic_when_it_is_unpacked_is_refused() -> None:
    log = open_log(config=LogConfig(compression_type="uncompressed", max_message_bytes=1000))
    assert refusal(log, batch(b"x" * 5000, codec=4)).code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    ("codec", "low", "high"),
    [
        ("gzip", {"compression_gzip_level": 1}, {"compression_gzip_level": 9}),
        ("lz4", {"compression_lz4_level": 1}, {"compression_lz4_level": 17}),
        ("zstd", {"compression_zstd_level": -50}, {"compression_zstd_level": 19}),
    ],
)
def test_a_topics_own_codec_has_its_own_level(
    codec: str, low: dict[str, int], high: dict[str, int]
) -> None:
    text = b"".join(b"%d little lambs, " % (number * number % 977) for number in range(3000))
    sizes = []
    for levels in (low, high):
        log = open_log(config=LogConfig(compression_type=codec, **levels))  # type: ignore[arg-type]
        log.append(batch(text), now_ms=NOW_MS)
        assert [value for _, value in read_all(log)] == [text]
        sizes.append(log.size_bytes)
    assert sizes[1] < sizes[0]
