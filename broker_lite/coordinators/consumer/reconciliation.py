"""Moves a member from its partitions to its target assignment, a step per heartbeat (KIP-848).

First the member gives up partitions that are not in its target; only then it reaches the next epoch
and gets free partitions. So no partition has two owners at any moment. These are pure functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from uuid import UUID

from onceflow.broker_lite.coordinators.consumer.member import (
    NOTHING,
    Assignment,
    ConsumerMember,
    merged,
)
from onceflow.broker_lite.coordinators.consumer.states import MemberState

IsOwned = Callable[[UUID, int], bool]
"""``is_owned(topic_id, partition)``: whether a member owns it, or still has to give it up."""


def reconcile(
    member: ConsumerMember,
    target_epoch: int,
    target: Assignment,
    owned: Assignment | None,
    is_owned: IsOwned,
    is_subscribed: Callable[[UUID], bool],
) -> ConsumerMember:
    """Return the member after its next step towards the target.

    Args:
        member: The member before.
        target_epoch: Epoch of the target.
        target: Its target assignment.
        owned: The partitions that its heartbeat names as owned; None if it names none.
        is_owned: Whether a member of the group owns a partition.
        is_subscribed: Whether the topic is in its present subscription. Partitions of other topics
            are taken from it at once, before the next assignment.

    Returns:
        The same value if there is nothing to do.
    """
    wanted = {topic_id: parts for topic_id, parts in target.items() if is_subscribed(topic_id)}
    dropped = any(not is_subscribed(topic_id) for topic_id in member.assigned)
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _owns_any(owned, member.revoking):
            return _drop_unsubscribed(member, owned, is_subscribed) if dropped else member
        # It has given up what it had to, so it reaches the next epoch and may continue from there.
        return _next(member, member.member_epoch + 1, target_epoch, wanted, owned, is_owned)
    if member.state is MemberState.STABLE and member.member_epoch == target_epoch:
        return _drop_unsubscribed(member, owned, is_subscribed) if dropped else member
    return _next(member, member.member_epoch, target_epoch, wanted, owned, is_owned)


def _owns_any(owned: Assignment | None, partitions: Mapping[UUID, Mapping[int, int]]) -> bool:
    """Whether it still owns one of these; True if its heartbeat does not say."""
    if owned is None:
        return True
    return any(
        not owned[topic_id].isdisjoint(wanted)
        for topic_id, wanted in partitions.items()
        if topic_id in owned
    )


def _drop_unsubscribed(
    member: ConsumerMember, owned: Assignment | None, is_subscribed: Callable[[UUID], bool]
) -> ConsumerMember:
    kept = {
        topic_id: parts for topic_id, parts in member.assigned.items() if is_subscribed(topic_id)
    }
    given_up = {t: parts for t, parts in member.assigned.items() if not is_subscribed(t)}
    revoking = merged(member.revoking, given_up)
    if not _owns_any(owned, revoking):
        revoking = {}
    return dataclasses.replace(
        member,
        previous_epoch=member.member_epoch,
        state=MemberState.UNREVOKED_PARTITIONS if revoking else member.state,
        assigned=kept,
        revoking=revoking,
    )


def _next(
    member: ConsumerMember,
    epoch: int,
    target_epoch: int,
    target: Assignment,
    owned: Assignment | None,
    is_owned: IsOwned,
) -> ConsumerMember:
    kept: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    for topic_id, partitions in member.assigned.items():
        stays = target.get(topic_id, frozenset())
        for partition, since in partitions.items():
            place = kept if partition in stays else revoking
            place.setdefault(topic_id, {})[partition] = since
    if revoking and _owns_any(owned, revoking):
        return dataclasses.replace(
            member,
            previous_epoch=member.member_epoch,
            member_epoch=epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            revoking=revoking,
        )
    waits = False
    for topic_id, given in target.items():
        for partition in sorted(given):
            if partition in kept.get(topic_id, ()):
                continue
            if is_owned(topic_id, partition):
                waits = True
            else:
                kept.setdefault(topic_id, {})[partition] = target_epoch
    return dataclasses.replace(
        member,
        previous_epoch=member.member_epoch,
        member_epoch=target_epoch,
        state=MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE,
        assigned=kept,
        revoking=NOTHING,
    )
