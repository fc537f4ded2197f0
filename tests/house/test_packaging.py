"""Goal: what is installed is what the tree holds, and importing it stays cheap.

Method: the links under ``src/onceflow`` are checked, a wheel is built and compared with the tree
file by file, and fresh interpreters import single areas and tell what they loaded. What the code
imports is compared with what ``pyproject.toml`` declares.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

import house_rules
import pytest

ROOT = house_rules.ROOT
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COME_ALONG = {"cryptography": "jwt", "py4j": "pyspark", "referencing": "jsonschema"}
"""Imported packages that come with a declared one and are made for it."""


@pytest.mark.parametrize("area", house_rules.AREAS)
def test_area_is_a_link_to_its_folder(area: str) -> None:
    link = ROOT / "src" / "onceflow" / area
    assert link.is_symlink()
    assert link.readlink() == Path("..", "..", area)
    assert link.resolve() == ROOT / area


@pytest.mark.slow
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


def test_development_has_what_builds_the_package() -> None:
    # make setup compiles the record kernel outside of pip's isolation: an older setuptools, such
    # as a new virtual environment of Python 3.11 brings along, cannot read pyproject.toml.
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = set(declared["build-system"]["requires"])
    assert needed <= set(declared["project"]["optional-dependencies"]["dev"])


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


def test_the_spark_adapter_without_pyspark_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['pyspark'] = None; from onceflow.spark_integration import register"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60
    )
    assert "pip install 'onceflow[spark]'" in done.stderr


def normal(requirement: str) -> str:
    """The name of a requirement, spelled in one way."""
    name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(*extras: str) -> set[str]:
    """Names that an installation with these extras asks for; extras within extras are followed."""
    found: set[str] = set()
    wanted = list(PROJECT["dependencies"])
    wanted += [r for extra in extras for r in PROJECT["optional-dependencies"][extra]]
    for requirement in wanted:
        if normal(requirement) == "onceflow":
            found |= declared(*requirement.partition("[")[2].rstrip("]").split(","))
        else:
            found.add(normal(requirement))
    return found


OPTIONAL = {
    "broker_lite/security/jwks.py": "security",
    "broker_lite/security/stores.py": "security",
    "broker_lite/testing/container.py": "testcontainers",
    "sdk/model/columns.py": "arrow",
    "sdk/observe/prometheus.py": "prometheus",
    "sdk/observe/tracing.py": "opentelemetry",
    "sdk/schema_registry/avro.py": "avro",
    "sdk/schema_registry/json_schema.py": "json-schema",
    "sdk/schema_registry/protobuf.py": "protobuf",
}
"""Modules that need an extra, each loaded only by who asks for it."""


@functools.cache
def package_owners() -> Mapping[str, list[str]]:
    """Distributions that bring each importable package; asking takes a second."""
    return metadata.packages_distributions()


def undeclared(files: Iterable[Path], *extras: str) -> list[str]:
    """Imports of other people's packages that an installation with these extras would lack."""
    own = {"onceflow", "examples", "_typeshed"}
    for folder in ("tests/support", "tests/simulation", "bench"):
        own |= {path.stem for path in (ROOT / folder).glob("*.py")}
    owners = package_owners()
    allowed = declared(*extras)
    found = []
    for path in files:
        for name in house_rules.imported_packages(path.read_text()) - own:
            if name in sys.stdlib_module_names:
                continue
            packages = {normal(owner) for owner in owners.get(COME_ALONG.get(name, name), [name])}
            if not packages & allowed:
                found.append(f"{house_rules.name_of(path)} imports {name}")
    return found


def test_the_product_imports_only_what_its_installation_brings() -> None:
    spark = ROOT / "spark_integration"
    testing = ROOT / "broker_lite" / "testing"
    plugins = (testing / "pytest_plugin.py", testing / "pytest_fixtures.py")
    optional = {ROOT / path: extra for path, extra in OPTIONAL.items()}
    plain = [p for p in house_rules.source_files() if spark not in p.parents and p not in plugins]
    assert undeclared(p for p in plain if p not in optional) == []
    for path, extra in optional.items():
        assert undeclared([path]) != [], f"{path} needs no extra"
        assert undeclared([path], extra) == []
    assert undeclared(spark.rglob("*.py"), "spark") == []
    assert undeclared(ROOT.glob("examples/**/*.py"), "demo") == []


def test_tests_and_tools_import_only_what_setup_brings() -> None:
    files = [p for folder in ("tests", "bench", "tools") for p in (ROOT / folder).rglob("*.py")]
    assert undeclared(files, "dev") == []


def test_an_undeclared_import_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "module.py"
    module.write_text("import asyncio\nimport click\n\ndef f():\n    import pyspark.sql\n")
    monkeypatch.setattr(house_rules, "name_of", lambda path: path.name)
    assert undeclared([module]) == ["module.py imports pyspark"]
    assert undeclared([module], "dev") == []
