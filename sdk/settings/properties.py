"""Reads text in the format of Java's ``Properties``: ``name=value`` lines, escapes, comments."""

from __future__ import annotations

import re
from collections.abc import Iterator


def parse_properties(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of a file in the form of Java's ``Properties``.

    Args:
        text: Its lines: ``name=value``, ``name: value`` or ``name value``; comments begin with
            ``#`` or ``!``; a backslash at the end continues with the next line.

    Raises:
        ValueError: An escape is cut off.
    """
    logical = ""
    for raw in [*re.split(r"\r\n|\r|\n", text), ""]:
        line = raw.lstrip() if logical else raw.strip(" \t\f")
        if not logical and line[:1] in ("#", "!"):
            continue
        logical += line
        backslashes = len(logical) - len(logical.rstrip("\\"))
        if backslashes % 2:
            logical = logical[:-1]
            continue
        if logical:
            match = re.match(r"((?:\\.|[^\\=:\s])*)\s*[=:]?\s*(.*)", logical, re.S)
            assert match is not None
            yield _unescape(match[1]), _unescape(match[2])
        logical = ""


def _unescape(text: str) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        if match[2] == "u":
            raise ValueError(f"{match[0]} is no escape; four hexadecimal digits follow a \\u")
        return {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(match[2], match[2])

    return re.sub(r"\\(?:u([0-9a-fA-F]{4})|(.))", replace, text, flags=re.S)
