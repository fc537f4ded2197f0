"""Goal: a broker refuses the batches that Apache Kafka refuses, with its code and a useful reason.

Method: batches made by hand break one rule each; the code, and for single records the list, is
compared. Apache Kafka is asked the same in `conformance`. It differs in three points: it takes
inner offsets with gaps where nothing is compressed, it answers UNKNOWN_SERVER_ERROR where a codec
fails, and it cuts off up to 16 bytes behind a batch; we answer INVALID_RECORD to all of these.
Batches too large to be held are made of tiny limits instead of gigabytes, and once of a real bomb
whose memory is measured in another process.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
from record_bytes import batch, record, varint

from onceflow.sdk.protocol import record_validation
from onceflow.sdk.protocol.compression import Codec, compress
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.records import (
    InvalidBatchError,
    RecordIssue,
    encode_batch,
    patch_base_offset,
    set_log_append_time,
    validate_batch,
)

NOW = 1_700_000_000_000
CODECS = list(Codec)


def many(count: int) -> bytes:
    return b"".join(record(i, timestamp_delta=i, key=b"k%d" % i) for i in range(count))


def refusal(data: bytes | memoryview, **rules: object) -> InvalidBatchError:
    with pytest.raises(InvalidBatchError) as caught:
        validate_batch(data, **rules)  # type: ignore[arg-type]
    return caught.value


@pytest.fixture(params=["held", "in pieces", "in small pieces"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether batches are unpacked at once, or checked in pieces of 1 MiB or a few bytes."""
    if request.param != "held":
        monkeypatch.setattr(record_validation, "HELD_BYTES", 0)
    if request.param == "in small pieces":
        monkeypatch.setattr(record_validation, "_PIECE_BYTES", 5)
    return str(request.param)


@pytest.mark.usefixtures("way")
class TestWhateverTheSize:
    """Rules that hold however the batch is read."""

    @pytest.mark.parametrize("codec", CODECS)
    def test_a_good_batch_is_taken(self, codec: Codec) -> None:
        data = batch(compress(codec, many(1000)), 1000, attributes=codec)
        valid = validate_batch(data)
        assert valid.header.records_count == 1000
        assert valid.max_timestamp == NOW + 999

    @pytest.mark.parametrize("codec", CODECS)
    @pytest.mark.parametrize(
        ("records", "count", "reason"),
        [
            (record(0) + record(2), 2, "inner offsets"),
            (record(1), 1, "inner offsets"),
            (record(0) + record(0), 2, "inner offsets"),
            (record(0), 2, ""),
            (record(0) + record(1) + record(2), 2, ""),
            (record(0) + b"\x00", 1, ""),
            (record(0, length=4), 1, ""),
            (record(0, length=100), 1, ""),
            (record(0, length=-1), 1, ""),
            (record(0, header_count=3), 1, ""),
            (record(0, header_count=-1), 1, ""),
            (record(0, headers=[(None, b"x")]), 1, ""),
            (varint(2**31) + record(0), 1, ""),
            (b"\xff" * 12, 1, ""),
            (varint(70) + bytes(3) + varint(2**63 - 1) + bytes(60), 1, ""),
            (varint(70) + bytes(3) + varint(2**63 - 80) + bytes(60), 1, ""),
            (varint(70) + bytes(3) + b"\x01" + varint(2**62) + bytes(60), 1, ""),
            (b"", 1, ""),
        ],
    )
    def test_malformed_records_are_refused(
        self, codec: Codec, records: bytes, count: int, reason: str
    ) -> None:
        data = batch(compress(codec, records), count, attributes=codec)
        error = refusal(data)
        assert error.code is ErrorCode.INVALID_RECORD
        assert reason in str(error)

    @pytest.mark.parametrize("attributes", [1, 0x7F, 0x80, 0x84, 0xFF])
    def test_attributes_of_a_record_are_a_byte_that_nobody_looks_at(self, attributes: int) -> None:
        odd = bytearray(record(0, value=b"v" * 9, headers=[(b"h", b"c")]))
        odd[1] = attributes
        valid = validate_batch(batch(bytes(odd) + record(1), 2, max_timestamp=-1))
        assert valid.max_timestamp == NOW

    @pytest.mark.parametrize("codec", CODECS[1:])
    @pytest.mark.parametrize("body", [b"", b"garbage that no codec knows", b"\x00" * 40])
    def test_garbage_in_a_compressed_batch_is_refused(self, codec: Codec, body: bytes) -> None:
        assert refusal(batch(body, 1, attributes=codec)).code is ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("codec", CODECS[1:])
    def test_a_cut_compressed_block_is_refused(self, codec: Codec) -> None:
        body = bytes(compress(codec, many(500)))
        for cut in (1, len(body) // 2, len(body) - 1):
            error = refusal(batch(body[:cut], 500, attributes=codec))
            assert error.code is ErrorCode.INVALID_RECORD

    def test_keyless_records_are_listed_for_a_compacted_topic(self) -> None:
        records = record(0, key=b"k") + record(1) + record(2, key=b"") + record(3)
        data = batch(records, 4)
        validate_batch(data)
        error = refusal(data, require_keys=True)
        assert error.code is ErrorCode.INVALID_RECORD
        assert [issue.batch_index for issue in error.record_issues] == [1, 3]

    def test_timestamps_out_of_range_are_listed(self) -> None:
        records = record(0) + record(1, timestamp_delta=-11) + record(2, timestamp_delta=21)
        data = batch(records, 3)
        limits = (NOW - 10, NOW + 20)
        error = refusal(data, timestamp_range=limits)
        assert error.code is ErrorCode.INVALID_TIMESTAMP
        assert [issue.batch_index for issue in error.record_issues] == [1, 2]
        validate_batch(data, timestamp_range=(NOW - 11, NOW + 21))

    def test_records_without_timestamp_are_never_out_of_range(self) -> None:
        data = batch(record(0) + record(1), 2, base_timestamp=-1, max_timestamp=-1)
        assert validate_batch(data, timestamp_range=(NOW, NOW)).max_timestamp == -1

    def test_one_record_without_timestamp_among_others(self) -> None:
        records = record(0) + record(1, timestamp_delta=-1 - NOW) + record(2, timestamp_delta=7)
        valid = validate_batch(batch(records, 3), timestamp_range=(NOW, NOW + 7))
        assert valid.max_timestamp == NOW + 7

    def test_a_wrong_largest_timestamp_is_found_out(self) -> None:
        data = batch(record(0) + record(1, timestamp_delta=3), 2, max_timestamp=NOW + 99)
        assert validate_batch(data).max_timestamp == NOW + 3

    def test_log_append_time_is_the_time_of_every_record(self) -> None:
        data = encode_batch([(NOW, None, b"a", [])])
        set_log_append_time(data, NOW + 5)
        assert validate_batch(data).max_timestamp == NOW + 5

    def test_a_header_name_that_is_not_utf_8_is_taken_as_kafka_takes_it(self) -> None:
        records = record(0, headers=[(b"\xff\xfe", b"x")]) + record(1)
        assert validate_batch(batch(records, 2)).header.records_count == 2


def header_cases() -> dict[str, tuple[Callable[[], bytes], ErrorCode]]:
    one = record(0)
    invalid, corrupt = ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE
    return {
        "nothing": (lambda: b"", invalid),
        "less than a header": (lambda: batch(one, 1)[:60], invalid),
        "cut": (lambda: batch(one, 1)[:-1], invalid),
        "two batches": (lambda: batch(one, 1) * 2, invalid),
        "bytes behind": (lambda: batch(one, 1) + b"\x00", invalid),
        "message format 0": (lambda: batch(one, 1, magic=0), invalid),
        "message format 1": (lambda: batch(one, 1, magic=1), invalid),
        "message format 3": (lambda: batch(one, 1, magic=3), corrupt),
        "wrong checksum": (lambda: batch(one, 1, crc=12345), corrupt),
        "negative length": (lambda: batch(one, 1, batch_length=-1), corrupt),
        "length below header": (lambda: batch(one, 1, batch_length=20), corrupt),
        "base offset": (lambda: batch(one, 1, base_offset=5), invalid),
        "count 0": (lambda: batch(b"", 0), invalid),
        "count negative": (lambda: batch(one, -1), invalid),
        "last offset delta": (lambda: batch(one, 1, last_offset_delta=1), invalid),
        "last offset delta negative": (lambda: batch(one, 1, last_offset_delta=-1), invalid),
        "control batch": (lambda: batch(one, 1, attributes=0x20), invalid),
        "no sequence": (lambda: batch(one, 1, producer_id=5, producer_epoch=0), invalid),
        "codec 5": (lambda: batch(one, 1, attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        "too many records": (lambda: batch(one, 2**23), invalid),
    }


@pytest.mark.parametrize("case", header_cases())
def test_a_bad_header_is_refused(case: str) -> None:
    make, code = header_cases()[case]
    assert refusal(make()).code is code


@pytest.mark.parametrize("leader_epoch", [-1, 0, 7, 2**31 - 1])
def test_the_clients_leader_epoch_does_not_matter(leader_epoch: int) -> None:
    validate_batch(batch(record(0), 1, leader_epoch=leader_epoch))


def test_the_log_can_number_what_was_validated() -> None:
    data = bytearray(batch(record(0), 1))
    validate_batch(data)
    patch_base_offset(data, 1000, 3)


def test_a_refusal_lists_a_bounded_number_of_records() -> None:
    records = b"".join(record(i) for i in range(5000))
    error = refusal(batch(records, 5000), require_keys=True)
    assert len(error.record_issues) == record_validation.MAX_ISSUES


def test_a_refusal_survives_pickling() -> None:
    import pickle

    error = InvalidBatchError("why", ErrorCode.INVALID_TIMESTAMP, [RecordIssue(3, "late")])
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.code, copy.record_issues) == (
        "why",
        ErrorCode.INVALID_TIMESTAMP,
        (RecordIssue(3, "late"),),
    )


BOMB = """
import resource, sys
from onceflow.sdk.protocol.records import InvalidBatchError, validate_batch
data = sys.stdin.buffer.read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    validate_batch(data)
    print("taken")
except InvalidBatchError as error:
    print("refused", error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def zstd_bomb(size: int) -> bytes:
    """One record whose value is so many zeros, in 4 bytes for every 128 KiB."""

    def block(kind: int, length: int, data: bytes, last: int = 0) -> bytes:
        return ((length << 3) | (kind << 1) | last).to_bytes(3, "little") + data

    body = b"\x00" + varint(0) + varint(0) + varint(-1) + varint(size)
    start = varint(len(body) + size + 1) + body
    frame = b"\x28\xb5\x2f\xfd\x00\x58" + block(0, len(start), start)
    frame += block(1, 131072, b"\x00") * (size // 131072) + block(0, 1, b"\x00", 1)
    return batch(frame, 1, attributes=Codec.ZSTD)


def test_a_gigabyte_in_32_kilobytes_costs_no_gigabyte() -> None:
    bomb = zstd_bomb(1 << 30)
    assert len(bomb) < 33_000
    done = subprocess.run(
        [sys.executable, "-c", BOMB], input=bomb, capture_output=True, check=True, timeout=60
    )
    outcome, megabytes = done.stdout.decode().splitlines()
    # With a streaming zstd library the batch is taken, as Kafka takes it; without one, refused.
    assert outcome.startswith(("taken", "refused the records cannot be unpacked"))
    assert int(megabytes) < 100


def test_a_number_that_runs_on_past_the_batch_finds_zeros_and_not_foreign_memory() -> None:
    # The codec reads such a number to its end. Read as part of the batch, the bytes behind it
    # would complete a valid record.
    whole = record(0, key=b"k", value=b"x" * 200, headers=[(b"h", b"y" * 200)])
    for cut in range(1, len(whole)):
        data = batch(whole[:cut], 1)
        frame = data + whole[cut:] + b"\xff" * 40
        assert refusal(memoryview(frame)[: len(data)]).code is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", CODECS)
def test_only_records_that_were_compressed_are_bounded_each_for_itself(codec: Codec) -> None:
    """As Apache Kafka 4.4 answers: the bound is on one record behind its length, not on all."""
    first, second = record(0, value=b"a" * 993), record(1, value=b"a" * 990)
    assert len(first) == 2 + 1000
    plain = batch(first + second, 2)
    data = batch(bytes(compress(codec, first + second)), 2, attributes=codec)
    assert validate_batch(data, max_record_bytes=1000).header.records_count == 2
    if codec == Codec.NONE:
        assert validate_batch(plain, max_record_bytes=1).header.records_count == 2
    else:
        found = refusal(data, max_record_bytes=999)
        assert found.code == ErrorCode.INVALID_RECORD
        assert "record 0 unpacks to 1000 bytes" in str(found)
