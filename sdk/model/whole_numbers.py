"""Checks that an argument is a whole number: an int or the like, such as numpy's, but no bool.

The caller checks the number's bounds.
"""

from __future__ import annotations

from typing import SupportsIndex, TypeGuard


def is_whole(given: object) -> TypeGuard[SupportsIndex]:
    """Whether an argument is a whole number (``isinstance(..., SupportsIndex)`` takes 4 us).

    Args:
        given: What the user gave.
    """
    if type(given) is int:
        return True
    return hasattr(type(given), "__index__") and not isinstance(given, bool)
