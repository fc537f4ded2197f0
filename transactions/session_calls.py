"""Blocking calls, written from ``transactions/session.py``; do not edit, run ``make fix``.

The calls of the blocking session beside reading and sending.
The tool is ``tools/blocking_faces.py``.
"""

from __future__ import annotations

from collections.abc import Sequence

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
        """Why the latest abort happened; None before the first one."""
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
        """The partitions that the session owns at the moment."""
        return self._core.assignment()

    def place(self, partition: TopicPartition) -> int | None:
        """The committed offset of an assigned partition.

        A commit may name it again, with another note, to have the group's generation checked
        where outputs belong to no record.

        Args:
            partition: The partition.

        Returns:
            None where nothing is committed, or not known yet.
        """
        return self._core.place(partition)

    def note(self, partition: TopicPartition) -> str | None:
        """The caller's note beside the committed offset of a partition, as far as it is known.

        Notes are the ``metadata`` of the ``OffsetAndMetadata`` that ``commit`` takes. They survive
        in the group, so the next owner of the partition reads them.

        Args:
            partition: An assigned partition.

        Returns:
            None when nothing is committed, or another program committed it.
        """
        return self._core.note(partition)

    def flush(self, timeout_ms: int | None = None) -> None:
        """Wait until all that was sent is acknowledged; ``commit`` does it by itself.

        Args:
            timeout_ms: Limit, ``max_block_ms`` of the producer by default.

        Raises:
            KafkaError: A record was not delivered; the next commit becomes an abort.
        """
        run_blocking(self._core.flush(timeout_ms))

    def commit(self, offsets: Offsets | None = None) -> bool:
        """Commit outputs and offsets together.

        Args:
            offsets: Next offset by partition when only a part of what was polled is processed; an
                ``OffsetAndMetadata`` carries a note of at most 4,000 bytes, see ``note``. A
                partition without uncommitted work makes the commit an abort: its records were
                read under an earlier assignment, and their outputs must not become visible.

        Returns:
            True when committed. False when it became an abort: the consumer is back at the
            committed offsets, the same records come again, and ``last_abort`` says why.

        Raises:
            RecordError: A record can never be delivered; the transaction is aborted, and the same
                records would fail again.
            CommitOutcomeUnknownError: Not even the committed offsets could be read.
            TransactionalIdInUseError: Another live process uses the same slot.
        """
        return run_blocking(self._core.commit(offsets))

    def abort(self, cause: KafkaError | None = None) -> None:
        """Drop the outputs and go back to the committed offsets.

        Args:
            cause: What ``send``, ``send_many`` or ``flush`` raised. The session then reacts as
                to the same error of a commit: a producer that was fenced is replaced, for example.

        Raises:
            KafkaError: The cause itself, where going on does not help (``RecordError`` for one).
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
        """Drop what was fetched of a partition and not handed out, and fetch it again.

        For a partition that could not be read: a damaged answer may be right the next time.

        Args:
            partition: An assigned partition.

        Raises:
            KafkaError: Its position is not known.
        """
        run_blocking(self._core.read_again(partition))

    def put_back(self, partitions: Sequence[TopicPartition]) -> None:
        """Give back what was polled of partitions and not committed: it is read again.

        Args:
            partitions: Assigned partitions.
        """
        run_blocking(self._core.put_back(partitions))

    def position(self, partition: TopicPartition) -> int:
        """Offset of the next record that a poll would give, behind what polls have returned.

        Args:
            partition: An assigned partition.

        Raises:
            IllegalStateError: It is not assigned.
        """
        return run_blocking(self._core.position(partition))

    def at_end(self, partition: TopicPartition) -> bool:
        """Whether a partition was read to its end, as far as the last answer of a broker tells.

        Args:
            partition: An assigned partition.
        """
        return self._core.at_end(partition)

    def check_membership(self) -> None:
        """Ask the coordinator whether the membership in the group still holds.

        Raises:
            CommitFailedError: The group went on without this member.
            FencedInstanceIdError: Another process has the instance id.
            KafkaError: The coordinator cannot be reached.
        """
        run_blocking(self._core.check_membership())

    def wakeup(self) -> None:
        """Make a waiting ``poll`` return; callable from other threads and signal handlers."""
        self._core.wakeup()
