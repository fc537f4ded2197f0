"""Checks of what calls of the admin clients are given: names, topics, settings, numbers.

What would otherwise fail where a request is written, in words of the wire, is refused by the name
of the argument, with what to write. Partitions and times are checked in ``arguments``.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import SupportsIndex, TypeVar

from onceflow.sdk.core.arguments import partition_of
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model import NewTopic, TopicPartition

T = TypeVar("T", bound=Hashable)


def name_list(given: object) -> list[str]:
    """Names, each once. A text is one name: its letters are never what is meant.

    Raises:
        ConfigError: It holds something else than texts.
    """
    if isinstance(given, str):
        return [given]
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise ConfigError("names", given, "give a list of names")
    found: dict[str, None] = {}
    for name in given:
        if not isinstance(name, str):
            raise ConfigError("names", name, "give each name as a text")
        found[name] = None
    return list(found)


def new_topics(given: object) -> dict[str, NewTopic]:
    """Topics to be created, by name; a name alone takes the broker's defaults.

    Raises:
        ConfigError: It holds something else, or a topic's numbers or settings cannot be sent.
    """
    if isinstance(given, str | NewTopic):
        given = [given]
    remedy = "give a list of NewTopic(name, partitions=3), or of names"
    if isinstance(given, Mapping | bytes) or not isinstance(given, Iterable):
        raise ConfigError("topics", given, remedy)
    found: dict[str, NewTopic] = {}
    for topic in given:
        wanted = NewTopic(topic) if isinstance(topic, str) else topic
        if not isinstance(wanted, NewTopic) or not isinstance(wanted.name, str):
            raise ConfigError("topics", topic, remedy)
        for field in ("partitions", "replication_factor"):
            check_number(f"{field} of {wanted.name}", getattr(wanted, field))
        if wanted.configs is not None:
            check_settings(wanted.name, wanted.configs)
        found[wanted.name] = wanted
    return found


def check_settings(what: str, settings: object) -> None:
    """Refuse settings that are no texts: Kafka has no other kind of value.

    Args:
        what: The topic or other resource that they are for.
        settings: What the user gave.

    Raises:
        ConfigError: A name is no text, or a value neither a text nor None.
    """
    if not isinstance(settings, Mapping):
        remedy = "give a dictionary of texts, as {'retention.ms': '3600000'}"
        raise ConfigError(f"configs of {what}", settings, remedy)
    for name, value in settings.items():
        if not isinstance(name, str):
            raise ConfigError(f"configs of {what}", name, "give each setting's name as a text")
        if value is None or isinstance(value, str):
            continue
        plain = str(value).lower() if isinstance(value, bool) else str(value)
        remedy = f"give {plain!r}" if isinstance(value, int | float) else "give a text"
        raise ConfigError(name, value, f"{remedy}: Kafka takes settings as texts")


def check_number(name: str, given: object) -> None:
    """Refuse what is no whole number.

    Raises:
        ConfigError: It is none.
    """
    if isinstance(given, bool) or not isinstance(given, SupportsIndex):
        raise ConfigError(name, given, "give a whole number")


def totals_by_topic(given: object) -> dict[str, int]:
    """Totals of partitions, by topic.

    Raises:
        ConfigError: It is no mapping of names to numbers.
    """
    if not isinstance(given, Mapping):
        raise ConfigError("totals", given, "give a dictionary of new totals, as {'orders': 6}")
    for name, total in given.items():
        if not isinstance(name, str):
            raise ConfigError("totals", name, "give topic names as texts")
        check_number(f"totals of {name}", total)
    return dict(given)


def numbers_by_partition(name: str, given: object) -> dict[TopicPartition, int]:
    """Numbers, by partition.

    Raises:
        ConfigError: It is no mapping of partitions to numbers.
    """
    if not isinstance(given, Mapping):
        remedy = "give a dictionary by TopicPartition, as {TopicPartition('topic', 0): 5}"
        raise ConfigError(name, given, remedy)
    found: dict[TopicPartition, int] = {}
    for partition, number in given.items():
        check_number(f"{name} of {partition}", number)
        found[partition_of(partition, name)] = number
    return found


def instances(name: str, given: object, kind: type[T]) -> list[T]:
    """Objects of one class, each once.

    Raises:
        ConfigError: It holds something else.
    """
    remedy = f"give a list of {kind.__name__}"
    if isinstance(given, kind | str | bytes) or not isinstance(given, Iterable):
        raise ConfigError(name, given, remedy)
    found: dict[T, None] = {}
    for entry in given:
        if not isinstance(entry, kind):
            raise ConfigError(name, entry, remedy)
        found[entry] = None
    return list(found)
