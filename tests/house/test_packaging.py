"""Goal: what is installed is what the tree holds, and importing it stays cheap.

Method: the links under ``src/onceflow`` are checked, a wheel is built and compared with the tree
file by file, and fresh interpreters import single areas and tell what they loaded.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import house_rules
import pytest

ROOT = house_rules.ROOT


@pytest.mark.parametrize("area", house_rules.AREAS)
def test_area_is_a_link_to_its_folder(area: str) -> None:
    link = ROOT / "src" / "onceflow" / area
    assert link.is_symlink()
    assert link.readlink() == Path("..", "..", area)
    assert link.resolve() == ROOT / area


def test_wheel_holds_every_file_of_the_tree(tmp_path: Path) -> None:
    # Built from a copy: setuptools packs whatever an earlier build left in build/.
    left_out = shutil.ignore_patterns(".git", ".venv", "build", "*.egg-info", "__pycache__")
    copy = shutil.copytree(ROOT, tmp_path / "copy", symlinks=True, ignore=left_out)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path)]
    subprocess.run([*command, str(copy)], check=True, capture_output=True, timeout=110)
    (wheel,) = tmp_path.glob("*.whl")
    packed = {n for n in zipfile.ZipFile(wheel).namelist() if n.startswith("onceflow/")}
    tree = {
        "onceflow/" + str(path.relative_to(ROOT)).removeprefix("src/onceflow/")
        for path in house_rules.source_files()
    } | {"onceflow/py.typed"}
    data = {
        f"onceflow/{path.relative_to(ROOT)}"
        for area in house_rules.AREAS
        for path in (ROOT / area).rglob("*.json")
    }
    assert packed == tree | data


def loaded_after(statement: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after a statement."""
    program = f"import sys; {statement}; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "not_loaded"),
    [
        ("import onceflow", {"asyncio", "onceflow.sdk"}),
        ("import onceflow.sdk", {"aiokafka", "asyncio", "onceflow.broker_lite", "pyspark"}),
        ("import onceflow.cli", {"asyncio", "onceflow.broker_lite", "onceflow.sdk"}),
        ("import onceflow.broker_lite", {"aiokafka.client", "onceflow.sdk.aio", "pyspark"}),
        ("import onceflow.processors", {"aiokafka", "onceflow.broker_lite", "pyspark"}),
    ],
)
def test_import_loads_no_more_than_it_needs(statement: str, not_loaded: set[str]) -> None:
    assert loaded_after(statement) & not_loaded == set()
