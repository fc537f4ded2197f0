"""Type parameters of what consumers hand out: the types of keys and values.

They are ``bytes | None`` where nothing else is said, as from a consumer without deserializers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Checkers know defaults of type parameters (PEP 696); Python does from 3.13 on.
    from typing_extensions import TypeVar

    KeyT_co = TypeVar("KeyT_co", covariant=True, default=bytes | None)
    ValueT_co = TypeVar("ValueT_co", covariant=True, default=bytes | None)
    DataT_co = TypeVar("DataT_co", covariant=True, default=object)
else:
    from typing import TypeVar

    KeyT_co = TypeVar("KeyT_co", covariant=True)
    ValueT_co = TypeVar("ValueT_co", covariant=True)
    DataT_co = TypeVar("DataT_co", covariant=True)
