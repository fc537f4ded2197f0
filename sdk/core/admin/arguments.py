"""Checks of what calls of the admin clients are given: names, topics, settings, numbers.

A wrong value is refused here, by the argument's name and with what it must be; later it would fail
with the wire's words. ``core.arguments`` checks partitions and times.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from onceflow.sdk.core.arguments import partition_of
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.admin import ConfigResource, ResourceType
from onceflow.sdk.model.partitions import IsolationLevel, NewTopic, TopicPartition
from onceflow.sdk.model.whole_numbers import is_whole

T = TypeVar("T", bound=Hashable)


def name_list(name: str, given: object) -> list[str]:
    """Return names, each once. A string is one name, not a list of letters.

    Args:
        name: What the argument is called.
        given: What the user gave.

    Raises:
        ConfigError: It holds something else than strings.
    """
    if isinstance(given, str):
        return [given]
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise ConfigError(name, given, "must be a list of names")
    found: dict[str, None] = {}
    for each in given:
        if not isinstance(each, str):
            raise ConfigError(name, each, "each name must be a string")
        found[each] = None
    return list(found)


def member_ids(name: str, given: object) -> list[str]:
    """Return ids of group members, each once; none for None.

    Args:
        name: What the argument is called.
        given: What the user gave.

    Raises:
        ConfigError: It holds something else than strings, or an empty one.
    """
    found = [] if given is None else name_list(name, given)
    if "" in found:
        raise ConfigError(name, "", "an id must not be empty")
    return found


def number_list(name: str, given: object) -> list[int]:
    """Return whole numbers, each once.

    Args:
        name: What the argument is called.
        given: What the user gave.

    Raises:
        ConfigError: It is one number, or holds something else.
    """
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigError(name, given, "must be a list of whole numbers, such as [1]")
    found: dict[int, None] = {}
    for each in given:
        found[whole_number(name, each)] = None
    return list(found)


def new_topics(given: object) -> dict[str, NewTopic]:
    """Return topics to be created, by name; a name alone takes the broker's defaults.

    Raises:
        ConfigError: It holds something else, or a topic's numbers or settings cannot be sent.
    """
    if isinstance(given, str | NewTopic):
        given = [given]
    remedy = "must be a list of NewTopic(name, partitions=3) or of names"
    if isinstance(given, Mapping | bytes) or not isinstance(given, Iterable):
        raise ConfigError("topics", given, remedy)
    found: dict[str, NewTopic] = {}
    for topic in given:
        wanted = NewTopic(topic) if isinstance(topic, str) else topic
        if not isinstance(wanted, NewTopic) or not isinstance(wanted.name, str):
            raise ConfigError("topics", topic, remedy)
        for field in ("partitions", "replication_factor"):
            whole_number(f"topics: {field} of {wanted.name}", getattr(wanted, field))
        if wanted.configs is not None:
            check_settings("topics", wanted.name, wanted.configs, or_none=False)
        found[wanted.name] = wanted
    return found


def check_settings(argument: str, what: str, settings: object, *, or_none: bool = True) -> None:
    """Refuse settings that are not strings: Kafka has no other kind of value.

    Args:
        argument: What the argument is called.
        what: The topic or other resource that they are for.
        settings: What the user gave.
        or_none: Whether a value may be None, which returns it to the default.

    Raises:
        ConfigError: A name is not a string, or a value is neither a string nor, where allowed,
            None.
    """
    if not isinstance(settings, Mapping):
        remedy = "must be a dictionary of strings, such as {'retention.ms': '3600000'}"
        raise ConfigError(f"{argument}: configs of {what}", settings, remedy)
    for name, value in settings.items():
        if not isinstance(name, str):
            remedy = "each setting's name must be a string"
            raise ConfigError(f"{argument}: configs of {what}", name, remedy)
        if isinstance(value, str) or (or_none and value is None):
            continue
        plain = str(value).lower() if isinstance(value, bool) else str(value)
        remedy = f"write {plain!r}" if isinstance(value, int | float) else "must be a string"
        field = f"{argument}: {what}: {name}"
        raise ConfigError(field, value, f"{remedy}: Kafka's settings are strings")


def whole_number(name: str, given: object) -> int:
    """A whole number.

    Args:
        name: What it is called.
        given: What the user gave.

    Raises:
        ConfigError: It is none.
    """
    if not is_whole(given):
        raise ConfigError(name, given, "must be a whole number")
    return given.__index__()


def numbers_by_name(name: str, given: object, example: str) -> dict[str, int]:
    """Return numbers by name.

    Args:
        name: What the argument is called.
        given: What the user gave.
        example: How it is written.

    Raises:
        ConfigError: It is not a mapping of names to numbers.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(name, given, f"must be a dictionary, such as {example}")
    found: dict[str, int] = {}
    for each, number in given.items():
        if not isinstance(each, str):
            raise ConfigError(name, each, f"names must be strings, as in {example}")
        found[each] = whole_number(f"{name} of {each}", number)
    return found


def numbers_by_partition(name: str, given: object) -> dict[TopicPartition, int]:
    """Return numbers by partition.

    Raises:
        ConfigError: It is not a mapping of partitions to numbers.
    """
    if not isinstance(given, Mapping):
        remedy = "give a dictionary by TopicPartition, as {TopicPartition('topic', 0): 5}"
        raise ConfigError(name, given, remedy)
    found: dict[TopicPartition, int] = {}
    for partition, number in given.items():
        where = partition_of(partition, name)
        found[where] = whole_number(f"{name} of {where}", number)
    return found


def folders_by_partition(given: object) -> dict[TopicPartition, str]:
    """Return paths of folders by partition.

    Raises:
        ConfigError: It is not a mapping of partitions to strings.
    """
    remedy = "give a dictionary by TopicPartition, as {TopicPartition('topic', 0): '/data/1'}"
    if not isinstance(given, Mapping):
        raise ConfigError("folders", given, remedy)
    found: dict[TopicPartition, str] = {}
    for partition, path in given.items():
        where = partition_of(partition, "folders")
        if not isinstance(path, str):
            raise ConfigError(f"folders of {where}", path, "the folder's path must be a string")
        found[where] = path
    return found


def replicas_by_partition(given: object) -> dict[TopicPartition, list[int] | None]:
    """Return node ids by partition; None cancels.

    Raises:
        ConfigError: It is not a mapping of partitions to lists of numbers.
    """
    remedy = "give a dictionary by TopicPartition, as {TopicPartition('topic', 0): [1, 2]}"
    if not isinstance(given, Mapping):
        raise ConfigError("replicas", given, remedy)
    found: dict[TopicPartition, list[int] | None] = {}
    for partition, nodes in given.items():
        where = partition_of(partition, "replicas")
        name = f"replicas of {where}"
        if nodes is not None and (
            isinstance(nodes, str | bytes) or not isinstance(nodes, Sequence)
        ):
            raise ConfigError(name, nodes, "must be a list of node ids, or None to cancel")
        found[where] = None if nodes is None else [whole_number(name, node) for node in nodes]
    return found


def times_or_words(given: object, words: Mapping[str, int]) -> dict[TopicPartition, int]:
    """Return times by partition; some words stand for special times.

    Args:
        given: What the user gave.
        words: The words, and their codes in a request.

    Raises:
        ConfigError: It is not a mapping, or holds another word or something else.
    """
    if not isinstance(given, Mapping):
        raise ConfigError("targets", given, "must be a dictionary of times by TopicPartition")
    times: dict[TopicPartition, object] = {}
    for partition, time in given.items():
        where = partition_of(partition, "targets")
        if isinstance(time, str) and time not in words:
            remedy = f"must be one of {', '.join(words)}, or milliseconds since 1970"
            raise ConfigError(f"targets of {where}", time, remedy)
        times[where] = words[time] if isinstance(time, str) else time
    return numbers_by_partition("targets", times)


def isolation_of(given: IsolationLevel | str) -> IsolationLevel:
    """Return an isolation level by its name in any case, or as it is.

    Args:
        given: What the user gave.

    Raises:
        ConfigError: It is no isolation level.
    """
    try:
        if isinstance(given, str):
            return IsolationLevel[given.upper()]
        return IsolationLevel(whole_number("isolation_level", given))
    except (KeyError, ValueError):
        raise ConfigError(
            "isolation_level", given, 'must be "read_committed" or "read_uncommitted"'
        ) from None


def resource(name: str, given: object) -> ConfigResource:
    """Return the resource of settings: a topic by its name, or a ConfigResource.

    Args:
        name: What the argument is called.
        given: What the user gave.

    Raises:
        ConfigError: It is neither, or its type is unknown.
    """
    if isinstance(given, str):
        return ConfigResource(ResourceType.TOPIC, given)
    if not isinstance(given, ConfigResource):
        raise ConfigError(name, given, "must be topic names, or ConfigResource(type, name)")
    if not isinstance(given.type, ResourceType):
        known = ", ".join(f"ResourceType.{kind.name}" for kind in ResourceType)
        raise ConfigError(f"{name}: ConfigResource.type", given.type, f"must be one of {known}")
    if not isinstance(given.name, str):
        raise ConfigError(
            f"{name}: ConfigResource.name", given.name, "must be a string, such as '1'"
        )
    return given


def instances(
    name: str,
    given: object,
    kind: type[T],
    check: Callable[[T], None] = lambda entry: None,
    *,
    is_secret: bool = False,
) -> list[T]:
    """Objects of one class, each once.

    Args:
        name: What the argument is called.
        given: What the user gave.
        kind: The class.
        check: Refuses an object by what is in it.
        is_secret: Whether what is wrong must not be shown.

    Raises:
        ConfigError: It holds something else.
    """
    remedy = f"give a list of {kind.__name__}"
    if isinstance(given, kind | str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ConfigError(name, "***" if is_secret else given, remedy)
    found: dict[T, None] = {}
    for entry in given:
        if not isinstance(entry, kind):
            raise ConfigError(name, "***" if is_secret else entry, remedy)
        check(entry)  # First of all: what is wrong may have no hash.
        found[entry] = None
    return list(found)
