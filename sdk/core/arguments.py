"""Checks of what calls of the clients are given: partitions, offsets, times, names.

Both faces use them, so that a list where one thing was meant, or seconds where milliseconds are
counted, is refused by name before anything is asked. Whether a partition exists or a position is
allowed is decided where it is used.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.partitions import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from onceflow.sdk.model.whole_numbers import is_whole

_PARTITIONS = "must be a list of partitions, as [TopicPartition('topic', 0)]"


def whole_ms(timeout_ms: object, name: str = "timeout_ms") -> int:
    """Return a time as a whole number of milliseconds.

    Args:
        timeout_ms: What the user gave.
        name: What the argument is called.

    Raises:
        ConfigError: It is something else, such as 1.0: other clients count in seconds.
    """
    if not is_whole(timeout_ms):
        remedy = "give milliseconds as a whole number"
        if isinstance(timeout_ms, float):
            remedy += f"; {timeout_ms} seconds are {timeout_ms * 1000:.0f}"
        raise ConfigError(name, timeout_ms, remedy)
    return timeout_ms.__index__()


def wait_ms(timeout_ms: object) -> int:
    """How long to wait, in milliseconds.

    Raises:
        ConfigError: See ``whole_ms``; or it is negative, by which others mean to wait for ever.
    """
    wait = whole_ms(timeout_ms)
    if wait < 0:
        raise ConfigError("timeout_ms", timeout_ms, "must be 0, which does not wait, or more")
    return wait


def record_limit(max_records: object, default: int) -> int:
    """Return how many records a poll may return.

    Args:
        max_records: What the user gave; None takes the default.
        default: The default.

    Raises:
        ConfigError: It is not a whole number, or below 1: no record would ever come.
    """
    if max_records is None:
        return default
    if not is_whole(max_records):
        raise ConfigError("max_records", max_records, "must be a whole number")
    if max_records.__index__() < 1:
        raise ConfigError("max_records", max_records, "must be 1 or more")
    return max_records.__index__()


def limit_of(timeout_ms: object, default_ms: int) -> int:
    """Return the limit of a call in milliseconds.

    Args:
        timeout_ms: What the user gave; None takes the default.
        default_ms: The default.

    Raises:
        ConfigError: See ``whole_ms``.
    """
    return default_ms if timeout_ms is None else whole_ms(timeout_ms)


def check_flag(name: str, given: object) -> None:
    """Refuse what is not a bool: as a condition the string ``"false"`` is true.

    Raises:
        ConfigError: It is neither True nor False.
    """
    if not isinstance(given, bool):
        raise ConfigError(name, given, "must be True or False")


def check_close(timeout_ms: object, commit: object, leave_group: object) -> None:
    """Check the arguments of a consumer's ``close``, before anything is closed.

    Raises:
        ConfigError: The time is not a number of milliseconds, or a flag is not a bool.
    """
    wait_ms(timeout_ms)
    check_flag("commit", commit)
    if leave_group is not None:
        check_flag("leave_group", leave_group)


def check_text(name: str, given: object) -> None:
    """Refuse what is not a string.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(given, str):
        raise ConfigError(name, given, "must be a string")


def check_choice(name: str, given: object, choices: Collection[str]) -> None:
    """Refuse what is not one of the allowed words.

    Raises:
        ConfigError: It is none.
    """
    if not isinstance(given, str) or given not in choices:
        raise ConfigError(name, given, f"must be one of {', '.join(choices)}")


def offset_of(given: object) -> int:
    """Return an offset to seek to.

    Raises:
        ConfigError: It is no whole number.
    """
    if not is_whole(given):
        raise ConfigError("offset", given, "must be a whole number, or an OffsetAndMetadata")
    return given.__index__()


def partition_of(given: object, name: str = "partitions") -> TopicPartition:
    """Return one partition, from a ``TopicPartition`` or a pair.

    Raises:
        ConfigError: It is neither.
    """
    if isinstance(given, tuple) and len(given) == 2:
        topic, number = given
        is_number = is_whole(number)
        if isinstance(topic, str) and is_number:
            return TopicPartition(topic, number.__index__())
    raise ConfigError(name, given, _PARTITIONS)


def partition_list(given: object, name: str = "partitions") -> list[TopicPartition]:
    """Several partitions.

    Args:
        given: What the user gave.
        name: What the argument is called.

    Raises:
        ConfigError: It is one partition, a string, or holds something else than partitions.
    """
    if isinstance(given, TopicPartition | str | bytes) or not isinstance(given, Iterable):
        raise ConfigError(name, given, _PARTITIONS)
    return [partition_of(each, name) for each in given]


def times_by_partition(given: object) -> dict[TopicPartition, int]:
    """Times to look up, by partition.

    Raises:
        ConfigError: It is not a mapping, or a time is negative or not a whole number.
    """
    if not isinstance(given, Mapping):
        raise ConfigError("timestamps_ms", given, "must be a dictionary of times by TopicPartition")
    times = {
        partition_of(partition, "timestamps_ms"): whole_ms(time, "timestamps_ms")
        for partition, time in given.items()
    }
    for partition, time in times.items():
        if time < 0:
            raise ConfigError(
                "timestamps_ms", time, f"must be milliseconds since 1970 for {partition}"
            )
    return times


def offsets_by_partition(given: object) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to commit, by partition.

    Raises:
        ConfigError: It is not a mapping of partitions to offsets.
    """
    remedy = "must be a dictionary of offsets by TopicPartition, as {TopicPartition('topic', 0): 5}"
    if not isinstance(given, Mapping):
        raise ConfigError("offsets", given, remedy)
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for partition, offset in given.items():
        if isinstance(offset, OffsetAndMetadata):
            _check_offset(offset)
            found[partition_of(partition, "offsets")] = offset
        elif is_whole(offset):
            found[partition_of(partition, "offsets")] = OffsetAndMetadata(offset.__index__())
        else:
            raise ConfigError("offsets", given, remedy)
    for partition, entry in found.items():
        if entry.offset < 0:
            raise ConfigError(
                "offsets", entry.offset, f"must be the next offset of {partition}, 0 or more"
            )
    return found


def _check_offset(given: OffsetAndMetadata) -> None:
    """Refuse fields of the wrong kind."""
    for name in ("offset", "leader_epoch"):
        value = getattr(given, name)
        if not is_whole(value):
            raise ConfigError(f"offsets: {name}", value, "must be a whole number")
    if not isinstance(given.metadata, str):
        raise ConfigError("offsets: metadata", given.metadata, "must be a string")


def check_group_metadata(given: object, name: str = "group_metadata") -> None:
    """Refuse a group's name where the consumer's membership is needed.

    Args:
        given: What the user gave.
        name: What the argument is called.

    Raises:
        ConfigError: It is something else than group metadata.
    """
    if not isinstance(given, ConsumerGroupMetadata):
        raise ConfigError(
            name,
            given,
            "must be consumer.group_metadata(), taken when the records were polled: from the "
            "group's name alone the coordinator cannot see that this member was replaced",
        )


def topic_list(given: object) -> list[str]:
    """Return topics to subscribe to; a string is one topic.

    Raises:
        ConfigError: It holds something else than strings, or what other clients take for a pattern.
    """
    if isinstance(given, str):
        given = [given]
    if isinstance(given, Mapping | bytes) or not isinstance(given, Iterable):
        raise ConfigError("topics", given, "must be a list of topic names")
    names = list(given)
    for name in names:
        if not isinstance(name, str):
            remedy = "topic names must be strings"
            if isinstance(name, Mapping):
                name, remedy = "***", "pass settings as keyword arguments, or as config={...}"
            elif isinstance(name, list | tuple | set):
                remedy = "pass topic names one by one, as Consumer('a', 'b'), or subscribe([...])"
            raise ConfigError("topics", name, remedy)
        if name.startswith("^"):
            raise ConfigError("topics", name, f"for a pattern, write subscribe(pattern={name!r})")
    return names


def compile_pattern(given: str | re.Pattern[str] | None) -> re.Pattern[str] | None:
    """Return the compiled pattern of a subscription.

    Raises:
        ConfigError: It is not a regular expression, or one for bytes.
    """
    if given is None or (isinstance(given, re.Pattern) and isinstance(given.pattern, str)):
        return given
    if not isinstance(given, str):
        raise ConfigError("pattern", given, "must be a regular expression as a string")
    try:
        return re.compile(given)
    except re.error as error:
        raise ConfigError("pattern", given, f"is not a regular expression: {error}") from None


def refuse_positional(given: tuple[object, ...]) -> None:
    """Refuse settings passed by position.

    Raises:
        ConfigError: There are some.
    """
    if given:
        raise ConfigError("config", "***", "pass settings as keyword arguments, or as config={...}")
