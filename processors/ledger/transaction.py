"""The ledger of exactly-once: a unit is a Kafka transaction with its offsets (KIP-98, KIP-447).

It drives a blocking or asyncio session: it sends runs, turns errors of sends into aborts, and
forwards rebalance callbacks to the worker. The session holds the rules of transactions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from onceflow.processors.calls import Calls
from onceflow.processors.lanes import Lanes, Run
from onceflow.processors.ledger.base import LedgerOwner, Polled
from onceflow.processors.ledger.sending import send_runs
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition
from onceflow.transactions import Abort, PollResult
from onceflow.transactions.clients import Sending
from onceflow.transactions.colour import Maybe, settle
from onceflow.transactions.listener import Offsets, SessionListener


class Session(Sending, Protocol):
    """The calls that a worker makes to its session, blocking or asyncio."""

    @property
    def last_abort(self) -> Abort | None: ...
    def poll_result(
        self, timeout_ms: int = 0, max_records: int | None = None
    ) -> Maybe[PollResult]: ...
    def commit(self, offsets: Offsets | None = None) -> Maybe[bool]: ...
    def abort(self, cause: KafkaError | None = None) -> Maybe[None]: ...
    def note(self, partition: TopicPartition) -> str | None: ...
    def place(self, partition: TopicPartition) -> int | None: ...
    def pause(self, partitions: Sequence[TopicPartition]) -> None: ...
    def resume(self, partitions: Sequence[TopicPartition]) -> None: ...
    def read_again(self, partition: TopicPartition) -> Maybe[None]: ...
    def put_back(self, partitions: Sequence[TopicPartition]) -> Maybe[None]: ...
    def at_end(self, partition: TopicPartition) -> Maybe[bool]: ...
    def position(self, partition: TopicPartition) -> Maybe[int]: ...
    def reach(self, ends: Mapping[TopicPartition, int]) -> Maybe[bool]: ...
    def check_membership(self) -> Maybe[None]: ...
    def wakeup(self) -> None: ...
    def close(self, timeout_ms: int = ..., *, leave_group: bool = ...) -> Maybe[None]: ...


MakeSession = Callable[[SessionListener], Session | Awaitable[Session]]


class TransactionLedger:
    """Units as transactions of one session. Also the session's listener.

    Args:
        make_session: Makes a session with the given listener.
        owner: The worker.
        lanes: The worker's lanes, to note topics that the brokers refuse.
        calls: Runs callbacks in the worker's thread.
        revoke_budget_ms: Time for the commit within a rebalance.
    """

    def __init__(
        self,
        make_session: MakeSession,
        owner: LedgerOwner,
        lanes: Lanes,
        calls: Calls,
        revoke_budget_ms: int,
    ) -> None:
        self._revoke_budget_ms = revoke_budget_ms
        self._make_session = make_session
        self._owner = owner
        self._lanes = lanes
        self._calls = calls
        self._session: Session | None = None

    @property
    def _open_session(self) -> Session:
        assert self._session is not None, "the ledger is not open"
        return self._session

    @property
    def last_abort(self) -> Abort | None:
        """Why the latest unit was aborted."""
        return None if self._session is None else self._session.last_abort

    async def open(self) -> None:
        """Make the session; its producer fences an earlier one with the same id."""
        self._session = await settle(self._make_session(self))

    async def poll(self, timeout_ms: int, max_records: int) -> Polled:
        """Take records; see ``Ledger.poll``."""
        result = await settle(self._open_session.poll_result(timeout_ms, max_records))
        return Polled(result.records, result.input_error, result.unit_error)

    # Units ---------------------------------------------------------------------------------

    async def send(self, runs: Sequence[Run]) -> bool:
        """Send outputs early; see ``Ledger.send``."""
        try:
            await self._send(runs)
        except KafkaError as error:
            # The table of abort reasons decides, as for an error of the commit.
            await settle(self._open_session.abort(error))
            return False
        return True

    async def _send(self, runs: Sequence[Run]) -> None:
        await send_runs(self._open_session, runs, self._refuse)

    def _refuse(self, topic: str, error: Exception) -> None:
        self._calls.home(self._lanes.lane(topic).refused, error)

    async def commit(self) -> bool:
        """End the unit; see ``Ledger.commit``."""
        try:
            offsets = await self._finish(None)
        except KafkaError as error:
            await settle(self._open_session.abort(error))
            return False
        return await settle(self._open_session.commit(offsets))

    async def abort(self) -> None:
        """Abort the unit."""
        await settle(self._open_session.abort())

    # Input ---------------------------------------------------------------------------------

    def note(self, partition: TopicPartition) -> str | None:
        """Return the note beside the committed offset of an assigned partition, if it is known."""
        return self._open_session.note(partition)

    def place(self, partition: TopicPartition) -> int | None:
        """Return the committed offset of an assigned partition, if it is known."""
        return self._open_session.place(partition)

    async def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Take no records of these partitions until ``resume``."""
        self._open_session.pause(partitions)

    async def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Take records of these partitions again."""
        self._open_session.resume(partitions)

    async def read_again(self, partition: TopicPartition) -> None:
        """Drop fetched records of a partition that no poll has returned, and fetch them again."""
        await settle(self._open_session.read_again(partition))

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that a poll would return."""
        return await settle(self._open_session.position(partition))

    async def at_end(self, partition: TopicPartition) -> bool:
        """Whether a partition was read to its end."""
        return await settle(self._open_session.at_end(partition))

    async def reach(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Commit ends in front of which no record is left; see ``Ledger.reach``."""
        return await settle(self._open_session.reach(ends))

    async def check_membership(self) -> None:
        """Check the membership; see ``Ledger.check_membership``."""
        await settle(self._open_session.check_membership())

    def wakeup(self) -> None:
        """Make a waiting poll return; from any thread."""
        if self._session is not None:
            self._session.wakeup()

    async def close(self, timeout_ms: int, *, leave_group: bool) -> None:
        """Close the session."""
        session, self._session = self._session, None
        if session is not None:
            await settle(session.close(timeout_ms, leave_group=leave_group))

    # The session's listener ----------------------------------------------------------------

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Make tasks of added partitions, and pause those that wait."""
        waiting = self._calls.home(self._owner.assigned, partitions)
        if waiting:
            self._open_session.pause(waiting)
            self._open_session.wakeup()  # Restore now, not after this poll's wait.

    async def progress(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Prepare a commit within a rebalance: send the unit's records, and return its offsets."""
        if self._session is None:
            return {}  # The ledger is being closed, and the open unit is aborted.
        return await self._finish(self._revoke_budget_ms)

    async def _finish(self, timeout_ms: int | None) -> Mapping[TopicPartition, OffsetAndMetadata]:
        runs = self._calls.home(self._owner.collect)
        await self._send(runs)
        if any(run.sent is not None and run.partition is not None for run in runs):
            # The notes beside the offsets hold the ends of the changelogs.
            await settle(self._open_session.flush(timeout_ms))
        return self._calls.home(self._owner.offsets)

    def committed(self) -> None:
        """Tell the worker that the transaction is committed."""
        self._calls.home(self._owner.committed)

    def aborted(self, abort: Abort) -> None:
        """Tell the worker that the transaction is aborted."""
        self._calls.home(self._owner.aborted, abort)

    async def released(self, partitions: Sequence[TopicPartition], lost: bool) -> None:
        """Close the tasks of lost or revoked partitions."""
        dropped = self._calls.home(self._owner.released, partitions, lost)
        if dropped:
            await settle(self._open_session.put_back(dropped))
            self._open_session.pause(dropped)
