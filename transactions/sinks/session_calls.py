"""Blocking calls, written from ``transactions/sinks/session.py``; do not edit, run ``make fix``.

The calls of the blocking session with a sink beside reading.
The tool is ``tools/blocking_faces.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onceflow.sdk.model.consumer_record import AnyRecord
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions.colour import run_blocking
from onceflow.transactions.sinks.session_core import SinkSessionCore


class SinkSessionCalls:
    """The calls of the blocking session with a sink beside reading."""

    _core: SinkSessionCore

    def write(self, row: Mapping[str, object], *, of: AnyRecord | None = None) -> None:
        """Keep a row for the next commit.

        Args:
            row: Values by column name.
            of: The record of the row. With it, ``write`` raises an error if the record's work was
                dropped meanwhile.

        Raises:
            IllegalStateError: Nothing that was polled is uncommitted, or a commit is under way.
            CommitFailedError: The record belongs to work that was aborted or committed.
        """
        self._core.write(row, of=of)

    def write_many(
        self, rows: Sequence[Mapping[str, object]], *, of: Sequence[AnyRecord] | None = None
    ) -> None:
        """Keep rows for the next commit, faster than one by one.

        Args:
            rows: Values by column name.
            of: The record of each row: of one partition and in their order, as ``poll`` returns
                them; a record may occur several times.

        Raises:
            ConfigError: There are more or fewer records than rows, or they are not in order.
            IllegalStateError: Nothing that was polled is uncommitted, or a commit is under way.
            CommitFailedError: A record belongs to work that was aborted or committed.
        """
        self._core.write_many(rows, of=of)

    @property
    def commit_due(self) -> bool:
        """Whether the uncommitted work is older than ``commit_interval_ms``."""
        return self._core.commit_due

    def commit(self) -> bool:
        """Store the rows, and the offsets of all polled records, in the sink's transaction.

        Returns:
            True if they are stored. False if the work was dropped and its records are read again,
            because a newer owner had claimed a partition or the answer was lost (``last_abort``).

        Raises:
            SinkSharedError: Another live program claims the same partitions again and again.
            SinkOffsetsMovedError: Another program changed the stored offsets meanwhile.
            SinkRowError: The sink cannot store a row; the work is dropped and read again.
            SinkUnavailableError: The sink cannot be reached in time; the work is dropped and read
                again. Within a rebalance the limit is ``revoke_budget_ms``, and no error is raised.
        """
        return run_blocking(self._core.commit())

    def abort(self) -> None:
        """Drop rows that are not committed; the next poll reads their records again.

        Raises:
            IllegalStateError: A commit is under way.
        """
        self._core.abort()

    @property
    def last_abort(self) -> Exception | None:
        """Why the last commit became an abort; None after one that succeeded."""
        return self._core.last_abort

    @property
    def owner(self) -> str:
        """The name under which this session claims partitions in the sink."""
        return self._core.owner

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that the session owns at the moment."""
        return self._core.assignment()

    def wakeup(self) -> None:
        """Make a waiting poll return."""
        self._core.wakeup()
