"""The coordinator rule (trap 51): hashes as Java computes them.

Method: values of Java's ``String.hashCode`` that follow from its definition, some worked by hand.
"""

from __future__ import annotations

import pytest

from onceflow.broker_lite.coordinators.coordinator_hash import (
    coordinator_partition,
    java_string_hash,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("ab", 97 * 31 + 98),
        ("hello", 99162322),
        ("hello world", 1794106052),
        # The best-known string that hashes to the smallest int.
        ("polygenelubricants", -(2**31)),
        # U+1F600 is the pair D83D DE00.
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
        ("\u00e9", 0xE9),
    ],
)
def test_hash_is_javas(text: str, value: int) -> None:
    """Trap 51."""
    assert java_string_hash(text) == value


def test_smallest_int_goes_to_partition_zero() -> None:
    assert coordinator_partition("polygenelubricants", 50) == 0


def test_negative_hash_is_taken_as_its_absolute_value() -> None:
    text = "test-consumer-group"
    value = java_string_hash(text)
    assert coordinator_partition(text, 50) == abs(value) % 50
