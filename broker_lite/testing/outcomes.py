"""Counts the committed and aborted transactions in a stopped broker's folder.

The coordinator writes one record for each state that a transaction enters. This module reads the
``__transaction_state`` segments and counts the records of the two "complete" states.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from onceflow.sdk.protocol.internal_topics import TransactionLogValue, read_version
from onceflow.sdk.protocol.records import decode_batch, iter_batch_headers

COMPLETE_COMMIT = 4
COMPLETE_ABORT = 5


class TransactionOutcomes(NamedTuple):
    """Counts of ended transactions.

    Attributes:
        committed: Committed transactions.
        aborted: Transactions aborted by their producer, by a newer producer or by their timeout.
    """

    committed: int
    aborted: int


def transaction_outcomes(data: Path | str) -> TransactionOutcomes:
    """Count the ended transactions in the log; compaction may have removed old ones.

    Args:
        data: Data folder of a broker, which should be stopped.
    """
    ended = {COMPLETE_COMMIT: 0, COMPLETE_ABORT: 0}
    for segment in sorted(Path(data).glob("__transaction_state-*/*.log")):
        content = segment.read_bytes()
        for position, header in iter_batch_headers(content):
            if header.is_control:
                continue
            for record in decode_batch(content, position):
                if record.value is None:
                    continue
                version = read_version(record.value)
                value, _ = TransactionLogValue.decode(record.value, version, 2)
                if value.transaction_status in ended:
                    ended[value.transaction_status] += 1
    return TransactionOutcomes(ended[COMPLETE_COMMIT], ended[COMPLETE_ABORT])
