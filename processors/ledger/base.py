"""The interface ``Ledger``: it polls input, takes outputs, and ends units of work.

The worker decides what a unit holds and when it ends; the ledger decides how. It may end in a Kafka
transaction (``transaction``), at least once, or in a transaction of a sink (``sink``). Each ledger
calls its owner at the same moments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from onceflow.processors.lanes import Run
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.partitions import OffsetAndMetadata, TopicPartition
from onceflow.transactions import Abort


@dataclass(frozen=True, slots=True)
class Polled:
    """The result of a poll.

    Attributes:
        records: Records by partition, in order.
        input_error: A partition, or the whole input, cannot be read; the unit is not affected.
        unit_error: The end of a unit within a rebalance failed, and would fail again.
    """

    records: dict[TopicPartition, list[ConsumerRecord]] = field(default_factory=dict)
    input_error: KafkaError | None = None
    unit_error: Exception | None = None


class LedgerOwner(Protocol):
    """The worker, as its ledger sees it. The ledger calls it only within ``poll``, ``commit`` and
    ``abort``."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Add partitions; return those to pause for now."""

    def collect(self) -> list[Run]:
        """Return the unsent records of the unit: outputs, then state changes."""

    def offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return the offsets of the unit; called when all of ``collect`` is acknowledged."""

    def committed(self) -> None:
        """Write the committed unit's state to the maps."""

    def aborted(self, abort: Abort) -> None:
        """Drop the unit and all polled records that are not committed; they are read again."""

    def released(self, partitions: Sequence[TopicPartition], lost: bool) -> list[TopicPartition]:
        """Close the tasks of partitions that are gone. If ``lost``, others may own them already.

        Returns:
            Remaining partitions whose polled records were dropped: they must be paused, and read
            again from the committed offsets.
        """


class Ledger(Protocol):
    """Ends units. Its coroutines run one at a time."""

    @property
    def last_abort(self) -> Abort | None:
        """Why the last aborted unit was aborted; None before the first."""

    async def open(self) -> None:
        """Make clients and join the group."""

    async def poll(self, timeout_ms: int, max_records: int) -> Polled:
        """Take records. Rebalances happen in here: they end the unit and call the owner.

        Raises:
            KafkaError: A client cannot be made, or committed offsets cannot be read.
        """

    async def send(self, runs: Sequence[Run]) -> bool:
        """Send outputs of the open unit early.

        Returns:
            False if the unit was aborted instead.

        Raises:
            RecordError: An output can never be delivered; the unit is aborted.
        """

    async def commit(self) -> bool:
        """End the unit: collect, send, wait for acknowledgements, commit with its offsets.

        Returns:
            False if it became an abort.

        Raises:
            RecordError: An output can never be delivered; the unit is aborted.
        """

    async def abort(self) -> None:
        """Abort the unit."""

    def note(self, partition: TopicPartition) -> str | None:
        """Return the note beside the committed offset of an assigned partition, if it is known."""

    def place(self, partition: TopicPartition) -> int | None:
        """Return the committed offset of an assigned partition, if it is known."""

    async def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Take no records of these partitions until ``resume``."""

    async def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Take records of these partitions again."""

    async def read_again(self, partition: TopicPartition) -> None:
        """Drop fetched records of a partition that no poll has returned, and fetch them again."""

    async def reach(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Make the group see ends in front of which no record is left, after the last unit.

        Returns:
            False if it became an abort.
        """

    async def check_membership(self) -> None:
        """Ask the coordinator whether this worker is still a member of its group.

        Raises:
            KafkaError: It is not, or no broker answers.
        """

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that a poll would return."""

    async def at_end(self, partition: TopicPartition) -> bool:
        """Return whether a partition was read to its end, by the broker's last answer."""

    def wakeup(self) -> None:
        """Make a waiting poll return; callable from any thread."""

    async def close(self, timeout_ms: int, *, leave_group: bool) -> None:
        """Abort the open unit and release all clients, within the time limit."""
