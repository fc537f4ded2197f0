"""Warnings about clients that were started and never closed: producers with unsent records, and
consumers whose group waits for them.

When an event loop or a program ends, so do the tasks of a client, and no call is left to raise an
error. So one line is logged when the client is garbage-collected, or at the end of the program.
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Mapping
from typing import TypeAlias

from onceflow.sdk.core.group.membership import Membership
from onceflow.sdk.core.produce.batch import ProducerBatch

log: logging.Logger = logging.getLogger("onceflow.producer")

consumer_log: logging.Logger = logging.getLogger("onceflow.sdk.consumer")

Watch: TypeAlias = "weakref.finalize[[Mapping[ProducerBatch, None], int], object]"
MemberWatch: TypeAlias = "weakref.finalize[[Membership, str, int], object]"


def watch(owner: object, incomplete: Mapping[ProducerBatch, None]) -> Watch:
    """Warn when a producer is garbage-collected without a close; ``close`` detaches the watch.

    Args:
        owner: An object that lives as long as the producer can send.
        incomplete: Its batches without an outcome; must not refer to ``owner``.
    """
    return weakref.finalize(owner, _tell, incomplete, os.getpid())


def _tell(incomplete: Mapping[ProducerBatch, None], process_id: int) -> None:
    if os.getpid() != process_id:
        return  # A forked child: the parent logs it.
    count = sum(batch.count for batch in incomplete if not batch.done)
    records = f"{count} record{'s' if count > 1 else ''} of it had no acknowledgement"
    log.warning(
        "an AsyncProducer was not closed%s: await its close() or use async with",
        f", and {records}" if count else "",
    )


def watch_member(owner: object, member: Membership, group_id: str) -> MemberWatch:
    """Warn when a consumer in a group is garbage-collected without a close; ``close`` detaches the
    watch.

    Args:
        owner: An object that lives as long as the consumer is a member.
        member: The member; must not refer to ``owner``.
        group_id: Its group.
    """
    return weakref.finalize(owner, _tell_group, member, group_id, os.getpid())


def _tell_group(member: Membership, group_id: str, process_id: int) -> None:
    if os.getpid() != process_id or not member.is_member:
        return
    consumer_log.warning(
        "a consumer of group %s was not closed, so its partitions have no reader until its session "
        "times out: call close() or use with",
        group_id,
    )
