"""Whether leaders began new epochs as they should (KIP-101), by what lies in the files.

It knows which partition got which leader epoch when, and the epochs of all batches at the end. An
epoch that the disk had no room for, and that no batch carries, may be forgotten by a death.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sim_history import History


def check(history: History, epochs: Mapping[str, Iterable[tuple[int, int]]]) -> list[str]:
    """Every violation, in words.

    Args:
        history: What happened; ``leader`` events tell of moves.
        epochs: First offset and leader epoch of every batch, by partition.
    """
    problems: list[str] = []
    began: dict[str, list[tuple[int, int]]] = {}
    latest: dict[object, int] = {}
    for _, event in history.of("leader"):
        details: Any = event.details
        partition, leader, epoch, end, topic_id, kept = details
        # A topic that was made again begins again.
        before = latest.get((partition, topic_id), -1)
        if leader != -1 and epoch <= before:
            problems.append(f"leader epoch: {partition} moved, and its epoch stays {epoch}")
        if not kept:
            continue
        latest[partition, topic_id] = epoch
        began.setdefault(partition, []).append((epoch, end))
    for partition, batches in epochs.items():
        last = -1
        for offset, epoch in batches:
            if epoch < last:
                problems.append(f"leader epoch: {partition}@{offset} has {epoch} after {last}")
            last = epoch
            least = max((new for new, end in began.get(partition, ()) if end <= offset), default=-1)
            if epoch < least:
                problems.append(
                    f"leader epoch: {partition}@{offset} has {epoch}, and {least} had begun"
                )
    return problems
