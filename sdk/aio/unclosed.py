"""Asyncio producers that were started and never closed: what they took and did not send is told.

An event loop that ends takes their tasks along, and nobody is left to raise an error to. It is told
in one line when nothing refers to the producer any more, or at the end of the program.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping
from typing import TypeAlias

from onceflow.sdk.core.batch import ProducerBatch

log: logging.Logger = logging.getLogger("onceflow.producer")

Watch: TypeAlias = "weakref.finalize[[Mapping[ProducerBatch, None], int], object]"


def watch(owner: object, incomplete: Mapping[ProducerBatch, None]) -> Watch:
    """Tell of a producer that nobody closes; whoever does detaches what this gives.

    Args:
        owner: What lives as long as the producer can send.
        incomplete: Its batches without an outcome; must not refer to ``owner``.
    """
    return weakref.finalize(owner, _tell, incomplete, os.getpid())


def _tell(incomplete: Mapping[ProducerBatch, None], process_id: int) -> None:
    if os.getpid() != process_id:
        return  # A forked child: its parent tells of it.
    count = sum(batch.count for batch in incomplete if not batch.done)
    records = f"{count} record{'s' if count > 1 else ''} of it had no acknowledgement"
    log.warning(
        "an AsyncProducer was not closed%s: await its close() or use async with",
        f", and {records}" if count else "",
    )
