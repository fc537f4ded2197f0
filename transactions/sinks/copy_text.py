"""Encodes rows for ``COPY ... FROM STDIN`` in the text format, column by column.

A column of one of Python's plain types takes a few calls in C for all its rows. Of every other type
only psycopg knows how PostgreSQL reads it, so ``lines`` leaves such rows to psycopg. The bytes are
those that psycopg writes, which ``tests/properties/test_copy_text.py`` compares.

https://www.postgresql.org/docs/current/sql-copy.html#id-1.9.3.55.9.2
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, cast

_Texts: TypeAlias = Sequence[str]

_ESCAPED = "\b\t\n\v\f\r\\"
_ESCAPES = str.maketrans(dict(zip(_ESCAPED, [f"\\{c}" for c in "btnvfr\\"], strict=True)))
_NULL = "\\N"
_BLOCK_ROWS = 1_000
"""Rows of one block: the server stores a block while the next one is encoded."""


def lines(columns: Sequence[Sequence[object]]) -> Iterator[bytes] | None:
    """Return the rows as blocks of lines; None if psycopg must encode them.

    Args:
        columns: Values of each column; at least one column, all of the same length.
    """
    texts: list[_Texts] = []
    for values in columns:
        found = _texts(values)
        if found is None:
            return None
        texts.append(found)
    return _blocks(texts, len(columns[0]))


def _blocks(texts: Sequence[_Texts], count: int) -> Iterator[bytes]:
    for start in range(0, count, _BLOCK_ROWS):
        end = start + _BLOCK_ROWS
        rows = zip(*[column[start:end] for column in texts], strict=True)
        yield ("\n".join(map("\t".join, rows)) + "\n").encode()


def _texts(values: Sequence[object]) -> _Texts | None:
    kinds = set(map(type, values))
    nulls = type(None) in kinds
    kinds.discard(type(None))
    if len(kinds) > 1:
        return None
    encode = _ENCODERS.get(kinds.pop()) if kinds else _nothing
    if encode is None:
        return None
    if not nulls:
        return encode(values)
    present = encode([value for value in values if value is not None])
    if present is None:
        return None
    following = iter(present)
    return [_NULL if value is None else next(following) for value in values]


def _nothing(values: Iterable[object]) -> _Texts:
    return []


def _numbers(values: Iterable[object]) -> _Texts:
    return list(map(repr, values))


def _booleans(values: Iterable[object]) -> _Texts:
    return ["t" if value else "f" for value in values]


def _strings(values: Iterable[object]) -> _Texts | None:
    texts = cast("_Texts", values)
    whole = "".join(texts)
    if "\0" in whole:
        return None  # PostgreSQL stores none; psycopg raises the error.
    if any(character in whole for character in _ESCAPED):
        return [text.translate(_ESCAPES) for text in texts]
    return texts


def _bytes(values: Iterable[object]) -> _Texts:
    return [f"\\\\x{value.hex()}" for value in cast("Iterable[bytes]", values)]


_ENCODERS: Mapping[type, Callable[[Sequence[object]], _Texts | None]] = {
    int: _numbers,
    float: _numbers,
    bool: _booleans,
    str: _strings,
    bytes: _bytes,
}
PLAIN: tuple[type, ...] = tuple(_ENCODERS)
"""The types that are encoded here; a value of a subclass is not."""
