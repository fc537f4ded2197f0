"""Blocking calls, written from ``transactions/session.py``; do not edit, run ``make fix``.

The calls of the blocking session beside reading and sending.
The tool is ``tools/blocking_faces.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions.colour import run_blocking
from onceflow.transactions.config import AnySessionConfig
from onceflow.transactions.listener import Abort, Offsets
from onceflow.transactions.session_core import SessionCore


class SessionCalls:
    """The calls of the blocking session beside reading and sending."""

    _core: SessionCore

    @property
    def config(self) -> AnySessionConfig:
        """The settings that the session was made with."""
        return self._core.config

    @property
    def last_abort(self) -> Abort | None:
        """Cause of the last abort; None before the first one."""
        return self._core.last_abort

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""
        return self._core.in_transaction

    @property
    def commit_due(self) -> bool:
        """Whether uncommitted work is older than ``commit_interval_ms``."""
        return self._core.commit_due

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that the session owns at the moment."""
        return self._core.assignment()

    def place(self, partition: TopicPartition) -> int | None:
        """Return the committed offset of an assigned partition.

        A commit may name this offset again, with another note, if its outputs belong to no record:
        then the coordinator still checks the membership.

        Args:
            partition: The partition.

        Returns:
            None if nothing is committed, or the offset is not known yet.
        """
        return self._core.place(partition)

    def note(self, partition: TopicPartition) -> str | None:
        """Return the caller's note beside the committed offset of a partition, if it is known.

        ``commit`` takes notes as the ``metadata`` of ``OffsetAndMetadata``. The group keeps them,
        so the next owner of the partition can read them.

        Args:
            partition: An assigned partition.

        Returns:
            None if nothing is committed, or if another program committed.
        """
        return self._core.note(partition)

    def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until all sent records are acknowledged; ``commit`` does this too.

        Args:
            timeout_ms: Limit, ``max_block_ms`` of the producer by default.

        Raises:
            KafkaError: A record was not delivered; the next commit becomes an abort.
        """
        run_blocking(self._core.flush(timeout_ms))

    def commit(self, offsets: Offsets | None = None) -> bool:
        """Commit outputs and offsets together.

        Args:
            offsets: Next offset by partition, if only a part of the polled records is processed; an
                ``OffsetAndMetadata`` carries a note of at most 4,000 bytes, see ``note``. A
                partition without uncommitted work makes the commit an abort: its records were
                polled under an earlier assignment, and their outputs must not become visible.

        Returns:
            True if committed. False if it became an abort: the consumer is back at the committed
            offsets, the same records are read again, and ``last_abort`` has the cause.

        Raises:
            RecordError: A record can never be delivered; the transaction is aborted, and the same
                records would fail again.
            CommitOutcomeUnknownError: The commit got no answer, and the committed offsets could
                not be read.
            TransactionalIdInUseError: Another live process uses the same slot.
        """
        return run_blocking(self._core.commit(offsets))

    def abort(self, cause: KafkaError | None = None) -> None:
        """Drop the outputs and go back to the committed offsets.

        Args:
            cause: Error of ``send``, ``send_many`` or ``flush``. The session then reacts as to
                the same error of a commit: for example, it replaces a fenced producer.

        Raises:
            KafkaError: The cause, if going on would not help (such as ``RecordError``).
        """
        run_blocking(self._core.abort(cause))

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Take no records of these partitions until ``resume``.

        Args:
            partitions: Assigned partitions.
        """
        self._core.pause(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Take records of these partitions again.

        Args:
            partitions: Assigned partitions.
        """
        self._core.resume(partitions)

    def read_again(self, partition: TopicPartition) -> None:
        """Drop fetched records of a partition that no poll has returned, and fetch them again.

        This is for a partition that could not be read: the answer may have been damaged on its way.

        Args:
            partition: An assigned partition.

        Raises:
            KafkaError: Its position is not known.
        """
        run_blocking(self._core.read_again(partition))

    def put_back(self, partitions: Sequence[TopicPartition]) -> None:
        """Read polled, uncommitted records of partitions again.

        Args:
            partitions: Assigned partitions.
        """
        run_blocking(self._core.put_back(partitions))

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that a poll would return.

        Args:
            partition: An assigned partition.

        Raises:
            IllegalStateError: It is not assigned.
        """
        return run_blocking(self._core.position(partition))

    def at_end(self, partition: TopicPartition) -> bool:
        """Return whether a partition was read to its end, by the broker's last answer.

        Args:
            partition: An assigned partition.
        """
        return self._core.at_end(partition)

    def reach(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Commit ends in front of which only transaction markers and aborted records are left.

        For a caller that reads up to these offsets, has committed every record in front of them and
        takes nothing behind them: no commit of records may ever name them. Partitions that are not
        read that far are left out, and while a transaction is open nothing is done.

        Args:
            ends: Offset by assigned partition.

        Returns:
            True if they are committed, or nothing was to be done; False if it became an abort.

        Raises:
            KafkaError: Going on would not help, as for ``commit``.
        """
        return run_blocking(self._core.reach(ends))

    def check_membership(self) -> None:
        """Ask the coordinator whether this is still a member of the group.

        Raises:
            CommitFailedError: The group has expelled this member.
            FencedInstanceIdError: Another process has the instance id.
            KafkaError: The coordinator cannot be reached.
        """
        run_blocking(self._core.check_membership())

    def wakeup(self) -> None:
        """Make a waiting ``poll`` return; callable from other threads and signal handlers."""
        self._core.wakeup()
