"""Goal: what is installed is what the tree holds, and importing it stays cheap.

Method: the links under ``src/onceflow`` are checked, the source archive and wheels are built as pip
builds them, with a compiler, without and with a failing one, and compared with the tree file by
file; fresh interpreters import single areas and tell what they loaded. What the code
imports is compared with what ``pyproject.toml`` declares.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import build_backend
import house_rules
import pytest

import onceflow
from onceflow.sdk.protocol import record_kernel

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


def pip_wheel(python: Path, source: Path, into: Path, **environment: str) -> tuple[Path, str]:
    """Build a wheel as pip does it: isolated, with what the backend asks for.

    Args:
        python: The interpreter of a new environment: mypy also looks into the site-packages of
            the environment that pip runs in, where everything is in development.
        source: Folder of the project.
        into: Folder for the wheel.
        environment: Environment variables.

    Returns:
        The wheel, and what was printed.
    """
    command = [str(python), "-m", "pip", "wheel", "-v", "--no-deps", "-w", str(into)]
    switch = {name: value for name, value in os.environ.items() if name != build_backend.SWITCH}
    done = subprocess.run(
        [*command, str(source)],
        check=False,
        capture_output=True,
        text=True,
        timeout=380,
        env=switch | environment,
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    (wheel,) = into.glob("*.whl")
    return wheel, printed


def packed_in(wheel: Path) -> set[str]:
    """Names of the package's files in a wheel."""
    return {n for n in zipfile.ZipFile(wheel).namelist() if n.startswith("onceflow/")}


def files_of_the_tree() -> set[str]:
    """Names that the package's files have when they are installed."""
    tree = {
        "onceflow/" + str(path.relative_to(ROOT)).removeprefix("src/onceflow/")
        for path in house_rules.source_files()
    }
    data = {
        f"onceflow/{path.relative_to(ROOT)}"
        for area in house_rules.AREAS
        for path in (ROOT / area).rglob("*.json")
    }
    static = ROOT / "src" / "onceflow" / "console" / "static"
    data |= {f"onceflow/console/static/{path.name}" for path in static.iterdir()}
    return tree | data | {"onceflow/py.typed"}


def smoke(wheel: Path, site: Path, engine: str) -> str:
    """Unpack a wheel and try it there, with the libraries that are here."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "smoke.py"), engine],
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        cwd=site,
        env=os.environ | {"PYTHONPATH": str(site)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, made as `make dist` makes it, of a copy: setuptools works in the tree."""
    folder = tmp_path_factory.mktemp("dist")
    left_out = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    copy = shutil.copytree(ROOT, folder / "copy", symlinks=True, ignore=left_out)
    command = [sys.executable, "-m", "build", "--sdist", "-o", str(folder), str(copy)]
    subprocess.run(command, check=True, capture_output=True, timeout=110)
    (archive,) = folder.glob("*.tar.gz")
    return archive


@pytest.fixture
def unpacked(sdist: Path, tmp_path: Path) -> Path:
    """The unpacked source archive: pip keeps what it built of an archive, and not of a folder."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    return folder


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with nothing but pip."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=110)
    return folder / "bin" / "python"


needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CC", "cc").split()[0]) is None, reason="no C compiler here"
)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_source_archive_holds_the_tree_without_links(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    assert [m.name for m in members if not (m.isfile() or m.isdir())] == []
    inside = {m.name.partition("/src/")[2] for m in members if m.isfile() and "/src/" in m.name}
    assert {name for name in inside if ".egg-info" not in name} == files_of_the_tree()
    assert any(m.name.endswith("/tools/build_backend.py") for m in members)


@needs_compiler
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_plain_install_compiles_also_from_the_source_archive(
    bare_python: Path, unpacked: Path, tmp_path: Path
) -> None:
    wheel, said = pip_wheel(bare_python, unpacked, tmp_path)
    assert f"onceflow: compiled for {sys.implementation.cache_tag}" in said
    suffix = EXTENSION_SUFFIXES[0]
    compiled = {f"onceflow/{name}{suffix}" for name in build_backend.COMPILED}
    compiled.add(f"onceflow/sdk/compiled__mypyc{suffix}")
    assert packed_in(wheel) == files_of_the_tree() | compiled
    assert sys.implementation.cache_tag.replace("ython-", "") in wheel.name
    assert smoke(wheel, tmp_path / "site", "compiled").endswith(": works\n")


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("no compiler", "NOT COMPILED: the C compiler '/nowhere/cc' is missing"),
        pytest.param("a failing compiler", "NOT COMPILED: error: Command", marks=needs_compiler),
        ("forbidden", "plain Python, as ONCEFLOW_COMPILE=0 asks for"),
    ],
)
def test_without_machine_code_the_install_is_plain_and_says_why(
    bare_python: Path, unpacked: Path, tmp_path: Path, how: str, said: str
) -> None:
    failing = tmp_path / "cc"  # takes the backend's probe and nothing else
    failing.write_text('#!/bin/sh\ncase "$*" in *probe.c*) exec cc "$@";; esac\nexit 1\n')
    failing.chmod(0o755)
    environment = {
        "no compiler": {"CC": "/nowhere/cc"},
        "a failing compiler": {"CC": str(failing)},
        "forbidden": {build_backend.SWITCH: "0"},
    }[how]
    wheel, printed = pip_wheel(bare_python, unpacked, tmp_path, **environment)
    assert said in printed
    assert wheel.name.endswith("-py3-none-any.whl")
    assert packed_in(wheel) == files_of_the_tree()
    assert smoke(wheel, tmp_path / "site", "plain").endswith(": works\n")


def test_development_has_what_compiles() -> None:
    # make check's mypy is the one that compiles; else a module could pass the one alone.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = {*project["dependencies"], *project["optional-dependencies"]["dev"]}
    assert set(build_backend.COMPILER_REQUIRES) <= known
    for name in build_backend.COMPILED:
        assert (ROOT / f"src/onceflow/{name}.py").is_file()


def test_wheels_are_made_for_every_interpreter_that_is_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    promised = [c.rpartition(" :: ")[2] for c in project["project"]["classifiers"]]
    versions = {f"cp{v.replace('.', '')}-*" for v in promised if v.startswith("3.")}
    wheels = project["tool"]["cibuildwheel"]
    assert len(versions) >= 3
    assert versions <= set(wheels["build"].split())
    assert wheels["environment"] == {build_backend.SWITCH: "1"}


@pytest.mark.parametrize(
    ("switch", "cc", "asks"),
    [
        ("0", None, False),
        ("1", None, True),
        ("1", "/nowhere/cc", True),
        ("auto", "/nowhere/cc", False),
        ("", "/nowhere/cc", False),
        pytest.param("auto", None, True, marks=needs_compiler),
        pytest.param("", None, True, marks=needs_compiler),
    ],
)
def test_a_build_asks_for_mypy_where_it_will_compile(
    switch: str, cc: str | None, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(build_backend.SWITCH, switch)
    if cc is not None:
        monkeypatch.setenv("CC", cc)
    expected = build_backend.COMPILER_REQUIRES if asks else ()
    assert tuple(build_backend._compiler_requires()) == expected


def test_an_unknown_choice_is_refused_with_those_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(build_backend.SWITCH, "yes")
    with pytest.raises(SystemExit, match=r"ONCEFLOW_COMPILE='yes': must be auto .* 1 .* or 0"):
        build_backend.build_wheel("nowhere")


def test_a_failure_is_an_error_only_where_compiling_is_required(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def translated(_: Path) -> list[object]:
        raise SystemExit("mypyc gives up")

    undone: list[bool] = []
    monkeypatch.setattr(build_backend, "_translated", translated)
    monkeypatch.setenv(build_backend.SWITCH, "1")
    with pytest.raises(SystemExit, match="ONCEFLOW_COMPILE=1, but: mypyc gives up"):
        build_backend._compiled_or_plain(lambda: "wheel", lambda: undone.append(True))
    monkeypatch.setenv(build_backend.SWITCH, "auto")
    name = build_backend._compiled_or_plain(lambda: "wheel", lambda: undone.append(True))
    assert name == "wheel"
    assert "NOT COMPILED: mypyc gives up" in capsys.readouterr().out
    assert undone == [True, True]
    assert build_backend.extensions() == []


def test_a_tree_whose_links_became_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "sdk").write_text("../../sdk")  # what git writes with core.symlinks=false
    monkeypatch.setattr(build_backend, "PACKAGE", tmp_path)
    with pytest.raises(SystemExit, match="src/onceflow/sdk must be a symbolic link"):
        build_backend.build_sdist(str(tmp_path))


@needs_compiler
def test_development_runs_what_is_compiled() -> None:
    # A module that mypyc cannot take makes all of them plain, and nothing else fails.
    if os.environ.get(build_backend.SWITCH) == "0":
        pytest.skip("plain Python is asked for")
    for name in build_backend.COMPILED:
        module = importlib.import_module("onceflow." + name.replace("/", "."))
        assert str(module.__file__).endswith(EXTENSION_SUFFIXES[0]), (
            f"{name} is not compiled: pip install -v -e . tells why"
        )


def test_the_command_tells_which_engine_is_in_use() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onceflow", "--version"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    engine = "compiled" if record_kernel.COMPILED else "plain Python"
    assert done.stdout.startswith(f"onceflow, version {onceflow.__version__} ({engine}, ")


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
        ("from onceflow.cli import topics, consume, log", {"asyncio", "onceflow.sdk"}),
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
    "src/onceflow/cli/gathered.py": "prometheus",
    "src/onceflow/cli/reload.py": "reload",
    "broker_lite/coordinators/consumer/topic_regex.py": "re2",
    "broker_lite/security/jwks.py": "security",
    "broker_lite/security/stores.py": "security",
    "broker_lite/testing/container.py": "testcontainers",
    "broker_lite/testing/control.py": "testing",
    "processors/nodes/arrow.py": "arrow",
    "src/onceflow/cli/console.py": "console",
    "src/onceflow/console/server.py": "console",
    "sdk/event_loops.py": "uvloop",
    "sdk/model/columns.py": "arrow",
    "sdk/observe/prometheus.py": "prometheus",
    "sdk/observe/table_opentelemetry.py": "opentelemetry",
    "sdk/observe/table_prometheus.py": "prometheus",
    "sdk/observe/tracing.py": "opentelemetry",
    "sdk/schema_registry/avro/serde.py": "avro",
    "sdk/schema_registry/cache.py": "registry",
    "sdk/schema_registry/http.py": "registry",
    "sdk/schema_registry/json_schema.py": "json-schema",
    "sdk/schema_registry/protobuf.py": "protobuf",
    "transactions/outbox/inbox.py": "postgres",
    "transactions/outbox/table.py": "postgres",
    "src/onceflow/cli/run_on_spark.py": "spark",
    "transactions/postgres_client.py": "postgres",
    "transactions/sinks/http.py": "http",
    "transactions/sinks/parquet.py": "arrow",
}
"""Modules that need an extra, each loaded only by who asks for it."""
ELSEWHERE = (ROOT / "bench" / "quix_side.py",)
"""Programs that run in an environment of their own, which does not have this project."""


@functools.cache
def package_owners() -> Mapping[str, list[str]]:
    """Distributions that bring each importable package; asking takes a second."""
    return metadata.packages_distributions()


def undeclared(files: Iterable[Path], *extras: str) -> list[str]:
    """Imports of other people's packages that an installation with these extras would lack."""
    own = {"onceflow", "examples", "_typeshed"}
    for folder in ("tests/support", "tests/simulation", "bench", "tools"):
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
    assert undeclared(ROOT.glob("examples/**/*.py"), "demo", "examples") == []


def test_tests_and_tools_import_only_what_setup_brings() -> None:
    files = [p for folder in ("tests", "bench", "tools") for p in (ROOT / folder).rglob("*.py")]
    assert undeclared((p for p in files if p not in ELSEWHERE), "dev") == []
    assert not any("onceflow" in house_rules.imported_packages(p.read_text()) for p in ELSEWHERE)


def test_an_undeclared_import_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "module.py"
    module.write_text("import asyncio\nimport click\n\ndef f():\n    import pyspark.sql\n")
    monkeypatch.setattr(house_rules, "name_of", lambda path: path.name)
    assert undeclared([module]) == ["module.py imports pyspark"]
    assert undeclared([module], "dev") == []
