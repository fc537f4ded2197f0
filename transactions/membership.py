"""Decides under which membership a session may commit polled records.

The broker checks that a member is valid, but not that the records were polled under its present
membership; this module does. The session checks that the partitions are still assigned.
"""

from __future__ import annotations

from onceflow.sdk.errors import CommitFailedError
from onceflow.sdk.model.partitions import ConsumerGroupMetadata


def present_membership(
    polled: ConsumerGroupMetadata | None, now: ConsumerGroupMetadata | None, *, epochs_rise: bool
) -> ConsumerGroupMetadata:
    """Return the membership under which polled records may be committed.

    An empty member id would pass the broker's check as a commit from outside of the group, so it is
    refused before anything is sent. Under the consumer protocol (KIP-848) a heartbeat between polls
    may raise the epoch, but only for a member that need not give up anything. The member still owns
    its polled records, and the broker refuses the earlier epoch, so the later one is right. An
    expelled member has no membership until its next poll. Under the classic protocol a later
    generation means another assignment.

    Args:
        polled: The membership at the poll; None if it was not a member.
        now: The present membership.
        epochs_rise: Whether the group speaks the consumer protocol.

    Raises:
        CommitFailedError: The work was done under a membership that is over.
    """
    if polled is None or not polled.member_id or polled.generation_id < 0:
        raise CommitFailedError("the consumer is not a member of its group now; poll() joins it")
    if now == polled:
        return polled
    if (
        epochs_rise
        and now is not None
        and now.member_id == polled.member_id
        and now.generation_id > polled.generation_id
    ):
        return now
    raise CommitFailedError("the membership changed since the records were polled")
