"""A session whose outputs, input offsets and database rows commit together.

This is two-phase commit with Kafka as the last participant. PostgreSQL prepares its transaction.
The Kafka transaction takes a note with its name and commits, which is the decision. PostgreSQL
commits the prepared transaction, or rolls it back if the Kafka transaction aborted. A process that
dies in between leaves a prepared transaction, which the next start with the same transactional id
finishes by the note (``Decisions``).

https://www.postgresql.org/docs/current/sql-prepare-transaction.html
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Self, Unpack, overload

from onceflow.sdk.errors import ConfigError, IllegalStateError, KafkaError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import Headers, TopicPartition
from onceflow.sdk.model.record_types import KeyT_co, ValueT_co
from onceflow.transactions.config import AnySessionConfig, K, SessionConfig, V
from onceflow.transactions.listener import Abort, Offsets
from onceflow.transactions.postgres_client import (
    SQL,
    Literal,
    PostgresConnection,
    checked_dsn,
    connected,
    psycopg,
)
from onceflow.transactions.session import TransactionSession
from onceflow.transactions.sinks.sink import Observer, Steps
from onceflow.transactions.two_phase.decisions import Decisions, finish
from onceflow.transactions.two_phase.errors import ParticipantError

if TYPE_CHECKING:
    from onceflow.transactions.keywords import SessionKeywords, SessionRest

logger: logging.Logger = logging.getLogger("onceflow.transactions.two_phase")


class TwoPhaseSession(Generic[KeyT_co, ValueT_co]):
    """Reads topics, writes topics and a database of PostgreSQL, all in one step.

    ::

        with TwoPhaseSession(DSN, config) as session:
            while True:
                for records in session.poll(1000).values():
                    for record in records:
                        session.connection.execute("UPDATE accounts ...")
                        session.send("payments-done", record.value, key=record.key)
                if session.commit_due:
                    session.commit()

    All statements on ``connection`` between two commits are one transaction of the database. It is
    prepared within ``commit`` and within a rebalance, so call ``poll`` only when all records of the
    previous poll are processed. The server's ``max_prepared_transactions`` must be at least the
    number of sessions.

    Args:
        dsn: Address of the database.
        config: Settings; or give them as keyword arguments, which win.
        observer: Called at each step, for tests.
        **settings: Settings of ``SessionConfig`` and of clients.

    Raises:
        ConfigError: A setting cannot work, serializers are set, or the database prepares no
            transactions.
        ParticipantError: The database cannot be reached.
        KafkaError: The brokers cannot be reached, or refuse.
    """

    @overload
    def __init__(
        self: TwoPhaseSession[K, V],
        dsn: str,
        config: SessionConfig[K, V],
        *,
        observer: Observer | None = None,
        **settings: Unpack[SessionRest],
    ) -> None: ...
    @overload
    def __init__(
        self: TwoPhaseSession[bytes | None, bytes | None],
        dsn: str,
        config: None = None,
        *,
        observer: Observer | None = None,
        **settings: Unpack[SessionRest],
    ) -> None: ...
    @overload
    def __init__(
        self: TwoPhaseSession[object, object],
        dsn: str,
        config: AnySessionConfig | None = None,
        *,
        observer: Observer | None = None,
        **settings: Unpack[SessionKeywords],
    ) -> None: ...
    def __init__(
        self,
        dsn: str,
        config: AnySessionConfig | None = None,
        *,
        observer: Observer | None = None,
        **settings: Unpack[SessionKeywords],
    ) -> None:
        checked = SessionConfig.of(config, settings)
        for field in ("key_serializer", "value_serializer"):
            if getattr(checked.producer, field) is not None:
                remedy = "must not be set: notes are sent beside your records; encode before send()"
                raise ConfigError(field, getattr(checked.producer, field), remedy)
        self._dsn = checked_dsn(dsn)
        self._steps = Steps(observer)
        self._decisions = Decisions(checked.own_transactional_id, checked.client)
        self._work: PostgresConnection | None = None
        self._handed_out = False  # since the last commit or abort
        self._returned = True  # what the last poll took
        self._prepared = ""  # and in the open Kafka transaction
        self._unsure = ""  # and it is unknown how the Kafka transaction ended
        self._decided: tuple[str, bool] | None = None
        self._finisher = self._connected()
        try:
            self._check_server()
            self._decisions.open()
            # Its InitProducerId ends an earlier process's transaction; then the notes are final.
            self._session = TransactionSession[object, object](checked, listener=self)
        except BaseException:
            self._finisher.close()
            raise
        try:
            self._resolve()
        except BaseException:
            self.close()
            raise

    def _connected(self) -> PostgresConnection:
        try:
            return connected(self._dsn, timeout_ms=10_000)
        except psycopg.OperationalError as error:
            raise ParticipantError(f"the database cannot be reached: {error}") from error

    def _check_server(self) -> None:
        try:
            found = self._finisher.execute("SHOW max_prepared_transactions").fetchone()
        except psycopg.OperationalError as error:
            raise ParticipantError(f"the database cannot be reached: {error}") from error
        if found is None or int(found[0]) < 1:
            raise ConfigError(
                "dsn",
                "(hidden)",
                "the server prepares no transactions; set max_prepared_transactions to the number "
                "of sessions at least, and restart it",
            )

    # Use -----------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def connection(self) -> PostgresConnection:
        """The connection whose open transaction is part of the next commit.

        Do not commit it, and do not roll it back: ``abort`` does that on both sides.

        Raises:
            ParticipantError: It was lost with rows of this transaction; call ``abort``.
        """
        self._finish_decided()
        if self._handed_out:
            self._check_work()
        if self._work is None or self._work.closed:
            self._work = self._connected()
            self._work.autocommit = False
        self._handed_out = True
        return self._work

    def _check_work(self) -> None:
        """Raise an error if rows of this transaction are lost.

        Raises:
            ParticipantError: The connection was lost.
        """
        if self._work is None or self._work.closed:
            raise ParticipantError(
                "the connection to the database was lost, and rows of this transaction with it; "
                "both sides must be undone: call abort()"
            )

    def poll(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord[KeyT_co, ValueT_co]]]:
        """Take records; a rebalance in here commits or aborts both sides.

        Args:
            timeout_ms: How long to wait for records.
            max_records: Most records; None takes ``max_poll_records``.

        Raises:
            ParticipantError: The database cannot finish what was decided, or prepare.
            KafkaError: Reading failed, or the commit within a rebalance.
        """
        self._finish_decided()
        self._after_interruption()
        self._returned = False
        try:
            records = self._session.poll(timeout_ms, max_records)
        except BaseException:  # The session reads again what it took.
            self._returned = True
            raise
        try:
            self._resolve_unsure()
        except ParticipantError:
            self._session.abort()  # These records are not returned, so read them again.
            self._returned = True
            raise
        self._returned = True
        return records  # type: ignore[return-value] # A signal could come after a cast().

    def _after_interruption(self) -> bool:
        """Undo both sides after a poll that a signal's handler ended behind the session's own.

        Returns:
            Whether that was so: what the poll took is read again.
        """
        if self._returned:
            return False
        self.abort()
        self._returned = True
        return True

    def send(
        self,
        topic: str,
        value: object = None,
        *,
        key: object = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> object:
        """Send a record within the transaction; see ``TransactionSession.send``.

        Args:
            topic: Topic name.
            value: Value, as the serializer takes it.
            key: Key, as the serializer takes it.
            headers: Names and values.
            partition: Partition; None to choose by key.
            timestamp_ms: Timestamp; None for now.
        """
        return self._session.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp_ms
        )

    @property
    def commit_due(self) -> bool:
        """Whether the uncommitted work is older than ``commit_interval_ms``."""
        return self._session.commit_due

    @property
    def last_abort(self) -> Abort | None:
        """Why the latest abort happened; None before the first one."""
        return self._session.last_abort

    def commit(self) -> bool:
        """Commit outputs, offsets and the database's rows together.

        Returns:
            True if they are committed; False if all of it was undone and is read again.

        Raises:
            ParticipantError: The database refused to prepare, and both sides were aborted; or it
                could not be told of the commit, which the next call makes up for.
            KafkaError: The brokers refuse, as from ``TransactionSession.commit``.
        """
        if self._after_interruption():
            return False
        try:
            self._prepare()
        except ParticipantError:
            self._session.abort()
            raise
        gid = self._prepared
        refusal = self._note(gid) if gid else None
        with self._steps("decide"):
            if refusal is None:
                done = self._session.commit()
            else:  # Such as a fence that an earlier send has met in the background.
                self._session.abort(refusal)
                done = False
        if gid and (not done or self._prepared or self._unsure):
            # The result of the call is certain, even after a fence. Most commits have told the
            # database already, in ``committed``.
            self._prepared = self._unsure = ""
            self._handed_out = False
            self._decided = (gid, done)
        self._finish_decided()
        return done

    def abort(self) -> None:
        """Undo what is not committed on both sides; the next poll reads it again."""
        self._session.abort()
        self._undo()

    def close(self, timeout_ms: int = 10_000) -> None:
        """Undo what is not committed, leave the group and close everything.

        Args:
            timeout_ms: Bound of the Kafka clients' end.
        """
        try:
            self._session.close(timeout_ms)
        finally:
            # The next start finishes a prepared transaction without a known decision.
            for connection in (self._work, self._finisher):
                if connection is not None:
                    connection.close()

    # Two phases ----------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Prepare the database's transaction, if there is one."""
        self._finish_decided()
        if self._prepared or self._unsure:
            raise IllegalStateError("how the last commit ended is not known; call poll() first")
        work = self._work
        if not self._handed_out or work is None:
            return
        self._check_work()
        if work.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            return
        gid = self._decisions.new_gid()
        self._unsure = gid  # until the answer comes, also if a signal ends the wait for it
        try:
            with self._steps("prepare"):
                text = SQL("PREPARE TRANSACTION {}").format(Literal(gid))
                done = work.execute(text).statusmessage
        except psycopg.Error as error:
            if error.sqlstate is not None and error.sqlstate[:2] not in ("08", "57"):
                self._unsure = ""  # The server has refused.
            work.close()
            told = " ".join(str(error).split())
            raise ParticipantError(
                f"the database could not prepare: {told}; both sides were aborted"
            ) from error
        if done != "PREPARE TRANSACTION":
            # After a statement that failed, PostgreSQL rolls back and says so without an error.
            self._unsure = ""
            raise ParticipantError(
                f"the database answered {done}: a statement of this transaction had failed; both "
                "sides were aborted. Call abort() where a statement fails"
            )
        self._prepared, self._unsure = gid, ""

    def _note(self, gid: str) -> KafkaError | None:
        """Send a note with the name; return the error if the transaction takes no more records."""
        topic, partition = self._decisions.partition
        try:
            with self._steps("note"):
                self._session.send(
                    topic, gid.encode(), key=self._decisions.key, partition=partition
                )
        except KafkaError as error:
            return error
        return None

    def _resolve_unsure(self) -> None:
        """Learn from the decision log how a commit ended.

        After a successful poll all earlier transactions have ended, by the producer itself or by
        the InitProducerId of its successor.

        Raises:
            ParticipantError: The database cannot be reached.
        """
        if self._unsure:
            self._resolve(only=self._unsure)
            self._unsure = ""

    def _resolve(self, only: str = "") -> None:
        """Finish what is prepared by its decision.

        Raises:
            ParticipantError: The database cannot be reached.
        """
        for is_last in (False, True):  # The connection may have been lost long ago.
            try:
                if self._finisher.closed:
                    self._finisher = self._connected()
                self._decisions.resolve(self._finisher, self._steps, only=only)
            except psycopg.OperationalError as error:
                self._finisher.close()
                if is_last:
                    raise ParticipantError(f"the database cannot be reached: {error}") from error
            else:
                return

    def _undo(self) -> None:
        """Roll back what is open."""
        self._handed_out = False
        work = self._work
        if work is not None and not work.closed:
            try:
                work.rollback()
            except psycopg.Error:
                work.close()

    def _finish_decided(self) -> None:
        """Tell the database of a decision.

        Raises:
            ParticipantError: The database could not be reached; the next call tries again.
        """
        if self._decided is None:
            return
        gid, commit = self._decided
        try:
            if self._finisher.closed:
                self._finisher = self._connected()
            with self._steps("finish"):
                finish(self._finisher, gid, commit)
        except psycopg.Error as error:
            self._finisher.close()
            decision = "committed" if commit else "aborted"
            raise ParticipantError(
                f"the transaction is {decision}, and the database was not reached: {error}. The "
                "next call tells it again; after a restart the session does"
            ) from error
        self._decided = None

    # What the session tells ----------------------------------------------------------------

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """See ``SessionListener.assigned``.

        Args:
            partitions: What came.
        """

    def progress(self) -> Offsets | None:
        """See ``SessionListener.progress``: prepare within a rebalance.

        Raises:
            ParticipantError: The database could not prepare.
            KafkaError: The note was refused; the session aborts, and so does the database.
        """
        if self._unsure:
            return {}  # The work has ended, as after a fence; the next poll learns how.
        self._prepare()
        refusal = self._note(self._prepared) if self._prepared else None
        if refusal is not None:
            raise refusal
        return None

    def committed(self) -> None:
        """See ``SessionListener.committed``."""
        # Within a rebalance; after commit() its result does the same.
        gid, self._prepared = self._prepared, ""
        if gid:
            self._handed_out = False
            self._decided = (gid, True)
            try:
                self._finish_decided()
            except ParticipantError as error:
                logger.warning("%s", error)

    def aborted(self, abort: Abort) -> None:
        """See ``SessionListener.aborted``.

        Args:
            abort: Why.
        """
        # After a fence the session calls this before it looks the outcome of the commit up.
        self._unsure, self._prepared = self._prepared or self._unsure, ""
        self._undo()

    def released(self, partitions: Sequence[TopicPartition], lost: bool) -> None:
        """See ``SessionListener.released``.

        Args:
            partitions: What went.
            lost: Whether other members may own them already.
        """
