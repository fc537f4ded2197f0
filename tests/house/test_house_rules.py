"""Goal: the house style holds everywhere, and its limits only tighten.

Method: the rules of ``house_rules`` are run over every source file, then over small texts that
break them, so that no rule can pass because it sees nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import house_rules
import pytest
import suite_order

import onceflow

RATCHET = Path(__file__).with_name("ratchet.json")
FILES = list(house_rules.source_files())


def test_there_are_sources_to_look_at() -> None:
    areas = {house_rules.name_of(path).split("/")[0] for path in FILES}
    assert areas == {*house_rules.AREAS, "src"}


@pytest.mark.parametrize("measure", [house_rules.long_functions, house_rules.long_modules])
def test_sizes_stay_within_the_ratchet(measure: Callable[[str, str], dict[str, int]]) -> None:
    ratchet = json.loads(RATCHET.read_text())[measure.__name__]
    found: dict[str, int] = {}
    for path in FILES:
        found |= measure(house_rules.name_of(path), path.read_text())
    assert house_rules.over_ratchet(found, ratchet) == []


@pytest.mark.parametrize(
    "rule",
    [
        house_rules.banned_identifiers,
        house_rules.unfinished_comments,
        house_rules.missing_docstrings,
        house_rules.lenient_json,
    ],
)
def test_rule_holds_in_every_source_file(rule: Callable[[str, str], list[str]]) -> None:
    findings = [f for path in FILES for f in rule(house_rules.name_of(path), path.read_text())]
    assert findings == []


def test_each_constant_has_one_home() -> None:
    texts = {house_rules.name_of(path): path.read_text() for path in FILES}
    assert house_rules.second_spellings(texts) == []
    texts["pyproject.toml"] = (house_rules.ROOT / "pyproject.toml").read_text()
    version = f'"{onceflow.__version__}"'
    assert [name for name, text in texts.items() if version in text] == ["src/onceflow/__init__.py"]
    zero = "UUID(int=0)"
    assert [name for name, text in texts.items() if zero in text] == ["sdk/protocol/primitives.py"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("NAME_MAX = 249", "_NAME_MAX: Final = 249"),
        ("ZERO_UUID = UUID(int=0)", "ZERO_UUID: UUID = UUID(int=0)"),
        ("class A(IntEnum):\n    B = 1\n    C = 2", "class D(enum.IntEnum):\n    C = 2\n    B = 1"),
    ],
)
def test_a_second_spelling_is_found(first: str, second: str) -> None:
    assert house_rules.second_spellings({"a.py": first, "b.py": second}) != []
    assert house_rules.second_spellings({"a.py": first, "b.py": "NAME_MAX = 250"}) == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    assert [str(path) for path in FILES if path.name in house_rules.BANNED_MODULES] == []


def test_tests_wait_on_conditions_and_do_not_sleep() -> None:
    ratchet = json.loads(RATCHET.read_text())["sleeps_in_test"]
    found: dict[str, int] = {}
    for path in sorted((house_rules.ROOT / "tests").rglob("test_*.py")):
        name = house_rules.name_of(path)
        if findings := house_rules.sleeps_in_test(name, path.read_text()):
            found[name] = len(findings)
    assert house_rules.over_ratchet(found, ratchet) == []


def test_what_tests_take_from_their_support_is_there() -> None:
    files = sorted((house_rules.ROOT / "tests").rglob("*.py"))
    findings = [
        finding
        for path in files
        for finding in house_rules.missing_support_names(
            house_rules.name_of(path), path.read_text()
        )
    ]
    assert findings == []


def test_long_function_is_found_and_the_ratchet_only_tightens() -> None:
    body = "    pass\n" * 71
    found = house_rules.long_functions("m.py", f"def f():\n{body}")
    assert found == {"m.py::f": 72}
    assert house_rules.over_ratchet(found, {}) != []
    assert house_rules.over_ratchet(found, {"m.py::f": 72}) == []
    assert house_rules.over_ratchet(found, {"m.py::f": 80}) != []
    assert house_rules.over_ratchet({}, {"m.py::f": 80}) != []


def test_long_module_is_found() -> None:
    assert house_rules.long_modules("m.py", "x = 1\n" * 901) == {"m.py": 901}


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (house_rules.banned_identifiers, "def f(corr_id): ..."),
        (house_rules.banned_identifiers, "a.hwm = 1"),
        (house_rules.unfinished_comments, "x = 1  # TODO later\n"),
        (house_rules.missing_docstrings, "'''doc'''\ndef f(): ..."),
        (house_rules.missing_docstrings, "x = 1"),
        (house_rules.lenient_json, "json.dumps(value)"),
        (house_rules.lenient_json, "json.dumps(value, allow_nan=True)"),
        (house_rules.lenient_json, "msgspec.json.encode(value)"),
        (house_rules.missing_support_names, "from spark_driver import start"),
        (house_rules.sleeps_in_test, "import time\ntime.sleep(1)"),
        (house_rules.sleeps_in_test, "await asyncio.sleep(delay)"),
    ],
)
def test_broken_text_is_found(rule: Callable[[str, str], list[str]], text: str) -> None:
    assert rule("m.py", text) != []


def test_files_that_begin_first_exist() -> None:
    assert [name for name in suite_order.LONG if not (house_rules.ROOT / name).is_file()] == []
