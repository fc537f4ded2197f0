"""Whether leaders began new epochs as they should (KIP-101), by what lies in the files.

It knows which partition got which leader epoch when, and the epochs of all batches at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sim_history import History


def check(history: History, epochs: Mapping[str, Iterable[tuple[int, int]]]) -> list[str]:
    """Every violation, in words.

    Args:
        history: What happened; ``leader`` events tell of moves.
        epochs: First offset and leader epoch of every batch, by partition.
    """
    problems: list[str] = []
    began: dict[str, list[tuple[int, int]]] = {}
    for _, event in history.of("leader"):
        partition, leader, epoch, end = event.details
        moves = began.setdefault(str(partition), [])
        if leader != -1 and moves and epoch <= moves[-1][0]:
            problems.append(f"leader epoch: {partition} moved, and its epoch stays {epoch}")
        moves.append((epoch, end))  # type: ignore[arg-type]
    for partition, batches in epochs.items():
        before = (-1, -1)
        for offset, epoch in batches:
            if epoch < before[1]:
                problems.append(f"leader epoch: {partition}@{offset} has {epoch} after {before}")
            before = (offset, epoch)
            least = max((new for new, end in began.get(partition, ()) if end <= offset), default=-1)
            if epoch < least:
                problems.append(
                    f"leader epoch: {partition}@{offset} has {epoch}, and {least} had begun"
                )
    return problems
