"""Ready aggregates such as ``Count``, and the fold that an aggregate node runs.

A ready aggregate folds the results of the decorated function. Without one the function itself is
the fold: it makes the next accumulator of a value and an accumulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from onceflow.processors.declare.signatures import Argument
from onceflow.processors.errors import DeclarationError

COLLECT_MAX: Final = 1_000
"""Most values that ``Collect`` keeps, by default."""

OfType = Callable[..., object]
"""The type of an accumulator, by the type of the values."""


def _same(given: object) -> object:
    return given


class Ready:
    """An aggregate that is ready to use; ``Ready(first, add, merge)`` makes your own.

    Args:
        first: Makes an accumulator of one value.
        add: Makes the next accumulator of an accumulator and a value.
        merge: Makes one accumulator of two, for sessions.
        result: Makes the result of an accumulator; by default the accumulator is the result.
        kept: Returns the accumulator's type for the type of the values, by default that type.
        gives: Type of the results, if it is not the accumulator's.

    Raises:
        DeclarationError: One of them is not a function.
    """

    def __init__(
        self,
        first: Callable[..., object],
        add: Callable[..., object],
        merge: Callable[..., object],
        *,
        result: Callable[..., object] = _same,
        kept: OfType = _same,
        gives: object = None,
    ) -> None:
        functions = {"first": first, "add": add, "merge": merge, "result": result, "kept": kept}
        for name, function in functions.items():
            if not callable(function):
                raise DeclarationError(f"{name}={function!r}: must be a function")
        self._first: Callable[..., object] = first
        self._add: Callable[..., object] = add
        self._merge: Callable[..., object] = merge
        self._result: Callable[..., object] = result
        self._kept: OfType = kept
        self._gives: object = gives


class Count(Ready):
    """The number of records for which the function does not return None."""

    def __init__(self) -> None:
        super().__init__(
            lambda value: 1,
            lambda count, value: count + 1,
            lambda left, right: left + right,
            kept=lambda given: int,
        )


class Sum(Ready):
    """The sum of the function's results."""

    def __init__(self) -> None:
        super().__init__(
            _same, lambda total, value: total + value, lambda left, right: left + right
        )


class Mean(Ready):
    """The mean of the numbers that the function returns, as ``float``."""

    def __init__(self) -> None:
        super().__init__(
            lambda value: (value, 1),
            lambda kept, value: (kept[0] + value, kept[1] + 1),
            lambda left, right: (left[0] + right[0], left[1] + right[1]),
            result=lambda kept: kept[0] / kept[1],
            kept=lambda given: tuple[given, int],  # type: ignore[valid-type]
            gives=float,
        )


class Reduce(Ready):
    """Combines the values, two at a time, by a function.

    Args:
        combine: Makes one value of an earlier and a later one, of the same type.

    Raises:
        DeclarationError: It is not a function.
    """

    def __init__(self, combine: Callable[..., object]) -> None:
        if not callable(combine):
            raise DeclarationError(f"combine={combine!r}: must be a function of two values")
        super().__init__(_same, combine, combine)


class Min(Reduce):
    """The smallest of the function's results."""

    def __init__(self) -> None:
        super().__init__(min)


class Max(Reduce):
    """The largest of the function's results."""

    def __init__(self) -> None:
        super().__init__(max)


class Collect(Ready):
    """A list of the function's results, in the order of arrival.

    Args:
        values_max: Most values of one window and key; a further record fails.

    Raises:
        DeclarationError: The limit is below 1.
    """

    def __init__(self, values_max: int = COLLECT_MAX) -> None:
        if values_max < 1:
            raise DeclarationError(f"values_max={values_max!r}: must be at least 1")

        def merge(left: list[object], right: list[object]) -> list[object]:
            both = [*left, *right]
            if len(both) > values_max:
                raise ValueError(
                    f"more than {values_max} values in one window of a key; raise values_max of "
                    "Collect"
                )
            return both

        super().__init__(
            lambda value: [value],
            lambda kept, value: merge(kept, [value]),
            merge,
            kept=lambda given: list[given],  # type: ignore[valid-type]
        )


@dataclass(frozen=True, slots=True)
class Fold:
    """How the values of a window become an accumulator.

    Attributes:
        function: The decorated function.
        arguments: What it takes.
        ready: Folds the function's results; None if the function itself is the fold.
        initial: First accumulator of each window.
        merge: Makes one accumulator of two, for sessions; None without one.
    """

    function: Callable[..., object]
    arguments: tuple[Argument, ...]
    ready: Ready | None
    initial: object
    merge: Callable[..., object] | None

    def result(self, accumulator: object) -> object:
        """Return what an accumulator gives."""
        return accumulator if self.ready is None else self.ready._result(accumulator)
