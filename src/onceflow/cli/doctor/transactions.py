"""Checks of transactions: time limits, shared transactional ids, and readers that wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from onceflow.broker_lite.topics import TRANSACTION_TOPIC
from onceflow.cli.connect import POLL_MS
from onceflow.cli.doctor.facts import Facts
from onceflow.cli.doctor.findings import Check, Fault
from onceflow.sdk.model.partitions import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from onceflow.sdk import ProducerState

MAX_TIMEOUT: Final = "transaction.max.timeout.ms"
TAKEN_OVER_SPAN_MS: Final = 600_000
TAKEN_OVER_MAX: Final = 3
"""More takeovers of one transactional id within that span are no rolling restart."""
READ_RECORDS_MAX: Final = 1_000_000
"""Bound of what is read of ``__transaction_state``."""


def timeouts(facts: Facts) -> Iterator[Fault]:
    """Transaction timeouts that the brokers refuse, or that do not fit the poll interval."""
    if facts.misconfigured:
        yield Fault("the application", facts.misconfigured, "correct the setting that is named")
    longest = min(
        (int(found.get(MAX_TIMEOUT) or 900_000) for found in facts.broker_configs.values()),
        default=900_000,
    )
    if facts.app is not None:
        session = facts.app.settings.session_config(facts.app.name, ["check"], "0")
        timeout_ms = session.producer.transaction_timeout_ms
        where = f"application {facts.app.name}"
    else:
        timeout_ms = facts.clients.producer().transaction_timeout_ms
        where = "the settings of producers"
        poll_ms = facts.clients.reader().max_poll_interval_ms
        if "transaction_timeout_ms" in facts.clients.values("producer") and timeout_ms > poll_ms:
            yield Fault(
                where,
                f"transaction_timeout_ms={timeout_ms} with max_poll_interval_ms={poll_ms}",
                "lower transaction_timeout_ms below max_poll_interval_ms",
            )
    if timeout_ms > longest:
        yield Fault(
            where,
            f"transaction_timeout_ms={timeout_ms} with {MAX_TIMEOUT}={longest} of a broker",
            f"lower the one, or raise the other: onceflow configs alter broker ID --set "
            f"{MAX_TIMEOUT}={timeout_ms}",
        )
    for name, found in facts.transactions.items():
        if found.transaction_timeout_ms > longest:
            yield Fault(
                f"transactional id {name}",
                f"its timeout is {found.transaction_timeout_ms} ms, with {MAX_TIMEOUT}={longest}",
                "its next start is refused: lower transaction_timeout_ms of that producer",
            )


def standing_offsets(facts: Facts) -> Iterator[Fault]:
    """Partitions whose last stable offset an old transaction holds."""
    held = [place for place, (stable, end) in facts.ends.items() if stable < end]
    if not held:
        return
    producers = facts.admin.describe_producers(held)
    now_ms = facts.wall_ms()
    for place in held:
        opened = [p for p in producers[place] if p.transaction_start_offset is not None]
        if not opened:
            continue  # It has ended meanwhile.
        first = min(opened, key=lambda each: each.transaction_start_offset or 0)
        name = facts.producer_ids.get(first.producer_id)
        age_ms = now_ms - _since_ms(facts, name, first)
        if age_ms >= facts.wish.open_for_ms:
            yield _standing(facts, place, first, name, age_ms)


def _since_ms(facts: Facts, name: str | None, producer: ProducerState) -> int:
    """When a transaction began, as far as its coordinator knows; else when it last wrote."""
    known = None if name is None else facts.transaction(name)
    if known is not None and known.transaction_start_time_ms is not None:
        return known.transaction_start_time_ms
    return producer.last_timestamp_ms


def _standing(
    facts: Facts, place: TopicPartition, producer: ProducerState, name: str | None, age_ms: int
) -> Fault:
    where = f"{place.topic}:{place.partition}"
    stable, end = facts.ends[place]
    who = f"transactional id {name}" if name else "a producer that no coordinator knows"
    start = producer.transaction_start_offset
    return Fault(
        where,
        f"the last stable offset stands at {stable} and the log ends at {end}: a transaction of "
        f"{who} (producer id {producer.producer_id}) is open for {age_ms // 1000} s",
        f"onceflow txns describe {name}; if its producer is gone, onceflow txns fence {name}"
        if name
        else f"onceflow txns find-hanging --topic {place.topic}, then onceflow txns abort {where} "
        f"--start-offset {start}",
    )


def shared_ids(facts: Facts) -> Iterator[Fault]:
    """Transactional ids that producers take from each other."""
    if TRANSACTION_TOPIC not in facts.existing or not facts.transactions:
        return
    since_ms = facts.wall_ms() - TAKEN_OVER_SPAN_MS
    for name, count in sorted(_takeovers(facts, since_ms).items()):
        if count > TAKEN_OVER_MAX and name in facts.transactions:
            yield Fault(
                f"transactional id {name}",
                f"{count} producers took it over within {TAKEN_OVER_SPAN_MS // 60_000} minutes",
                "give each process its own (a slot= or transactional_id= of its own), or find out "
                "why one process starts again and again",
            )


def _takeovers(facts: Facts, since_ms: int) -> dict[str, int]:
    """How often each transactional id was initialised, by the coordinator's own log.

    Only InitProducerId leaves an id in the state Empty.
    """
    from onceflow.broker_lite.coordinators.transactions import log as transaction_log
    from onceflow.broker_lite.coordinators.transactions.states import TransactionState

    counts = [info.partition for info in facts.topics[TRANSACTION_TOPIC].partitions]
    places = [TopicPartition(TRANSACTION_TOPIC, number) for number in counts]
    begins = facts.admin.list_offsets(dict.fromkeys(places, since_ms))
    ends = facts.admin.list_offsets(dict.fromkeys(places, "latest"))
    begun = {place: found.offset for place, found in begins.items() if found.offset >= 0}
    found: dict[str, int] = {}
    if not begun:
        return found
    reader = facts.connection.reader(
        isolation_level=IsolationLevel.READ_UNCOMMITTED,
        auto_offset_reset="earliest",
        key_deserializer=None,
        value_deserializer=None,
    )
    seen = 0
    with reader:
        reader.assign(list(begun))
        for place, offset in begun.items():
            reader.seek(place, offset)
        left = set(begun)
        while left and seen < READ_RECORDS_MAX:
            for records in reader.poll(timeout_ms=POLL_MS).values():
                seen += len(records)
                for record in records:
                    key, value = record.key, record.value
                    name = transaction_log.decode_key(key) if isinstance(key, bytes) else None
                    if name is None or not isinstance(value, bytes):
                        continue
                    entry = transaction_log.decode_value(name, value)
                    if entry.state is TransactionState.EMPTY:
                        found[name] = found.get(name, 0) + 1
            left = {place for place in left if reader.position(place) < ends[place].offset}
    return found


CHECKS: Final = (
    Check(
        "transaction-timeout",
        "a timeout above the broker's stops the producer at its start; one above the poll interval "
        "lets an expelled member keep readers waiting",
        timeouts,
    ),
    Check(
        "standing-offset",
        "readers of committed records see nothing behind it, without an error",
        standing_offsets,
    ),
    Check(
        "shared-transactional-id",
        "each of two processes with one transactional id fences the other: transactions are "
        "aborted in turns and nothing moves on",
        shared_ids,
    ),
)
