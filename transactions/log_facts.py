"""What a session's log records say of a unit, as fields for structured logs."""

from __future__ import annotations

from collections.abc import Mapping

from onceflow.sdk.model.partitions import (
    ConsumerGroupMetadata,
    OffsetAndMetadata,
    ProducerIdentity,
    TopicPartition,
)
from onceflow.transactions.progress import UncommittedWork


def unit_facts(
    name: str,
    identity: ProducerIdentity | None,
    snapshot: ConsumerGroupMetadata | None,
    polled: UncommittedWork,
    ends: Mapping[TopicPartition, OffsetAndMetadata | int],
) -> dict[str, object]:
    """Return who ended a unit, and its offsets, the end excluded.

    Args:
        name: The transactional id.
        identity: Producer id and epoch, if known.
        snapshot: The membership, if known.
        polled: The uncommitted records.
        ends: Next offset by partition.
    """
    found: dict[str, object] = {"transactional_id": name}
    if identity is not None:
        found |= {"producer_id": identity.producer_id, "producer_epoch": identity.producer_epoch}
    if snapshot is not None:
        found |= {
            "group": snapshot.group_id,
            "member": snapshot.member_id,
            "generation": snapshot.generation_id,
        }
    firsts = {tp: progress.first for tp, progress in polled.items()}
    found["offsets"] = {
        str(tp): [firsts.get(tp), end if isinstance(end, int) else end.offset]
        for tp, end in ends.items()
    }
    return found
