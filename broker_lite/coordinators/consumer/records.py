"""Records of consumer groups in ``__consumer_offsets``, in Apache Kafka's layout (KIP-848).

It only encodes and decodes; ``group`` applies the changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from onceflow.broker_lite.coordinators.classic.group import GroupProtocol
from onceflow.broker_lite.coordinators.consumer.group import (
    EpochChange,
    GroupChange,
    OldMetadataChange,
    RegexChange,
    StandingChange,
    SubscriptionChange,
    TargetChange,
    TargetEpochChange,
)
from onceflow.broker_lite.coordinators.consumer.member import (
    ClassicSide,
    ConsumerMember,
    Owned,
    assignment_of,
)
from onceflow.broker_lite.coordinators.consumer.states import MemberState
from onceflow.broker_lite.coordinators.state_log import KeyValue
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol.consumer_group_records import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupKey,
    ConsumerGroupMemberKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from onceflow.sdk.protocol.internal_topics import VERSION_SIZE, encode_with_version, read_version
from onceflow.sdk.protocol.schema import Message

EPOCH_KIND = 3
OLD_METADATA_KIND = 4
SUBSCRIPTION_KIND = 5
TARGET_EPOCH_KIND = 6
TARGET_KIND = 7
STANDING_KIND = 8
REGEX_KIND = 16

GROUP_KINDS = (EPOCH_KIND, OLD_METADATA_KIND, TARGET_EPOCH_KIND)
NAMED_KINDS = (SUBSCRIPTION_KIND, TARGET_KIND, STANDING_KIND, REGEX_KIND)

VALUE_VERSION = 0

_Standing = ConsumerGroupCurrentMemberAssignmentValue
_Target = ConsumerGroupTargetAssignmentMemberValue
_Subscription = ConsumerGroupMemberMetadataValue


class ConsumerKey(NamedTuple):
    """Key of one of these records.

    Attributes:
        kind: Kind of the record.
        group_id: Group that it belongs to.
        name: Member id or pattern, empty for the kinds that have none.
    """

    kind: int
    group_id: str
    name: str = ""


def decode_consumer_key(data: bytes, kind: int) -> ConsumerKey:
    """Read the key of a record of one of :data:`GROUP_KINDS` and :data:`NAMED_KINDS`.

    Raises:
        RemoteProtocolError: The bytes are not such a key.
    """
    if kind in GROUP_KINDS:
        key, _ = ConsumerGroupKey.decode(data, kind, VERSION_SIZE)
        return ConsumerKey(kind, key.group_id)
    named, _ = ConsumerGroupMemberKey.decode(data, kind, VERSION_SIZE)
    return ConsumerKey(kind, named.group_id, named.name)


def encode_change(group_id: str, change: GroupChange) -> KeyValue:
    """Return the record of a change."""
    if isinstance(change, EpochChange):
        value: Message | None = None
        if change.epoch is not None:
            value = ConsumerGroupMetadataValue(
                epoch=change.epoch, metadata_hash=change.metadata_hash
            )
        return _record(EPOCH_KIND, group_id, None, value)
    if isinstance(change, OldMetadataChange):
        return _record(OLD_METADATA_KIND, group_id, None, None)
    if isinstance(change, TargetEpochChange):
        value = None
        if change.epoch is not None:
            value = ConsumerGroupTargetAssignmentMetadataValue(
                assignment_epoch=change.epoch, assignment_timestamp=change.timestamp_ms
            )
        return _record(TARGET_EPOCH_KIND, group_id, None, value)
    if isinstance(change, TargetChange):
        value = None
        if change.target is not None:
            value = _Target(
                topic_partitions=[
                    _Target.TopicPartition(topic_id=topic_id, partitions=sorted(partitions))
                    for topic_id, partitions in sorted(change.target.items())
                ]
            )
        return _record(TARGET_KIND, group_id, change.member_id, value)
    if isinstance(change, StandingChange):
        value = None if change.member is None else _standing_value(change.member)
        return _record(STANDING_KIND, group_id, change.member_id, value)
    if isinstance(change, SubscriptionChange):
        value = None if change.member is None else _subscription_value(change.member)
        return _record(SUBSCRIPTION_KIND, group_id, change.member_id, value)
    value = None
    if change.topics is not None:
        value = ConsumerGroupRegularExpressionValue(
            topics=sorted(change.topics), version=change.version, timestamp=change.timestamp_ms
        )
    return _record(REGEX_KIND, group_id, change.regex, value)


def _record(kind: int, group_id: str, name: str | None, value: Message | None) -> KeyValue:
    key: Message = (
        ConsumerGroupKey(group_id=group_id)
        if name is None
        else ConsumerGroupMemberKey(group_id=group_id, name=name)
    )
    return KeyValue(
        encode_with_version(key, kind),
        None if value is None else encode_with_version(value, VALUE_VERSION),
    )


def _subscription_value(member: ConsumerMember) -> _Subscription:
    classic = None
    if member.classic is not None:
        classic = _Subscription.ClassicMemberMetadata(
            session_timeout_ms=member.classic.session_timeout_ms,
            supported_protocols=[
                _Subscription.ClassicProtocol(name=protocol.name, metadata=protocol.metadata)
                for protocol in member.classic.protocols
            ],
        )
    return _Subscription(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.server_assignor,
        classic_member_metadata=classic,
    )


def _standing_value(member: ConsumerMember) -> _Standing:
    return _Standing(
        member_epoch=member.member_epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_stored(member.assigned),
        partitions_pending_revocation=_stored(member.revoking),
    )


def _stored(owned: Owned) -> list[_Standing.TopicPartitions]:
    return [
        _Standing.TopicPartitions(
            topic_id=topic_id,
            partitions=sorted(partitions),
            assignment_epochs=[partitions[partition] for partition in sorted(partitions)],
        )
        for topic_id, partitions in sorted(owned.items())
    ]


def decode_change(key: ConsumerKey, data: bytes | None) -> GroupChange:
    """Return the change in a record; a record without a value is a removal.

    Raises:
        RemoteProtocolError: The bytes are not a value of a known version.
    """
    if data is not None and (version := read_version(data)) != VALUE_VERSION:
        raise RemoteProtocolError(f"a consumer group record has the unknown version {version}")
    kind, _, name = key
    if kind == OLD_METADATA_KIND:
        return OldMetadataChange()
    if kind == EPOCH_KIND:
        if data is None:
            return EpochChange(None)
        epoch, _ = ConsumerGroupMetadataValue.decode(data, VALUE_VERSION, VERSION_SIZE)
        return EpochChange(epoch.epoch, epoch.metadata_hash)
    if kind == TARGET_EPOCH_KIND:
        if data is None:
            return TargetEpochChange(None)
        at, _ = ConsumerGroupTargetAssignmentMetadataValue.decode(data, VALUE_VERSION, VERSION_SIZE)
        return TargetEpochChange(at.assignment_epoch, at.assignment_timestamp)
    if kind == TARGET_KIND:
        if data is None:
            return TargetChange(name, None)
        target, _ = _Target.decode(data, VALUE_VERSION, VERSION_SIZE)
        return TargetChange(
            name, assignment_of((t.topic_id, t.partitions) for t in target.topic_partitions)
        )
    if kind == STANDING_KIND:
        return StandingChange(name, None if data is None else _decode_standing(name, data))
    if kind == SUBSCRIPTION_KIND:
        return SubscriptionChange(name, None if data is None else _decode_subscription(name, data))
    if data is None:
        return RegexChange(name, None)
    regex, _ = ConsumerGroupRegularExpressionValue.decode(data, VALUE_VERSION, VERSION_SIZE)
    return RegexChange(name, frozenset(regex.topics), regex.version, regex.timestamp)


def _decode_standing(member_id: str, data: bytes) -> ConsumerMember:
    value, _ = _Standing.decode(data, VALUE_VERSION, VERSION_SIZE)
    try:
        state = MemberState(value.state)
    except ValueError:
        raise RemoteProtocolError(f"member state {value.state} is unknown") from None
    epoch = value.member_epoch
    return ConsumerMember(
        member_id,
        member_epoch=epoch,
        previous_epoch=value.previous_member_epoch,
        state=state,
        assigned=_owned(value.assigned_partitions, epoch),
        revoking=_owned(value.partitions_pending_revocation, epoch),
    )


def _owned(stored: Iterable[_Standing.TopicPartitions], member_epoch: int) -> Owned:
    found: dict[UUID, dict[int, int]] = {}
    for topic in stored:
        # Records of older brokers have no epochs. The member's own is the latest possible one.
        epochs = topic.assignment_epochs or [member_epoch] * len(topic.partitions)
        if len(epochs) != len(topic.partitions):
            raise RemoteProtocolError("the numbers of partitions and of their epochs differ")
        if topic.partitions:
            found[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return found


def _decode_subscription(member_id: str, data: bytes) -> ConsumerMember:
    value, _ = _Subscription.decode(data, VALUE_VERSION, VERSION_SIZE)
    classic = None
    if value.classic_member_metadata:
        stored = value.classic_member_metadata
        classic = ClassicSide(
            stored.session_timeout_ms,
            tuple(GroupProtocol(p.name, bytes(p.metadata)) for p in stored.supported_protocols),
        )
    return ConsumerMember(
        member_id,
        value.instance_id,
        value.rack_id,
        value.client_id,
        value.client_host,
        tuple(value.subscribed_topic_names),
        value.subscribed_topic_regex or "",
        value.rebalance_timeout_ms,
        value.server_assignor,
        classic,
    )
