"""Differences that are meant, each with its line in docs/kafka-differences.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Plain = Any
Step = dict[str, Plain]


class Known(NamedTuple):
    """One difference that is meant.

    Attributes:
        key: The request; None for any.
        line: Words of its line in docs/kafka-differences.md.
        holds: Whether these answers (Kafka's, ours) to this step are that difference.
    """

    key: int | None
    line: str
    holds: Callable[[Step, Plain, Plain], bool]


PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE = 15, 16, 42, 47
CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE = 68, 69
GROUP_ID_NOT_FOUND = 69
UNKNOWN_TOPIC_ID = 100
MAX_TIMESTAMP = -3
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
CORRUPT_MESSAGE, INVALID_RECORD = 2, 87
UNKNOWN_SERVER_ERROR, UNKNOWN_TOPIC_OR_PARTITION = -1, 3


def _kafka_failed(step: Step, theirs: Plain, ours: Plain) -> bool:
    return UNKNOWN_SERVER_ERROR in codes(theirs) - codes(ours)


def _made_at_once(step: Step, theirs: Plain, ours: Plain) -> bool:
    allowed = step["version"] < 4 or step["body"]["allow_auto_topic_creation"]
    return allowed and codes(theirs) - codes(ours) == {UNKNOWN_TOPIC_OR_PARTITION}


def _one_batch_spoils_all(step: Step, theirs: Plain, ours: Plain) -> bool:
    batches = [
        partition["records"]["batch"]
        for topic in step["body"]["topic_data"]
        for partition in topic["partition_data"]
    ]
    malformed = any(len(some) > 1 or "fields" in some[0] for some in batches)
    return (
        malformed
        and codes(theirs) in ({CORRUPT_MESSAGE}, {INVALID_RECORD})
        and 0 not in codes(ours)
    )


def _after_refused(step: Step, theirs: Plain, ours: Plain) -> bool:
    return _differing(theirs, ours) == {(OUT_OF_ORDER_SEQUENCE_NUMBER, 0)}


def _differing(theirs: Plain, ours: Plain) -> set[tuple[int, int]]:
    """Codes of the partitions of two Produce answers that differ, Kafka's first."""
    both = ([p["error_code"] for p in _partitions(answer)] for answer in (theirs, ours))
    return {(one, other) for one, other in zip(*both, strict=False) if one != other}


def _partitions(answer: Plain) -> list[Plain]:
    topics = answer["responses"] if isinstance(answer, dict) else ()
    return [partition for topic in topics for partition in topic["partition_responses"]]


def _never_answered(step: Step, theirs: Plain, ours: Plain) -> bool:
    return theirs == "no answer" and UNKNOWN_TOPIC_ID in codes(ours)


def _nothing_in_it(step: Step, theirs: Plain, ours: Plain) -> bool:
    if isinstance(theirs, str) or isinstance(ours, str):
        return False
    both = (theirs.get("groups"), ours.get("groups"))
    if None in both:
        return codes(theirs) | codes(ours) == {0, GROUP_ID_NOT_FOUND}
    return not any(group.get("members") for groups in both for group in groups) and any(
        group.get("group_state", "") in ("", "Dead", "Empty") for groups in both for group in groups
    )


def _gone_record(step: Step, theirs: Plain, ours: Plain) -> bool:
    asked = [p for topic in step["body"]["topics"] for p in topic["partitions"]]
    return any(partition["timestamp"] == MAX_TIMESTAMP for partition in asked)


def _deleted_in_a_session(step: Step, theirs: Plain, ours: Plain) -> bool:
    return "binds" in step and codes(ours) - codes(theirs) == {UNKNOWN_TOPIC_ID}


def _shared_out_otherwise(step: Step, theirs: Plain, ours: Plain) -> bool:
    """Everything is equal but the assignments, and those are equally large, but for one."""
    counts = zip(_shares(theirs), _shares(ours), strict=False)
    return _without_shares(theirs) == _without_shares(ours) and all(
        abs(one - other) <= 1 for one, other in counts
    )


def _shares(answer: Plain) -> list[int]:
    if isinstance(answer, dict):
        if "topic_partitions" in answer:
            return [sum(len(topic["partitions"]) for topic in answer["topic_partitions"])]
        answer = list(answer.values())
    return [n for part in answer for n in _shares(part)] if isinstance(answer, list) else []


def _without_shares(answer: Plain) -> Plain:
    if isinstance(answer, dict):
        return {k: _without_shares(v) for k, v in answer.items() if k != "topic_partitions"}
    return list(map(_without_shares, answer)) if isinstance(answer, list) else answer


KNOWN: list[Known] = [
    Known(
        CONSUMER_GROUP_HEARTBEAT,
        "the topic with which the assignor `uniform` begins",
        _shared_out_otherwise,
    ),
    Known(
        CONSUMER_GROUP_DESCRIBE,
        "the topic with which the assignor `uniform` begins",
        _shared_out_otherwise,
    ),
    Known(FETCH, "Fetch in a session that names a topic by the zero id", _never_answered),
    Known(FETCH, "a deleted topic in a fetch session", _deleted_in_a_session),
    Known(
        PRODUCE,
        "a transactional batch is the first of its producer on a partition and is refused",
        _after_refused,
    ),
    Known(DESCRIBE_GROUPS, "an empty group that a refused request", _nothing_in_it),
    Known(LIST_GROUPS, "an empty group that a refused request", _nothing_in_it),
    Known(OFFSET_DELETE, "an empty group that a refused request", _nothing_in_it),
    Known(DELETE_GROUPS, "an empty group that a refused request", _nothing_in_it),
    Known(LIST_OFFSETS, "ListOffsets of the largest timestamp", _gone_record),
    Known(PRODUCE, "Produce with one malformed batch among others", _one_batch_spoils_all),
    Known(None, "UNKNOWN_SERVER_ERROR", _kafka_failed),
    Known(METADATA, "Metadata of an unknown topic that may be created", _made_at_once),
]


def codes(answer: Plain) -> set[int]:
    """All error codes anywhere in an answer."""
    if isinstance(answer, dict):
        own = {v for k, v in answer.items() if k.endswith("error_code") and isinstance(v, int)}
        return own.union(*map(codes, answer.values()))
    return set().union(*map(codes, answer)) if isinstance(answer, list) and answer else set()


def is_known(step: Step, theirs: Plain, ours: Plain) -> bool:
    """Whether a difference is one of those that are meant."""
    return any(
        known.key in (None, step.get("key")) and known.holds(step, theirs, ours) for known in KNOWN
    )
