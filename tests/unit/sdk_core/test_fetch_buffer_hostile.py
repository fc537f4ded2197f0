"""Goal: batches at offsets that no log has are refused before they move a position there.

Method: one batch whose header is given an offset at the edges of 64 bits.
"""

from __future__ import annotations

import pytest

from onceflow.sdk import TopicPartition
from onceflow.sdk.core.consume.fetch_buffer import FetchedData
from onceflow.sdk.errors import RecordError
from onceflow.sdk.protocol.records import RecordBatchBuilder

COUNT = 3


def batch_at(base_offset: int) -> bytes:
    builder = RecordBatchBuilder(1_000, 0)
    for _ in range(COUNT):
        builder.write(0, None, b"v", [])
    data = builder.build()
    data[:8] = base_offset.to_bytes(8, "big", signed=True)
    return bytes(data)


@pytest.mark.parametrize("base_offset", [-(2**63), -1, 2**63 - COUNT, 2**63 - 1])
def test_a_batch_where_no_log_has_one_is_refused(base_offset: int) -> None:
    with pytest.raises(RecordError, match=f"base offset is {base_offset}"):
        FetchedData(TopicPartition("t", 0), 0, 0, batch_at(base_offset), None)


def test_the_last_offset_that_a_log_can_have_is_read() -> None:
    base_offset = 2**63 - 1 - COUNT
    fetched = FetchedData(TopicPartition("t", 0), 0, base_offset, batch_at(base_offset), None)
    assert [record.offset for record in fetched.take(10)][-1] == 2**63 - 2
    assert fetched.position == 2**63 - 1
