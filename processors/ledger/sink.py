"""The ledger of a sink: a unit is a transaction of the sink, with rows and offsets.

It drives a session with a sink (``transactions.sinks``): the sink stores claims and offsets,
reading continues at its offsets, and it refuses an owner that was replaced. Kafka commits nothing.
Dead letters go into the sink's transaction too, if it keeps them. Else a plain producer sends them,
and they are acknowledged before the sink's commit; if the process dies in between, they are sent
again and none is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

from onceflow.processors.calls import Calls
from onceflow.processors.errors import UndeliverableOutputError
from onceflow.processors.lanes import Lanes, Run
from onceflow.processors.ledger.at_least_once import PlainProducer
from onceflow.processors.ledger.base import LedgerOwner, Polled
from onceflow.processors.ledger.rows import row_lane
from onceflow.processors.ledger.sending import send_runs
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition
from onceflow.sdk.model.record_checks import to_headers
from onceflow.transactions import Abort
from onceflow.transactions.abort_reasons import Reaction, judge
from onceflow.transactions.colour import Maybe, settle
from onceflow.transactions.listener import SessionListener
from onceflow.transactions.sinks import SinkRowError, SinkUnavailableError
from onceflow.transactions.sinks.ledger import Letter
from onceflow.transactions.sinks.session_core import SinkSessionCore

MakeCore = Callable[[SessionListener], SinkSessionCore | Awaitable[SinkSessionCore]]
MakeProducer = Callable[[], Maybe[PlainProducer]]


class SinkLedger:
    """Units as transactions of a sink. Also the session's listener.

    Args:
        make_core: Starts a session with the given listener.
        make_producer: Makes the producer of dead letters, when the first one is sent.
        owner: The worker.
        lanes: The worker's lanes, which hold the rows too.
        calls: Runs callbacks in the worker's thread.
        letters: Topics of dead letters; nothing else may be sent.
        revoke_budget_ms: Time for the commit within a rebalance.
    """

    def __init__(
        self,
        make_core: MakeCore,
        make_producer: MakeProducer,
        owner: LedgerOwner,
        lanes: Lanes,
        calls: Calls,
        letters: Sequence[str],
        revoke_budget_ms: int,
    ) -> None:
        self._make_core = make_core
        self._make_producer = make_producer
        self._owner = owner
        self._lanes = lanes
        self._rows = row_lane(lanes)
        self._calls = calls
        self._letters = frozenset(letters)
        self._revoke_budget_ms = revoke_budget_ms
        self._core: SinkSessionCore | None = None
        self._producer: PlainProducer | None = None
        self._last_abort: Abort | None = None

    @property
    def _open_core(self) -> SinkSessionCore:
        assert self._core is not None, "the ledger is not open"
        return self._core

    @property
    def last_abort(self) -> Abort | None:
        """Why the latest unit was aborted."""
        return self._last_abort

    async def open(self) -> None:
        """Open the sink and become a member of the group."""
        self._core = await settle(self._make_core(self))

    async def poll(self, timeout_ms: int, max_records: int) -> Polled:
        """Take records; see ``Ledger.poll``."""
        try:
            result = await self._open_core.poll_result(timeout_ms, max_records)
        except SinkRowError as error:
            return Polled(unit_error=_refused(error))
        self._open_core.handed_out()
        return Polled(result.records, result.input_error)  # type: ignore[arg-type] # bytes

    # Units ---------------------------------------------------------------------------------

    async def send(self, runs: Sequence[Run]) -> bool:
        """Send dead letters early; see ``Ledger.send``."""
        try:
            await self._send(runs)
        except KafkaError as error:
            self._failed(error)
            return False
        return True

    async def _send(self, runs: Sequence[Run]) -> None:
        for run in runs:
            if run.topic not in self._letters:
                raise UndeliverableOutputError(
                    f"an output to {run.topic!r}: an application with a sink writes no topics but "
                    "those of dead letters"
                )
        if self._open_core.keeps_letters:
            self._open_core.put_letters([letter for run in runs for letter in _letters_of(run)])
        elif runs:
            if self._producer is None:
                self._producer = await settle(self._make_producer())
            await send_runs(self._producer, runs, self._refuse)

    def _refuse(self, topic: str, error: Exception) -> None:
        self._calls.home(self._lanes.lane(topic).refused, error)

    def _failed(self, error: KafkaError) -> None:
        """Abort the unit after a dead letter failed.

        Raises:
            KafkaError: The error, if going on would not help.
        """
        self._open_core.abort(error)
        if judge(error).reaction is Reaction.RAISE:
            raise error

    async def commit(self) -> bool:
        """End the unit; see ``Ledger.commit``."""
        core = self._open_core
        try:
            offsets = await self._finish(None)
        except KafkaError as error:
            await self._drop_producer()
            self._failed(error)
            return False
        if not offsets:
            self._calls.home(self._owner.committed)
            return True
        try:
            return await core.commit(offsets)
        except SinkUnavailableError:
            return False
        except SinkRowError as error:
            raise _refused(error) from error

    async def abort(self) -> None:
        """Abort the unit."""
        self._open_core.abort()

    # Input ---------------------------------------------------------------------------------

    def note(self, partition: TopicPartition) -> str | None:
        """Return None: a sink's offsets have no notes."""
        return None

    def place(self, partition: TopicPartition) -> int | None:
        """Return the stored offset of a claimed partition, if it is known."""
        return self._open_core.place(partition)

    async def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Take no records of these partitions until ``resume``."""
        self._open_core.pause(partitions)

    async def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Take records of these partitions again."""
        self._open_core.resume(partitions)

    async def read_again(self, partition: TopicPartition) -> None:
        """Drop fetched records of a partition that no poll has returned, and fetch them again."""
        await self._open_core.read_again(partition)

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that a poll would return."""
        return await self._open_core.position(partition)

    async def at_end(self, partition: TopicPartition) -> bool:
        """Whether a partition was read to its end."""
        return self._open_core.at_end(partition)

    async def reach(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Show the group ends in front of which no record is left; see ``Ledger.reach``."""
        self._open_core.show_ends(ends)
        return True

    async def check_membership(self) -> None:
        """Check the membership; see ``Ledger.check_membership``."""
        await self._open_core.check_membership()

    def wakeup(self) -> None:
        """Make a waiting poll return; from any thread."""
        if self._core is not None:
            self._core.wakeup()

    async def close(self, timeout_ms: int, *, leave_group: bool) -> None:
        """Close session, sink and producer."""
        core, self._core = self._core, None
        try:
            if core is not None:
                await core.close(timeout_ms, leave_group=leave_group)
        finally:
            await self._drop_producer()

    async def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await settle(producer.close(timeout_ms=0))

    # The session's listener ----------------------------------------------------------------

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Make tasks of added partitions, and pause those that wait."""
        waiting = self._calls.home(self._owner.assigned, partitions)
        if waiting:
            self._open_core.pause(waiting)

    async def progress(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Prepare a commit within a rebalance: send dead letters, and return rows and offsets."""
        if self._core is None:
            return {}  # The ledger is being closed, and the open unit is dropped.
        return await self._finish(self._revoke_budget_ms)

    async def _finish(self, timeout_ms: int | None) -> Mapping[TopicPartition, OffsetAndMetadata]:
        runs = self._calls.home(self._owner.collect)
        await self._send(runs)
        if self._producer is not None:
            await settle(self._producer.flush(timeout_ms))
        rows, records = self._calls.home(self._rows.take_rows)
        self._open_core.put(rows, records)
        return self._calls.home(self._owner.offsets)

    def committed(self) -> None:
        """Tell the worker that the sink's transaction is committed."""
        self._calls.home(self._owner.committed)

    def aborted(self, abort: Abort) -> None:
        """Tell the worker that the unit is aborted and its records are read again."""
        self._last_abort = abort
        self._calls.home(self._owner.aborted, abort)

    async def released(self, partitions: Sequence[TopicPartition], lost: bool) -> None:
        """Close the tasks of lost or revoked partitions."""
        dropped = self._calls.home(self._owner.released, partitions, lost)
        if dropped:
            await self._open_core.put_back(dropped)
            self._open_core.pause(dropped)


def _letters_of(run: Run) -> Iterator[Letter]:
    headers = to_headers(run.headers)
    for index, (key, value) in enumerate(zip(run.keys, run.values, strict=True)):
        time_ms = None if run.timestamps_ms is None else run.timestamps_ms[index]
        yield Letter(run.topic, key, value, headers, time_ms)


def _refused(error: SinkRowError) -> UndeliverableOutputError:
    """Return the error as a failure of the record, to which its policy applies."""
    return UndeliverableOutputError(f"the sink refuses a row: {error}")
