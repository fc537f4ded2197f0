"""Decides how large a transaction may be and when it is due, and notices when none succeeds.

After an abort that may come back (a record that can never be delivered, a batch that takes too
long) the records concerned are processed one to a transaction, so that a failure can be attributed
to its record. Pure bookkeeping on a given clock; the runner acts on it.
"""

from __future__ import annotations

from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions import Abort, AbortReason

BACKOFF_START_MS = 50
BACKOFF_MAX_MS = 5_000
ABORTS_UNTIL_CAREFUL = 2

# Aborts that a rebalance, a fence or the runner itself explains: the batch is not to blame.
BLAMELESS = frozenset(
    {
        AbortReason.REQUESTED,
        AbortReason.PARTITIONS_LOST,
        AbortReason.STALE_MEMBERSHIP,
        AbortReason.REBALANCE,
        AbortReason.FENCED,
    }
)


class Pacing:
    """Size, age and success of transactions.

    Args:
        commit_interval_ms: Longest time between commits.
        commit_records: Most records in a transaction.
        aborts_max: Aborts in a row before ``exhausted``.
    """

    def __init__(self, commit_interval_ms: int, commit_records: int, aborts_max: int) -> None:
        self._interval_s = commit_interval_ms / 1000
        self._commit_records = commit_records
        self._aborts_max = aborts_max
        self._careful: dict[TopicPartition, int] = {}
        self.aborts: int = 0
        self.uncommitted: int = 0
        self.due_s: float = 0.0

    @property
    def limit(self) -> int:
        """Records that the open transaction may hold."""
        return 1 if self._careful else self._commit_records

    @property
    def exhausted(self) -> bool:
        """Whether aborting again makes no sense."""
        return self.aborts > self._aborts_max

    def started(self, now_s: float) -> None:
        """Records came in; the interval counts from the first uncommitted one."""
        if self.uncommitted == 0:
            self.due_s = now_s + self._interval_s

    def committed(self, processed: dict[TopicPartition, int], now_s: float) -> None:
        """A transaction succeeded."""
        if processed:
            self.aborts = 0
        for partition, upto in processed.items():
            if self._careful.get(partition, upto + 1) <= upto:
                del self._careful[partition]
        self.uncommitted = 0
        self.due_s = now_s + self._interval_s

    def aborted(self, abort: Abort, processed: dict[TopicPartition, int]) -> None:
        """A transaction failed."""
        self.uncommitted = 0
        if abort.reason not in BLAMELESS:
            self.aborts += 1
            if self.aborts >= ABORTS_UNTIL_CAREFUL:
                self.suspect(processed)

    def suspect(self, processed: dict[TopicPartition, int]) -> None:
        """Take the next transactions one by one, up to these offsets."""
        for partition, upto in processed.items():
            self._careful[partition] = max(upto, self._careful.get(partition, 0))

    def forget(self, partition: TopicPartition) -> None:
        """The partition is gone."""
        self._careful.pop(partition, None)

    def backoff_ms(self) -> int:
        """Wait before the next try: none after the first abort, then doubling."""
        if self.aborts < 2:
            return 0
        return min(BACKOFF_MAX_MS, BACKOFF_START_MS << min(self.aborts - 2, 16))
