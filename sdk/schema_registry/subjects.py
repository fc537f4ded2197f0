"""Subject name strategies: Confluent's three, or the user's function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from onceflow.sdk.errors import ConfigError, SerializationError

SubjectNameFunction = Callable[[str, str, str | None], str]
"""``function(topic, field, record_name) -> subject``; `field` is "key" or "value"."""
SubjectNameStrategy = Literal["topic", "record", "topic-record"] | SubjectNameFunction


def topic_subject(topic: str, field: str, record_name: str | None) -> str:
    """Return ``<topic>-key`` or ``<topic>-value``: a topic has one type (TopicNameStrategy)."""
    return f"{topic}-{field}"


def record_subject(topic: str, field: str, record_name: str | None) -> str:
    """Return the type's full name, the same in every topic (RecordNameStrategy).

    Raises:
        SerializationError: The schema has no name.
    """
    if not record_name:
        raise SerializationError(
            f"the schema of the {field} has no name, but subject_name_strategy needs one; name the "
            'record (in JSON Schema by "title"), or use the strategy "topic"'
        )
    return record_name


def topic_record_subject(topic: str, field: str, record_name: str | None) -> str:
    """Return ``<topic>-<full name>``: a topic has several types (TopicRecordNameStrategy).

    Raises:
        SerializationError: The schema has no name.
    """
    return f"{topic}-{record_subject(topic, field, record_name)}"


def subject_function(strategy: SubjectNameStrategy) -> SubjectNameFunction:
    """Return the function of a strategy.

    Raises:
        ConfigError: The strategy is unknown.
    """
    if callable(strategy):
        return strategy
    named: dict[str, SubjectNameFunction] = {
        "topic": topic_subject,
        "record": record_subject,
        "topic-record": topic_record_subject,
    }
    found = named.get(strategy)
    if found is None:
        raise ConfigError(
            "subject_name_strategy", strategy, f"must be one of {', '.join(named)}, or a function"
        )
    return found
