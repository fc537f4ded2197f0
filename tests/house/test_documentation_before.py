"""Goal: the programs that the pages for newcomers start from are programs of those libraries.

Method: confluent-kafka's, aiokafka's and kafka-python's are run by `test_documentation_runs`. Here
are those that cannot be: each must compile and import only what its page is about. That of
testcontainers runs against our broker in place of the container, which no machine without an
engine could start; its class and methods are the library's.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import house_rules
import pytest
from testcontainers.community.kafka import KafkaContainer

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing.committed import KafkaRecords
from onceflow.broker_lite.testing.container import OnceflowContainer

PAGES = sorted((house_rules.ROOT / "docs").glob("from-*.md"))
IMPORTS = {
    "from-faststream": {"faststream", "pydantic"},
    "from-faust": {"faust"},
    "from-quix": {"quixstreams"},
    "from-testcontainers": {"confluent_kafka", "testcontainers"},
}
"""What the programs that are not run may import."""

STAND_IN = """
from testcontainers.community.kafka import KafkaContainer

def put(name, function):
    assert callable(getattr(KafkaContainer, name)), name
    setattr(KafkaContainer, name, function)

put("__init__", lambda self: None)
put("__enter__", lambda self: self)
put("__exit__", lambda self, *_: None)
put("get_bootstrap_server", lambda self: {address!r})
KafkaContainer.__del__ = lambda self: None
"""


def before(page: Path) -> list[str]:
    """Programs of a page that mypy and `test_documentation_runs` leave out."""
    return re.findall(r"^```py\n(.*?)^```$", page.read_text(), re.M | re.S)


def test_each_page_has_a_program_before() -> None:
    left_out = {page.stem for page in PAGES if before(page)}
    assert left_out == set(IMPORTS)
    for page in PAGES:
        first = page.read_text().partition("## Before")[2].partition("## After")[0]
        assert re.search(r"^```py", first, re.M), page.name


@pytest.mark.parametrize("name", IMPORTS)
def test_it_compiles_and_is_about_its_library(name: str) -> None:
    (program,) = before(house_rules.ROOT / "docs" / f"{name}.md")
    compile(program, name, "exec")
    assert house_rules.imported_packages(program) == IMPORTS[name]
    used = {node.id for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Name)}
    imported = re.findall(r"^(?:from [\w.]+ )?import (.+)$", program, re.M)
    assert used >= {each.strip() for line in imported for each in line.split(",")}


def test_the_program_with_a_container_works(tmp_path: Path) -> None:
    (program,) = before(house_rules.ROOT / "docs" / "from-testcontainers.md")
    with Broker() as broker:
        prelude = STAND_IN.format(address=broker.bootstrap_servers)
        (tmp_path / "program.py").write_text(prelude + program)
        command = [sys.executable, "-W", "error", "program.py"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        assert KafkaRecords(broker).committed("orders").values == [b"1"]


def test_our_container_has_the_methods_of_theirs() -> None:
    theirs = {name for name in dir(KafkaContainer) if name.islower() and name[0] != "_"}
    assert len(theirs) > 20
    assert theirs <= set(dir(OnceflowContainer))
