"""Goal: whatever the documentation points to is there: files, headings, tests, traps, field cases.

Method: every Markdown file of the tree is read; links, ``path::name`` references, trap numbers and
case ids are resolved. Small texts with faults show that a fault would be found.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import house_rules
import pytest

ROOT = house_rules.ROOT
CODE = (*house_rules.AREAS, "tests", "bench", "examples", "tools")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
TRAPS = 79
PROCESSING = (
    "unit/processors/*.py",
    "unit/transactions/*.py",
    "integration/test_processor*.py",
    "integration/test_session*.py",
)
"""Tests whose numbers are those of the page about processing."""
TRAP = re.compile(r"(?:\b|_)traps?[ _](\d+)((?:(?:, |_| and )\d+)*)")
CASE = re.compile(
    r"\bFC-(\d\d)\b|\b(?:test_)?fc_?(\d\d)(?=_|\b)|[Ff]ield cases? ((?:\d+(?:, | and )?)+)"
)


def pages() -> list[Path]:
    """The Markdown files of the project, without what tools have left around."""
    folders = [ROOT, ROOT / "docs", ROOT / "examples", ROOT / "tests", ROOT / "bench"]
    return sorted(
        {path for folder in folders for path in folder.glob("*.md")}
        | set((ROOT / "examples").rglob("*.md"))
        | set((ROOT / "tests").rglob("*.md"))
    )


def without_blocks(text: str) -> str:
    """The text of a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def anchor(heading: str) -> str:
    """The anchor that a heading gets when a page is shown."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    """Every anchor of a page."""
    return {anchor(h) for h in re.findall(r"^#{1,6} (.+)$", without_blocks(text), re.M)}


def broken_links(page: Path, text: str) -> list[str]:
    """Relative links of a page that lead nowhere."""
    found = []
    for target in LINK.findall(without_blocks(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, fragment = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists():
            found.append(f"{page.name}: {target}")
        elif fragment:
            there = text if path == page else path.read_text()
            if fragment not in anchors(there):
                found.append(f"{page.name}: {target} has no such heading")
    return found


def missing_tests(text: str) -> list[str]:
    """References ``path::name`` to tests that do not exist."""
    found = []
    for name, function in TEST.findall(text):
        path = ROOT / name
        if not path.exists() or not re.search(
            rf"^\s*(?:async )?def {function}\(", path.read_text(), re.M
        ):
            found.append(f"{name}::{function}")
    return found


def numbers_of(matches: list[tuple[str, ...]]) -> set[int]:
    """All numbers in the groups of a pattern's matches."""
    return {int(n) for match in matches for part in match for n in re.findall(r"\d+", part)}


def code_texts() -> Iterator[str]:
    """Sources and tests, without this file, which shows faults on purpose."""
    for area in CODE:
        for path in (ROOT / area).rglob("*.py"):
            if path != Path(__file__):
                yield path.read_text()


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page, page.read_text()) == []


def test_every_test_that_a_page_names_exists() -> None:
    named = [name for page in pages() for name in TEST.findall(page.read_text())]
    assert len(named) > 50
    assert [f for page in pages() for f in missing_tests(page.read_text())] == []


def test_every_promise_names_a_test() -> None:
    rows = re.findall(r"^\| (?!promise|---)(.+?) \|(.*)\|$", guarantees(), re.M)
    assert [promise for promise, shown in rows if not TEST.search(shown)] == []


def guarantees() -> str:
    return (ROOT / "docs" / "guarantees.md").read_text()


def test_every_trap_that_the_code_names_is_written_down() -> None:
    page = (ROOT / "docs" / "protocol-traps.md").read_text()
    written = {int(number) for number in re.findall(r"^\| (\d+) \|", page, re.M)}
    named = {n for text in code_texts() for n in numbers_of(TRAP.findall(text))}
    assert named - written == set()


def test_every_trap_has_a_test_that_names_its_number() -> None:
    page = (ROOT / "docs" / "protocol-traps.md").read_text()
    rows = re.findall(r"^\| (\d+) \| .+ \| `(tests/[\w/]+\.py)::(\w+)` \|$", page, re.M)
    assert [int(number) for number, _, _ in rows] == list(range(1, TRAPS + 1))
    unnamed = [
        number
        for number, path, name in rows
        if int(number) not in numbers_of(TRAP.findall(source_of(ROOT / path, name).lower()))
    ]
    assert unnamed == []


def test_processing_traps_are_those_that_tests_of_processing_name() -> None:
    page = (ROOT / "docs" / "processing-traps.md").read_text()
    rows = re.findall(r"^\| (\d+) \| .+ \| `(tests/[\w/]+\.py)::(\w+)` \|$", page, re.M)
    numbers = [int(number) for number, _, _ in rows]
    assert len(numbers) == page.count("\n| ") - 2  # The head of the table has two lines.
    assert numbers == sorted(set(numbers))
    unnamed = [
        number
        for number, path, name in rows
        if int(number) not in numbers_of(TRAP.findall(source_of(ROOT / path, name).lower()))
    ]
    assert unnamed == []
    tests = [path for pattern in PROCESSING for path in (ROOT / "tests").glob(pattern)]
    named = {n for path in tests for n in numbers_of(TRAP.findall(path.read_text().lower()))}
    assert named == set(numbers)


def source_of(path: Path, name: str) -> str:
    """The text of one function of a file."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            found = ast.get_source_segment(text, node)
            # Names of parameters may carry the number too.
            return "\n".join([*map(ast.unparse, node.decorator_list), found or ""])
    return ""


def test_every_field_case_that_the_code_names_is_written_down() -> None:
    page = (ROOT / "docs" / "field-cases.md").read_text()
    written = {int(number) for number in re.findall(r"^\| FC-(\d\d) \|", page, re.M)}
    named = {n for text in code_texts() for n in numbers_of(CASE.findall(text))}
    assert named - written == set()


def test_every_public_page_is_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        for target in LINK.findall(without_blocks(page.read_text())):
            if not re.match(r"[a-z]+:", target):
                waiting.append((page.parent / target.partition("#")[0]).resolve())
    assert set((ROOT / "docs").glob("*.md")) - reached == set()


def test_faults_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One heading\n")
    text = (
        "# One heading\n[a](#one-heading) [b](#two) [c](gone.md) [d](page.md#three) [e](http://x)"
    )
    assert len(broken_links(page, text)) == 3
    assert missing_tests("`tests/house/test_house_rules.py::test_that_is_not_there`") != []
    assert missing_tests("`tests/house/test_house_rules.py::test_long_module_is_found`") == []
    assert numbers_of(TRAP.findall("(trap 46), traps 37, 55; test_x_traps_42_43")) == {
        37, 42, 43, 46, 55
    }  # fmt: skip
    assert numbers_of(CASE.findall("FC-09, test_fc10_x, fc_26, field cases 29, 64 and 68.")) == {
        9, 10, 26, 29, 64, 68
    }  # fmt: skip
