"""Goal: other Python libraries read what we write and we read what they write.

Method: the pure-Python record code of aiokafka and kafka-python encodes and decodes the same
records with each codec; batches go in both directions.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy, _DefaultRecordBatchPy

from onceflow.sdk.protocol.records import Codec, decode_batch, encode_batch, validate_batch

with warnings.catch_warnings():  # It reads its schemas by a deprecated call.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

RECORDS: list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (1_700_000_000_000 + i, b"key" if i % 2 else None, b"value %d " % i * 30, [("h", b"%d" % i)])
    for i in range(50)
]
CODECS = list(Codec)
# kafka-python needs libraries of its own for the other two, which are not installed.
KAFKA_PYTHON_CODECS = [Codec.NONE, Codec.GZIP, Codec.LZ4]


def records_of(batch: Any) -> list[tuple[Any, ...]]:
    return [(r.timestamp, r.key, r.value, list(r.headers)) for r in batch]


@pytest.mark.parametrize("codec", CODECS)
def test_aiokafka_reads_ours(codec: Codec) -> None:
    theirs = _DefaultRecordBatchPy(encode_batch(RECORDS, codec=codec))
    assert theirs.validate_crc()
    assert theirs.compression_type == codec
    assert records_of(theirs) == RECORDS


@pytest.mark.parametrize("codec", CODECS)
def test_we_read_aiokafkas(codec: Codec) -> None:
    builder = _DefaultRecordBatchBuilderPy(2, codec, 0, -1, -1, -1, 1 << 20)
    for offset, (timestamp, key, value, headers) in enumerate(RECORDS):
        builder.append(offset, timestamp, key, value, headers)
    data = bytes(builder.build())
    assert records_of(decode_batch(data)) == RECORDS
    assert validate_batch(data).header.codec == codec


@pytest.mark.parametrize("codec", KAFKA_PYTHON_CODECS)
def test_kafka_python_reads_ours(codec: Codec) -> None:
    theirs = KafkaPythonBatch(bytes(encode_batch(RECORDS, codec=codec)))
    assert theirs.validate_crc()
    assert records_of(theirs) == RECORDS


@pytest.mark.parametrize("codec", KAFKA_PYTHON_CODECS)
def test_we_read_kafka_pythons(codec: Codec) -> None:
    builder = KafkaPythonBuilder(2, codec, False, -1, -1, -1, 1 << 20)
    for offset, (timestamp, key, value, headers) in enumerate(RECORDS):
        builder.append(offset, timestamp, key, value, headers)
    data = bytes(builder.build())
    assert records_of(decode_batch(data)) == RECORDS
    assert validate_batch(data).header.codec == codec
