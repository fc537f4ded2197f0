"""Decides which of a consumer's running offset commits may still be sent.

A repeated commit has old offsets. It must not overwrite a later commit of the same partition, nor a
commit of the partition's new owner. So each repetition asks this module what it may still send.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition

Owner = object
"""Stands for one uninterrupted assignment of a partition; compared by identity."""


class PendingCommit:
    """The offsets of one call, until each is stored, replaced by a later call, or lost.

    Attributes:
        number: Rises with each call.
        left: Offsets that are not stored yet, by partition.
        replaced_by: Commits that were sent later for some of its partitions.
        lost: Partitions that were revoked or lost since the call.
        is_over: Whether the call has ended.
        failure: Why it failed, None if it did not.
    """

    def __init__(
        self,
        number: int,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        owners: Mapping[TopicPartition, Owner | None],
    ) -> None:
        self.number: int = number
        self.left: dict[TopicPartition, OffsetAndMetadata] = dict(offsets)
        self.replaced_by: set[PendingCommit] = set()
        self.lost: set[TopicPartition] = set()
        self.owners: Mapping[TopicPartition, Owner | None] = owners
        self.is_over: bool = False
        self.failure: KafkaError | None = None


class CommitOrder:
    """The order of one consumer's commits: the order of the calls."""

    def __init__(self, owner_of: Callable[[TopicPartition], Owner | None]) -> None:
        """Make the object, without commits.

        Args:
            owner_of: The present assignment of a partition, None while it is not assigned.
        """
        self._owner_of = owner_of
        self._count = 0
        self._pending: set[PendingCommit] = set()
        self._last_sent: dict[TopicPartition, PendingCommit] = {}

    def begin(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> PendingCommit:
        """Note a call.

        Args:
            offsets: Offsets to store.
        """
        self._count += 1
        owners = {partition: self._owner_of(partition) for partition in offsets}
        commit = PendingCommit(self._count, offsets, owners)
        self._pending.add(commit)
        return commit

    def take(self, commit: PendingCommit) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets to send now; the caller sends them before it calls this for another
        commit.

        From now on this leaves out partitions of which a later commit was sent, and those that were
        given up since the call.

        Args:
            commit: From `begin`.
        """
        for partition in list(commit.left):
            later = self._last_sent.get(partition)
            if later is not None and later.number > commit.number:
                commit.replaced_by.add(later)
                del commit.left[partition]
            elif self._owner_of(partition) is not commit.owners[partition]:
                commit.lost.add(partition)
                del commit.left[partition]
            else:
                self._last_sent[partition] = commit
        return dict(commit.left)

    def stored(self, commit: PendingCommit, partitions: Iterable[TopicPartition]) -> None:
        """Note the partitions whose offsets the coordinator stored.

        Args:
            commit: From `begin`.
            partitions: The stored partitions.
        """
        for partition in partitions:
            commit.left.pop(partition, None)

    def end(self, commit: PendingCommit, failure: KafkaError | None = None) -> None:
        """Note the end of a call, after success or failure.

        Args:
            commit: From `begin`.
            failure: Why it failed, None if it did not.
        """
        commit.is_over, commit.failure = True, failure
        self._pending.discard(commit)
        if not self._pending:
            # No commit older than the last one sent may be sent any more.
            self._last_sent.clear()
