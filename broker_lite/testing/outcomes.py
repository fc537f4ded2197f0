"""How the transactions in a stopped broker's folder ended, counted from its own log.

The coordinator writes one record for each state that a transaction enters; this module reads the
``__transaction_state`` segments and counts those that say "complete". It changes nothing and knows
only the records' form.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from onceflow.sdk.protocol.internal_topics import TransactionLogValue, read_version
from onceflow.sdk.protocol.records import decode_batch, iter_batch_headers

COMPLETE_COMMIT = 4
COMPLETE_ABORT = 5


class TransactionOutcomes(NamedTuple):
    """Transactions that ended.

    Attributes:
        committed: How many were committed.
        aborted: How many were aborted, by their producer, by a successor or by their timeout.
    """

    committed: int
    aborted: int


def transaction_outcomes(data: Path | str) -> TransactionOutcomes:
    """Count the transactions that ended, as far as the log still holds them.

    Args:
        data: A broker's data folder; the broker should be stopped.

    Returns:
        The counts; compaction may have removed old ones.
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
