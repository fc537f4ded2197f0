"""Goal: the programs that the documentation shows work, and print what is shown.

Method: the python blocks of each section are taken together as one program and run in a process of
its own, section by section, beside one in-process broker for the page and a served fake of a schema
registry or a PostgreSQL, whose addresses replace those that the pages show; blocks that begin with
a file name become that file, and test files are run by pytest. The ``text`` blocks of the section,
in order, are what must be printed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import house_rules
import pytest
from postgres_server import PostgresServer
from schema_registry_fake import FakeRegistry

from onceflow.broker_lite import Broker

PAGES = (
    "README.md",
    "docs/getting-started.md",
    "docs/processing.md",
    "docs/joins.md",
    "docs/serialization.md",
    "docs/sinks.md",
    "docs/outbox.md",
    "docs/two-phase.md",
    "docs/admin.md",
    "docs/observation.md",
    "docs/security.md",
    "docs/testing.md",
    "docs/from-confluent-kafka.md",
    "docs/from-aiokafka.md",
    "docs/from-kafka-python.md",
    "docs/from-faststream.md",
    "docs/from-faust.md",
    "docs/from-quix.md",
    "docs/from-testcontainers.md",
)
ADDRESS = "localhost:9092"
REGISTRY = "http://localhost:8081"
DATABASE = "postgresql://localhost:5432/shop"
DEADLINE_S = 280
OTHERS = re.compile(r"^from (kafka|aiokafka|confluent_kafka) ", re.M)
FILE_NAME = re.compile(r"\A# (\w+\.py)\n")


@dataclass(frozen=True)
class Section:
    """One section's programs.

    Attributes:
        page: Path of the page.
        title: Its heading.
        program: What is run; empty when there are files only.
        files: Files beside it, by name.
        shown: What it must print.
    """

    page: str
    title: str
    program: str
    files: dict[str, str]
    shown: str


def blocks(text: str) -> list[tuple[str, str]]:
    """Fenced blocks: language and content."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)


def read_section(page: str, title: str, text: str) -> Section:
    """Put the blocks of a section together."""
    program, files, shown = "", {}, ""
    for language, content in blocks(text):
        if language == "text":
            shown += content
        elif language == "python":
            if named := FILE_NAME.match(content):
                files[named[1]] = content
            else:
                program += content
    return Section(page, title, program, files, shown)


def parts_of(text: str) -> list[tuple[str, str]]:
    """Headings of the first two levels and what stands below each; fences hide their content."""
    parts: list[tuple[str, list[str]]] = []
    fenced = False
    for line in text.splitlines(keepends=True):
        fenced ^= line.startswith("```")
        if not fenced and (heading := re.match(r"#{1,2} (.+)", line)):
            parts.append((heading[1], []))
        elif parts:
            parts[-1][1].append(line)
    return [(title, "".join(lines)) for title, lines in parts]


def sections(page: str) -> list[Section]:
    """Sections of a page that hold programs."""
    text = (house_rules.ROOT / page).read_text()
    found = [read_section(page, title, below) for title, below in parts_of(text)]
    return [section for section in found if section.program or section.files]


ALL = [section for page in PAGES for section in sections(page)]


def java_is_missing() -> bool:
    home = os.environ.get("JAVA_HOME")
    return not ((Path(home) / "bin" / "java").exists() if home else shutil.which("java"))


def needs_spark(section: Section) -> bool:
    """Whether a section's program starts Spark."""
    return "pyspark" in section.program


def needs_postgres(section: Section) -> bool:
    """Whether a section's program connects to PostgreSQL."""
    return DATABASE in section.program


def run(command: list[str], folder: Path) -> str:
    """Run to the end; gives what was printed."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": search_path(folder)},
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def search_path(folder: Path) -> str:
    """The section's own modules first, then whatever this process was given."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def check(section: Section, addresses: Mapping[str, str], folder: Path) -> None:
    """Run what a section holds and compare what it prints."""
    folder.mkdir()

    def place(name: str, text: str) -> None:
        for shown, address in addresses.items():
            text = text.replace(shown, address)
        (folder / name).write_text(text)

    for name, text in section.files.items():
        place(name, text)
    if section.program:
        place("program.py", section.program)
        # Other people's packages may warn; our own programs must be silent.
        strict = [] if needs_spark(section) or OTHERS.search(section.program) else ["-W", "error"]
        printed = run([*strict, "program.py"], folder)
        assert (section.title, printed) == (section.title, section.shown)
    if tests := [name for name in section.files if name.startswith("test_")]:
        options = ["-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error"]
        run(["-m", "pytest", *options, *tests], folder)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_programs_of_a_page_print_what_is_shown_when_read_from_top_to_bottom(
    page: str, tmp_path: Path
) -> None:
    with Broker() as broker, FakeRegistry() as registry:
        addresses = {ADDRESS: broker.bootstrap_servers, REGISTRY: registry.url}
        for number, section in enumerate(sections(page)):
            if not needs_spark(section) and not needs_postgres(section):
                check(section, addresses, tmp_path / str(number))


@pytest.mark.slow
@pytest.mark.parametrize("page", sorted({s.page for s in ALL if needs_postgres(s)}))
def test_programs_for_postgres_print_what_is_shown(
    page: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    with Broker() as broker:
        addresses = {ADDRESS: broker.bootstrap_servers, DATABASE: postgres.schema()}
        for number, section in enumerate(filter(needs_postgres, sections(page))):
            check(section, addresses, tmp_path / str(number))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(java_is_missing(), reason="Java 17+ is missing (make java)")
def test_programs_for_spark_print_what_is_shown(tmp_path: Path) -> None:
    for number, section in enumerate(filter(needs_spark, ALL)):
        with Broker() as broker:
            check(section, {ADDRESS: broker.bootstrap_servers}, tmp_path / str(number))


def test_there_are_programs_on_every_page() -> None:
    assert {section.page for section in ALL} == set(PAGES)
    assert len(ALL) > 10


def test_a_wrong_output_would_be_noticed() -> None:
    text = "intro\n```python\nprint(1)\n```\n\n```text\n2\n```\n\n```python\n# a.py\nx = 1\n```\n"
    section = read_section("p", "t", text)
    assert (section.program, section.shown) == ("print(1)\n", "2\n")
    assert section.files == {"a.py": "# a.py\nx = 1\n"}
