"""Tables as users declare them: the latest value of each key of a topic."""

from __future__ import annotations

from typing import Generic, TypeVar

from onceflow.processors.errors import DeclarationError

K = TypeVar("K")
V = TypeVar("V")


class Table(Generic[K, V]):
    """The latest value of each key of a topic, as ``App.table`` declares it.

    A function of the same application looks it up by the key of its record, with a parameter
    annotated ``Annotated[Customer | None, customers]``. A record without a value deletes its key.

    Attributes:
        name: Its name in the application.
        topic: The topic.
        value_type: Type of the values.
        key_type: Type of the keys.
    """

    __slots__ = ("key_type", "name", "topic", "value_type")

    def __init__(self, name: str, topic: str, value_type: type[V], key_type: type[K]) -> None:
        self.name: str = name
        self.topic: str = topic
        self.value_type: type[V] = value_type
        self.key_type: type[K] = key_type

    def __call__(self, *arguments: object) -> None:
        """Refuse to be called; tables stand where functions may stand.

        Args:
            *arguments: None is taken.

        Raises:
            DeclarationError: Always.
        """
        raise DeclarationError(f"table {self.name} is no function; annotate a parameter with it")

    def __repr__(self) -> str:
        return f"Table({self.name!r}, topic={self.topic!r})"
