"""Goal: the pages that are made from the code are up to date, and leave nothing out.

Method: the tools make their pages in memory and the result is compared with the file; the map of
files is compared with the tree, and the README with the example that it shows.
"""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import house_rules
import pytest

ROOT = house_rules.ROOT


def tool(name: str) -> ModuleType:
    """A program of ``tools/`` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def design() -> str:
    return (ROOT / "docs" / "design.md").read_text()


@pytest.mark.parametrize(
    ("name", "page"), [("api_docs", "api.md"), ("config_docs", "configuration.md")]
)
def test_page_is_what_its_tool_writes(name: str, page: str) -> None:
    assert (ROOT / "docs" / page).read_text() == tool(name).page(), "run make fix"


def test_tables_of_sparks_options_are_those_that_are_declared() -> None:
    page = (ROOT / "docs" / "spark.md").read_text()
    assert page == tool("config_docs").spark_page(page), "run make fix"


def test_tables_of_what_is_served_and_of_limits_are_what_the_code_says() -> None:
    for path, text in tool("tables_docs").pages().items():
        assert path.read_text() == text, "run make fix"


def test_a_limit_is_shown_with_its_unit() -> None:
    shown = tool("tables_docs").shown
    assert shown("A_BYTES_MAX", 128 << 20) == "128 MiB"
    assert shown("A_MAX", 10_000) == "10,000"
    assert shown("A_MAX_MS", 5_000) == "5,000 ms"


def test_keyword_arguments_are_those_that_are_declared() -> None:
    keywords = tool("settings_keywords")
    for name, written in keywords.modules().items():
        assert (ROOT / name).read_text() == written, "run make fix"


def test_diagrams_and_map_are_what_the_code_says() -> None:
    assert tool("design_docs").with_diagrams(design()) == design(), "run make fix"


def test_a_changed_table_would_be_noticed() -> None:
    page = design().replace("    READY --> IN_TRANSACTION\n", "")
    assert page != design()
    assert tool("design_docs").with_diagrams(page) == design()


def test_every_module_is_in_the_map_of_files() -> None:
    listed = design().partition("## Map of files")[2]
    folders = re.split(r"^### (.+)$", listed, flags=re.M)[1:]
    found = {
        f"{folder}/{name}"
        for folder, table in zip(folders[::2], folders[1::2], strict=True)
        for name in re.findall(r"^\| `(\w+\.py)` \| \S", table, re.M)
    }
    modules = {house_rules.name_of(path) for path in house_rules.source_files()}
    assert found == {name for name in modules if not name.endswith("__init__.py")}


def test_the_list_of_what_is_served_is_what_the_handlers_declare() -> None:
    module = tool("design_docs")
    assert module.SERVED.read_text() == module.served_requests(), "run make fix"


def test_modules_that_the_design_names_exist() -> None:
    text = re.sub(r"^```.*?^```$", "", design().partition("## Map of files")[0], flags=re.M | re.S)
    places = [ROOT, ROOT / "sdk", ROOT / "sdk" / "protocol", ROOT / "broker_lite"]
    names = set(re.findall(r"`((?:\w+/)*\w+\.(?:py|toml))`", text))
    assert len(names) > 30
    assert [name for name in names if not any((p / name).exists() for p in places)] == []


def test_readme_shows_the_example_as_it_is() -> None:
    shown = re.search(r"# counting\.py\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert shown
    code = (ROOT / "examples" / "task2_count" / "app.py").read_text().partition('"""\n\n')[2]
    assert shown[1] == code


def test_readme_begins_with_what_a_newcomer_needs() -> None:
    first = (ROOT / "README.md").read_text().splitlines()[:40]
    text = "\n".join(first)
    assert first[0] == "# onceflow"
    assert "make demo" in text
    assert "make test" in text
    program = re.search(r"```python\n(.*?)```\n+```text\n(.*?)```", text, re.S)
    assert program, "the program and its output stand in the first 40 lines"
    assert len([line for line in program[1].splitlines() if line]) <= 15
