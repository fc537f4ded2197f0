"""Names of calls elsewhere: what Kafka's Java client, librdkafka and the Python clients call what
is called otherwise here, or is not there, and what to write instead.

The tables are data, by kind of client; a client that is asked for a name that it lacks looks here
before it answers. Names of settings are in ``config_names``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Never

_CONNECTED = "a client that was started has reached a broker; leave it out"
_NEXT = "use next(consumer), with asyncio await anext(consumer), or iterate over the consumer"
_ENDS = "use end_offsets([...]), or lag(partition)"
_TOPICS = "use Admin's list_topics() and describe_topics([...])"
_SENDS = "batches are sent by themselves; leave it out"
_MANY = "use send_many(topic, values, keys)"
_STORE = "use commit({partition: offset}) with enable_auto_commit=False"
_ASSIGN = "use assign([...]) with all partitions"

PRODUCER_CALLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "produce": "use send(topic, value, key=...)",
        "produce_batch": _MANY,
        "create_batch": _MANY,
        "send_batch": _MANY,
        "poll": _SENDS,
        "purge": "use close(timeout_ms=0), or abort_transaction() within a transaction",
        "list_topics": _TOPICS,
        "partitions_for_topic": "use partitions_for(topic)",
        "bootstrap_connected": _CONNECTED,
        "client_instance_id": "figures are not sent to brokers (KIP-714); leave it out",
        "set_sasl_credentials": "use SecurityConfig(sasl_oauth_token_provider=...)",
    }
)
"""Calls of other producers, and what to write here instead."""

CONSUMER_CALLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "consume": "use poll(timeout_ms=, max_records=)",
        "getone": _NEXT,
        "getmany": "use poll(timeout_ms=, max_records=)",
        "commit_sync": "use commit()",
        "commit_async": "await commit() in a task of its own",
        "store_offsets": _STORE,
        "incremental_assign": _ASSIGN,
        "incremental_unassign": _ASSIGN,
        "seek_to_committed": "use committed([partition]), and seek(partition, offset)",
        "get_watermark_offsets": "use beginning_offsets([...]) and end_offsets([...])",
        "highwater": _ENDS,
        "highwaters": _ENDS,
        "last_stable_offset": _ENDS,
        "last_poll_timestamp": "use metrics()",
        "list_topics": "use topics(), and partitions_for_topic(topic)",
        "partitions_for": "use partitions_for_topic(topic)",
        "memberid": "use group_metadata().member_id",
        "consumer_group_metadata": "use group_metadata()",
        "enforce_rebalance": "the group rebalances by itself; leave it out",
        "bootstrap_connected": _CONNECTED,
        "client_instance_id": "figures are not sent to brokers (KIP-714); leave it out",
        "set_sasl_credentials": "use SecurityConfig(sasl_oauth_token_provider=...)",
    }
)
"""Calls of other consumers, and what to write here instead."""

ADMIN_CALLS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "create_topic": "use create_topics([NewTopic(...)])",
        "list_consumer_groups": "use list_groups()",
        "describe_consumer_groups": "use describe_groups([...])",
        "delete_consumer_groups": "use delete_groups([...])",
        "list_consumer_group_offsets": "use list_group_offsets(group_id)",
        "alter_consumer_group_offsets": "use alter_group_offsets(group_id, offsets)",
        "delete_consumer_group_offsets": "use delete_group_offsets(group_id, partitions)",
        "reset_consumer_group_offsets": "use reset_group_offsets(group_id, to=...)",
        "remove_members_from_consumer_group": "members cannot be removed from here; a static "
        "member is given up when its session.timeout.ms is over",
        "incremental_alter_configs": "use alter_configs(...): it changes single settings",
        "perform_leader_election": "use elect_leaders(...)",
        "describe_replica_log_dirs": "use describe_log_dirs(...)",
        "describe_acl": "use describe_acls(...)",
        "poll": "a call returns when it is done; leave it out",
        "bootstrap_connected": _CONNECTED,
    }
)
"""Calls of other admin clients, and what to write here instead."""


class _ForeignCall:
    """In the place of a call that only others have: asking for it says what to write here.

    A class with ``__getattr__`` could do that too, and every other access would be slower for it.
    """

    __slots__ = ("_name", "_remedy")

    def __init__(self, name: str, remedy: str) -> None:
        self._name = name
        self._remedy = remedy

    def __get__(self, instance: object, owner: type | None = None) -> Never:
        kind = (owner or type(instance)).__name__
        raise AttributeError(f"{kind} has no {self._name!r}; {self._remedy}")


class _NamesForeignCalls:
    """Base of clients: a call that only others have is refused with what to write here."""

    __slots__ = ()

    def __dir__(self) -> list[str]:
        from inspect import getattr_static  # Late: nothing else here needs it.

        kind = type(self)
        return [
            name
            for name in super().__dir__()
            if not isinstance(getattr_static(kind, name, None), _ForeignCall)
        ]


class ForeignProducerCalls(_NamesForeignCalls):
    """Base of producers."""

    __slots__ = ()


class ForeignConsumerCalls(_NamesForeignCalls):
    """Base of consumers."""

    __slots__ = ()


class ForeignAdminCalls(_NamesForeignCalls):
    """Base of admin clients."""

    __slots__ = ()


for _client, _calls in (
    (ForeignProducerCalls, PRODUCER_CALLS),
    (ForeignConsumerCalls, CONSUMER_CALLS),
    (ForeignAdminCalls, ADMIN_CALLS),
):
    for _name, _remedy in _calls.items():
        setattr(_client, _name, _ForeignCall(_name, _remedy))
