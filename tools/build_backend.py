"""The project's build backend: setuptools, and the decision whether some modules are compiled.

pip, build and uv call the functions below (PEP 517, PEP 660). The modules in `COMPILED` handle
single records; mypyc turns them into machine code, with all others and their own sources beside
it. A build never fails for want of a compiler: it then installs the same modules as plain Python.

`ONCEFLOW_COMPILE` decides: `auto` (the default) compiles where that works, `1` makes a failure
an error, `0` forbids compiling. pip shows what this module prints with `pip install -v` only;
`onceflow --version` tells what came of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from setuptools import build_meta

if TYPE_CHECKING:
    from setuptools import Extension

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

COMPILED = (
    "sdk/protocol/record_kernel",
    "sdk/core/produce/key_hash",
    "sdk/core/produce/batch",
    "sdk/core/produce/sender",
    "sdk/core/produce/messages",
    "sdk/core/connection/connection",
    "sdk/core/produce/accumulator",
    "sdk/sync/delivery",
    "sdk/aio/produce/delivery",
    "sdk/protocol/batch_header",
    "sdk/protocol/record_validation",
    "sdk/protocol/frame",
    "broker_lite/dispatch",
    "broker_lite/handlers/produce",
    "broker_lite/log/append_checks",
    "broker_lite/log/index",
    "broker_lite/log/segment",
    "broker_lite/net/connection",
    "broker_lite/net/outgoing",
)
"""Modules, as paths without suffix, that run for each record, or in the broker for each request.

What tests replace from outside stays plain: compiled code calls its own methods directly. In the
broker that is the log itself and its producers, where the simulation plants its faults.
"""

COMPILER_REQUIRES = ("mypy>=2.4,<2.5", "msgspec>=0.19")
"""What compiling needs: mypyc, and what the modules import while mypy checks their types.

mypyc's output works with the librt that its own release asks for, and newer ones. The bound on
mypy therefore goes with the one on librt in pyproject.toml: raise both together.
"""

MYPY_CONFIG = """
[mypy]
mypy_path = src
explicit_package_bases = True
follow_imports = silent
ignore_missing_imports = True
"""
"""How the types are read. Only errors in the compiled modules count: others import libraries that
are not there while a wheel is built, and are checked by `make check`."""

SWITCH = "ONCEFLOW_COMPILE"
ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "onceflow"

Settings = Mapping[str, object] | None

_extensions: list[Extension] = []


class CannotCompileError(Exception):
    """Why nothing was compiled, as a sentence without its full stop."""


def extensions() -> list[Extension]:
    """The extension modules of the build that runs now; setup.py asks for them."""
    return _extensions


# -- the hooks --------------------------------------------------------------------------------


def get_requires_for_build_sdist(config_settings: Settings = None) -> list[str]:
    """Name what the build environment needs beyond `requires` in pyproject.toml."""
    with _own_folder():
        return build_meta.get_requires_for_build_sdist(config_settings)


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """As for the source archive, and the compiler where it will be used."""
    with _own_folder():
        found = build_meta.get_requires_for_build_wheel(config_settings)
    return [*found, *_compiler_requires()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """As for a wheel, but no compiler where the machine code in the tree is up to date."""
    with _own_folder():
        found = build_meta.get_requires_for_build_editable(config_settings)
    return found if _up_to_date() else [*found, *_compiler_requires()]


def prepare_metadata_for_build_wheel(folder: str, config_settings: Settings = None) -> str:
    """Write the metadata of the wheel, which is the same compiled and plain."""
    with _own_folder():
        return build_meta.prepare_metadata_for_build_wheel(folder, config_settings)


def prepare_metadata_for_build_editable(folder: str, config_settings: Settings = None) -> str:
    """Write the metadata of the wheel, which is the same compiled and plain."""
    with _own_folder():
        return build_meta.prepare_metadata_for_build_editable(folder, config_settings)


def build_sdist(folder: str, config_settings: Settings = None) -> str:
    """Build the source archive; it holds the areas' files themselves, no symbolic links."""
    with _own_folder():
        return build_meta.build_sdist(folder, config_settings)


def build_wheel(
    folder: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build the wheel: compiled for this interpreter, or plain for all."""
    return _compiled_or_plain(
        lambda: build_meta.build_wheel(folder, config_settings, metadata_directory)
    )


def build_editable(
    folder: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """Build a wheel that points to the tree; machine code is put into the tree."""

    def build() -> str:
        return build_meta.build_editable(folder, config_settings, metadata_directory)

    if _wanted() != "0" and _up_to_date():
        _say("what is compiled in the tree is up to date")
        with _own_folder():
            return build()
    _remove_compiled()
    name = _compiled_or_plain(build, undo=_remove_compiled)
    if _compiled_files():
        _stamp().write_text(_digests())
    return name


# -- the decision -----------------------------------------------------------------------------


def _wanted() -> str:
    """The switch: "auto", "1" or "0"."""
    wanted = os.environ.get(SWITCH, "").strip().lower() or "auto"
    if wanted not in ("auto", "0", "1"):
        raise SystemExit(
            f"{SWITCH}={wanted!r}: must be auto (compile where that works), 1 (a build that "
            "cannot compile fails) or 0 (plain Python)"
        )
    return wanted


def _check_compiler() -> None:
    """Compile the smallest extension.

    Raises:
        CannotCompileError: This interpreter cannot use machine code of mypyc, or there is no C
            compiler, or no header files of Python.
    """
    if platform.python_implementation() != "CPython":
        raise CannotCompileError(f"mypyc does not serve {platform.python_implementation()}")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise CannotCompileError("the compiled modules rely on the GIL, and this Python has none")
    from setuptools._distutils.ccompiler import new_compiler
    from setuptools._distutils.sysconfig import customize_compiler

    compiler = new_compiler()
    customize_compiler(compiler)
    with tempfile.TemporaryDirectory() as work:
        source = Path(work, "probe.c")
        source.write_text("#include <Python.h>\n")
        compiler.add_include_dir(sysconfig.get_path("include"))
        compiler.add_include_dir(sysconfig.get_path("platinclude"))
        try:
            with _silent():
                compiler.compile([str(source)], output_dir=work)
        except Exception as error:  # noqa: BLE001 - whatever it is, the build goes on without
            command = " ".join(getattr(compiler, "compiler", ["cc"])[:1])
            raise CannotCompileError(
                f"the C compiler {command!r} is missing, or the header files of Python are "
                f"({error}); on Debian and Ubuntu: apt-get install gcc python3-dev"
            ) from None


def _compiler_requires() -> list[str]:
    if _wanted() == "0":
        return []
    if _wanted() == "auto":
        try:
            _check_compiler()
        except CannotCompileError:
            return []  # build_wheel says so
    return list(COMPILER_REQUIRES)


def _compiled_or_plain(build: Callable[[], str], undo: Callable[[], None] | None = None) -> str:
    """Build with machine code if that is wanted and works, otherwise without.

    Args:
        build: Builds with the extension modules that `extensions` returns.
        undo: Removes what a failed build leaves behind.
    """
    global _extensions
    wanted = _wanted()
    if wanted == "0":
        _say(f"plain Python, as {SWITCH}=0 asks for")
    else:
        try:
            with _own_folder() as work:
                _extensions = _translated(work)
                name = build()
            _say(f"compiled for {sys.implementation.cache_tag}")
            return name
        except (Exception, SystemExit) as error:
            if undo is not None:
                undo()
            if wanted == "1":
                raise SystemExit(f"onceflow: {SWITCH}=1, but: {error}") from error
            _say(
                f"NOT COMPILED: {error}. Plain Python is installed instead: it does the same, "
                f"and a record costs several times as much. {SWITCH}=1 makes this an error."
            )
        finally:
            _extensions = []
    with _own_folder():
        return build()


def _translated(work: Path) -> list[Extension]:
    """Translate the modules to C, and return what setuptools has to compile."""
    _check_compiler()
    try:
        from mypyc.build import mypycify
    except ImportError:
        needed = " ".join(f"'{requirement}'" for requirement in COMPILER_REQUIRES)
        raise CannotCompileError(f"mypy is not installed here: pip install {needed}") from None
    _say("compiling " + ", ".join(COMPILED))
    config = work / "mypy.ini"
    config.write_text(MYPY_CONFIG + f"cache_dir = {work}/cache\n")
    try:
        found: list[Extension] = mypycify(
            [f"--config-file={config}", *(f"src/onceflow/{name}.py" for name in COMPILED)],
            group_name="onceflow.sdk.compiled",
            opt_level="3",
            debug_level="0",
            target_dir=os.path.relpath(work / "c"),  # setuptools refuses absolute paths
        )
    except SystemExit:
        raise CannotCompileError("mypyc refuses the modules, for the reasons above") from None
    for extension in found:
        # Calls within the library are inlined then.
        extension.extra_compile_args.append("-fno-semantic-interposition")
    return found


def _say(text: str) -> None:
    print(f"onceflow: {text}", flush=True)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep what the compiler prints about a missing header to itself: the error says it."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    with open(os.devnull, "wb") as nothing:
        for number in (1, 2):
            os.dup2(nothing.fileno(), number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)


def _check_links() -> None:
    """Refuse a tree whose links became files: the package would be empty, without an error."""
    for path in PACKAGE.iterdir():
        if path.is_file() and not path.suffix and path.name != "py.typed":
            raise SystemExit(
                f"onceflow: src/onceflow/{path.name} must be a symbolic link to ../../{path.name}, "
                "and is a file: check the repository out with symbolic links "
                "(git config core.symlinks true), or install from the source archive"
            )


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    """Let setuptools build in a new folder below `build/`, which is removed afterwards.

    In `build/` itself it packs whatever an earlier build left there, renamed modules and machine
    code included.
    """
    _check_links()
    parent = ROOT / "build"
    parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent) as name:
        work = Path(name)
        config = work / "build.cfg"
        config.write_text(
            f"[build]\nbuild_base = {os.path.relpath(work)}\n"
            f"[egg_info]\negg_base = {os.path.relpath(work)}\n"
        )
        before = os.environ.get("DIST_EXTRA_CONFIG")
        os.environ["DIST_EXTRA_CONFIG"] = str(config)
        try:
            yield work
        finally:
            if before is None:
                del os.environ["DIST_EXTRA_CONFIG"]
            else:
                os.environ["DIST_EXTRA_CONFIG"] = before


# -- what is compiled in the tree ----------------------------------------------------------------


def _compiled_files() -> list[Path]:
    suffix = str(sysconfig.get_config_var("EXT_SUFFIX"))
    areas = sorted({name.partition("/")[0] for name in COMPILED})
    return [path for area in areas for path in sorted((PACKAGE / area).rglob("*" + suffix))]


def _stamp() -> Path:
    """Digests of the sources that the machine code in the tree was made of."""
    return PACKAGE / f"sdk/compiled{sysconfig.get_config_var('EXT_SUFFIX')}.sources"


def _digests() -> str:
    names = ["tools/build_backend.py", *(f"src/onceflow/{name}.py" for name in COMPILED)]
    found = [(hashlib.sha256((ROOT / name).read_bytes()).hexdigest(), name) for name in names]
    return "".join(f"{digest}  {name}\n" for digest, name in found)


def _up_to_date() -> bool:
    return _stamp().exists() and bool(_compiled_files()) and _stamp().read_text() == _digests()


def _remove_compiled() -> None:
    """Remove all of it: a compiled module works only with those it was compiled with."""
    for path in (*_compiled_files(), _stamp()):
        path.unlink(missing_ok=True)
