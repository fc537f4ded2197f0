"""Goal: the demo's comparison fails whenever a record was lost, repeated, made up or counted wrong.

Method: what the topics hold is made up, right first and then wrong in one way at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]
DAYS = {("AA", "2013-01-01"): (3, 17)}


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The demo's module; examples are no part of the installed package."""
    monkeypatch.syspath_prepend(str(ROOT))
    from examples.flights import verify

    return verify


def compared(
    verify: ModuleType,
    departed: Sequence[int] = (0, 1, 2),
    dead: Sequence[int] = (3,),
    days: dict[tuple[str, str], tuple[int, int]] | None = None,
    count_errors: int = 0,
) -> object:
    """The verdict on these topics, where flights 0 to 2 departed and flight 3 was cancelled."""

    def figures(ids: Sequence[int], letters: Sequence[int]) -> object:
        made = verify.Figures()
        for row_id in ids:
            made.add_departure(row_id)
        for row_id in letters:
            made.add_dead(row_id)
        return made

    expected, found = figures((0, 1, 2), (3,)), figures(departed, dead)
    expected.daily = dict(DAYS)  # type: ignore[attr-defined]
    found.daily = dict(DAYS if days is None else days)  # type: ignore[attr-defined]
    return verify.compare(expected, verify.Published(found, count_errors, {}))


def test_exactly_once_is_told_as_such(verify: ModuleType) -> None:
    assert compared(verify).ok  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"departed": (0, 1)}, "lost"),
        ({"dead": ()}, "lost"),
        ({"departed": (0, 1, 1, 2)}, "duplicated"),
        ({"dead": (3, 3)}, "duplicated"),
        ({"departed": (0, 1, 2, 9)}, "unexpected"),
        ({"count_errors": 1}, "count_errors"),
        ({"days": {}}, "wrong_days"),
        ({"days": {("AA", "2013-01-01"): (4, 17)}}, "wrong_days"),
        ({"days": {**DAYS, ("UA", "2013-01-01"): (1, 0)}}, "wrong_days"),
    ],
)
def test_each_kind_of_fault_is_counted_and_fails(
    verify: ModuleType, wrong: dict[str, object], field: str
) -> None:
    verdict = compared(verify, **wrong)  # type: ignore[arg-type]
    assert getattr(verdict, field) == 1
    assert not verdict.ok  # type: ignore[attr-defined]


def test_a_failed_demo_ends_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The logs before it may be long, and hold what looks like markup."""
    monkeypatch.syspath_prepend(str(ROOT))
    from examples.flights import __main__ as demo
    from examples.flights.children import ChildFailedError

    def fails(*_: object) -> bool:
        raise ChildFailedError("the worker [0] ended 6 times:\n--- worker\n[/red] trouble\n" * 3)

    monkeypatch.setattr(demo, "run", fails)
    monkeypatch.setattr("sys.argv", ["demo"])
    with pytest.raises(SystemExit) as ended:
        demo.main()
    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 1
    assert lines[-1].strip() == "failed: the worker [0] ended 6 times:"
    assert "[/red] trouble" in lines
