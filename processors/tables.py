"""Tables as users declare them: the latest value of each key of a topic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from onceflow.processors.errors import DeclarationError
from onceflow.processors.values import Format

K = TypeVar("K")
V = TypeVar("V")


class Table(Generic[K, V]):
    """The latest value of each key of a topic, as ``App.table`` declares it.

    A function of the same application gets the row of its record's key by a parameter annotated
    ``Annotated[Customer | None, customers]``. A record without a value deletes its key.

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
        """Refuse to be called; a table is callable only to be accepted where functions are.

        Args:
            *arguments: Ignored.

        Raises:
            DeclarationError: Always.
        """
        raise DeclarationError(f"table {self.name} cannot be called; annotate a parameter with it")

    def __repr__(self) -> str:
        return f"Table({self.name!r}, topic={self.topic!r})"


class GlobalTable(Table[K, V]):
    """A table of which every worker holds all rows (``App.global_table``).

    ``Annotated[Country | None, countries]`` gives the row of the record's key, and
    ``Annotated[Country | None, countries.by(lambda order: order.country)]`` that of another key.

    Attributes:
        format: Layout of structured values and keys.
    """

    __slots__ = ("format",)

    def __init__(
        self, name: str, topic: str, value_type: type[V], key_type: type[K], format: Format
    ) -> None:
        super().__init__(name, topic, value_type, key_type)
        self.format: Format = format

    def by(self, key: Callable[..., K | None]) -> GlobalLookup:
        """Look up the row of a key that a function of the record's value returns.

        Args:
            key: Returns the key for a value; None finds no row.

        Returns:
            The lookup, to annotate a parameter with.

        Raises:
            DeclarationError: ``key`` is not a function.
        """
        if not callable(key):
            raise DeclarationError(
                f"table {self.name}: key={key!r}: must be a function of the value, such as "
                "lambda order: order.country"
            )
        return GlobalLookup(self, key)


AnyGlobalTable: TypeAlias = GlobalTable[Any, Any]


@dataclass(frozen=True, slots=True)
class GlobalLookup:
    """A lookup in a global table by a key that a function of the record's value returns.

    Attributes:
        table: The table.
        key: Returns the key for a value.
    """

    table: AnyGlobalTable
    key: Callable[..., object]
