"""What a ledger is: it hands out input, takes outputs, and ends units of work.

The worker decides what a unit holds and when it ends; the ledger decides how. A Kafka transaction
is one way (``transaction``). At-least-once delivery, a sink that keeps offsets beside its rows, and
a transaction that is prepared together with another system's are others: each implements ``Ledger``
and calls its owner back at the same moments.
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
    """What a poll gave.

    Attributes:
        records: Records by partition, in order.
        input_error: A partition, or the whole input, cannot be read; nothing else is wrong.
        unit_error: The end of a unit within a rebalance failed in a way that would come again.
    """

    records: dict[TopicPartition, list[ConsumerRecord]] = field(default_factory=dict)
    input_error: KafkaError | None = None
    unit_error: Exception | None = None


class LedgerOwner(Protocol):
    """The worker, as its ledger calls it back: within ``poll``, ``commit`` or ``abort``, never
    beside them."""

    def assigned(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Partitions came. Returns those that must stay paused for now."""

    def collect(self) -> list[Run]:
        """What the unit has to send before it ends: outputs, then changes of state."""

    def offsets(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Up to where the unit goes, asked when all of ``collect`` is acknowledged."""

    def committed(self) -> None:
        """The unit is committed: state reaches its maps."""

    def aborted(self, abort: Abort) -> None:
        """The unit is void, and so is every record that was polled and is not committed: they
        are read again."""

    def released(self, partitions: Sequence[TopicPartition], lost: bool) -> list[TopicPartition]:
        """Partitions are gone. With ``lost``, somebody else may own them already.

        Returns:
            Partitions that stay and whose polled records were dropped: they are to be paused, and
            read again from what is committed.
        """


class Ledger(Protocol):
    """How units end. All coroutines run one at a time."""

    @property
    def last_abort(self) -> Abort | None:
        """Why the latest unit was aborted."""

    async def open(self) -> None:
        """Make clients and become a member of the group."""

    async def poll(self, timeout_ms: int, max_records: int) -> Polled:
        """Take records. Rebalances happen in here: the unit ends, the owner is called back.

        Raises:
            KafkaError: A client cannot be made, or committed offsets cannot be read.
        """

    async def send(self, runs: Sequence[Run]) -> bool:
        """Send outputs of the open unit early.

        Returns:
            False when the unit was aborted instead.

        Raises:
            RecordError: An output can never be delivered; the unit is aborted.
        """

    async def commit(self) -> bool:
        """End the unit: collect, send, wait for acknowledgements, commit with its offsets.

        Returns:
            False when it became an abort.

        Raises:
            RecordError: An output can never be delivered; the unit is aborted.
        """

    async def abort(self) -> None:
        """Make the unit void."""

    def note(self, partition: TopicPartition) -> str | None:
        """The text beside the committed offset of an assigned partition, as far as it is known."""

    def place(self, partition: TopicPartition) -> int | None:
        """The committed offset of an assigned partition, as far as it is known."""

    async def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Take no records of these partitions until ``resume``."""

    async def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Take records of these partitions again."""

    async def read_again(self, partition: TopicPartition) -> None:
        """Drop what was fetched of a partition and not handed out, and fetch it again."""

    async def check_membership(self) -> None:
        """Ask whether this worker still counts as the owner of its partitions.

        Raises:
            KafkaError: It does not, or nobody answers.
        """

    async def position(self, partition: TopicPartition) -> int:
        """Offset of the next record that a poll would give of an assigned partition."""

    async def at_end(self, partition: TopicPartition) -> bool:
        """Whether a partition was read to its end, as far as the last answer tells."""

    def wakeup(self) -> None:
        """Make a waiting poll return; from any thread."""

    async def close(self, timeout_ms: int, *, leave_group: bool) -> None:
        """Make the open unit void and release everything, within the limit."""
