"""The house rules as functions over source text, so that the rules themselves can be tested.

Each function gives a list of findings as ``path:line message``; an empty list means that all is
well. What counts as too long is decided here; exceptions are kept in ``tests/house/ratchet.json``.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parents[2]
AREAS = ("sdk", "broker_lite", "transactions", "processors", "spark_integration")
OWN_AREAS = ("cli", "console")
"""Areas whose folders are in src/onceflow itself."""
FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 900
"""Most lines of a module: a class that is one subject is not cut by size."""
BANNED_MODULES = {"utils.py", "helpers.py", "common.py", "types.py", "misc.py"}
BANNED_NAMES = {
    "corr_id": "correlation_id",
    "topic_uuid": "topic_id",
    "tid": "transactional_id",
    "txn_id": "transactional_id",
    "leo": "log_end_offset",
    "hwm": "high_watermark",
    "required_acks": "acks",
}
_LITERAL = {
    *(ast.Constant, ast.Tuple, ast.Load, ast.UnaryOp, ast.USub, ast.BinOp, ast.Mult, ast.Pow),
    *(ast.Sub, ast.LShift, ast.Call, ast.Name, ast.keyword),
}
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def source_files() -> Iterator[Path]:
    """Every module of the product, by its real place (not through the links)."""
    for area in AREAS:
        yield from sorted((ROOT / area).rglob("*.py"))
    own = ROOT / "src" / "onceflow"
    folders = [path for name in OWN_AREAS for path in (own / name).rglob("*.py")]
    yield from sorted([*own.glob("*.py"), *folders])


def name_of(path: Path) -> str:
    """The path as findings name it."""
    return str(path.relative_to(ROOT))


parsed = functools.cache(ast.parse)
"""Several rules look at each file; it is parsed once."""


def long_functions(name: str, text: str) -> dict[str, int]:
    """Functions over the limit: ``path::function`` -> lines."""
    found = {}
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                found[f"{name}::{node.name}"] = lines
    return found


def long_modules(name: str, text: str) -> dict[str, int]:
    """The module itself when it is over the limit: path -> lines."""
    lines = text.count("\n")
    return {name: lines} if lines > MODULE_LINES_MAX else {}


def second_spellings(files: Mapping[str, str]) -> list[str]:
    """Constants and numbered enums that a second module spells out instead of importing them.

    A constant counts when name (without the leading underscore) and value are the same in two
    modules; an enum when two of its members have the name and the number of another's.

    Args:
        files: Texts by path.
    """
    constants: dict[tuple[str, str], list[str]] = {}
    enums: list[tuple[str, set[tuple[str, str]]]] = []
    for name, text in files.items():
        for node in parsed(text).body:
            if isinstance(node, ast.ClassDef) and any("IntEnum" in ast.dump(b) for b in node.bases):
                enums.append((f"{name}::{node.name}", _members(node)))
            for constant in _constants(node):
                constants.setdefault(constant, []).append(name)
    findings = [
        f"{places[-1]} {name} = {value} is spelt in {places[0]} too"
        for (name, value), places in constants.items()
        if len(places) > 1
    ]
    findings += [
        f"{place} repeats members of {other}"
        for number, (place, members) in enumerate(enums)
        for other, known in enums[:number]
        if len(members & known) > 1
    ]
    return findings


def _constants(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """Name and value of a constant that a module's statement makes of literals."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        targets = [node.target]
    for target in targets:
        if isinstance(target, ast.Name) and target.id.isupper():
            value = cast("ast.Assign | ast.AnnAssign", node).value
            made = {type(part) for part in ast.walk(cast("ast.expr", value))}
            if ast.Constant in made and made <= _LITERAL and "TypeVar" not in ast.dump(value):
                yield target.id.lstrip("_"), ast.unparse(cast("ast.expr", value))


def _members(enum: ast.ClassDef) -> set[tuple[str, str]]:
    return {
        (ast.unparse(target), ast.unparse(node.value))
        for node in enum.body
        if isinstance(node, ast.Assign)
        for target in node.targets
    }


def over_ratchet(found: Mapping[str, int], ratchet: Mapping[str, int]) -> list[str]:
    """What is too long and not excused, longer than its excuse, or excused without need."""
    findings = [
        f"{place} has {lines} lines (allowed: {ratchet.get(place, 'the general limit')})"
        for place, lines in found.items()
        if lines > ratchet.get(place, 0)
    ]
    findings += [
        f"{place} may be {allowed} lines but has {found.get(place, 'fewer than the limit')}: "
        "lower the ratchet"
        for place, allowed in ratchet.items()
        if found.get(place, 0) < allowed
    ]
    return findings


def banned_identifiers(name: str, text: str) -> list[str]:
    """Variables, arguments and attributes that Kafka has another word for."""
    findings = []
    for node in ast.walk(parsed(text)):
        word = None
        if isinstance(node, ast.Name):
            word = node.id
        elif isinstance(node, ast.Attribute):
            word = node.attr
        elif isinstance(node, ast.arg):
            word = node.arg
        if word in BANNED_NAMES:
            line = getattr(node, "lineno", 0)
            findings.append(f"{name}:{line} {word}: write {BANNED_NAMES[word]}")
    return findings


def imported_packages(text: str) -> set[str]:
    """The top-level names that a module imports, at its start or within functions.

    Type checkers bring ``typing_extensions``: an import of it that only they read does not count.
    """
    found = set()
    guards = [n for n in ast.walk(parsed(text)) if isinstance(n, ast.If)]
    checked = {
        node
        for guard in guards
        if ast.unparse(guard.test) == "TYPE_CHECKING"
        for node in guard.body
        if isinstance(node, ast.ImportFrom) and node.module == "typing_extensions"
    }
    for node in ast.walk(parsed(text)):
        if node in checked:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def unfinished_comments(name: str, text: str) -> list[str]:
    """Comments that promise to finish something later."""
    findings: list[str] = []
    if not UNFINISHED.search(text):
        return findings
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and UNFINISHED.search(token.string):
            findings.append(f"{name}:{token.start[0]} {token.string}")
    return findings


JSON_WRITERS = frozenset({"json.dumps", "json.dump", "json.JSONEncoder"})


def lenient_json(name: str, text: str) -> list[str]:
    """JSON written in a way that lets NaN through: as a word that is no JSON, or as null."""
    if name == "sdk/serde.py":
        return []  # home of the one writer
    findings = []
    for node in ast.walk(parsed(text)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        strict = any(
            word.arg == "allow_nan" and ast.unparse(word.value) == "False" for word in node.keywords
        )
        if (called in JSON_WRITERS and not strict) or called.startswith("msgspec.json.enc"):
            findings.append(f"{name}:{node.lineno} {called}: use onceflow.sdk.serde.to_json")
    return findings


def missing_docstrings(name: str, text: str) -> list[str]:
    """A module, public class or public function of module level without a docstring."""
    tree = parsed(text)
    findings = [] if ast.get_docstring(tree) else [f"{name}:1 module without a docstring"]
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not node.name.startswith("_") and not ast.get_docstring(node):
            findings.append(f"{name}:{node.lineno} {node.name} without a docstring")
    return findings


def sleeps_in_test(name: str, text: str) -> list[str]:
    """``time.sleep`` and positive ``asyncio.sleep`` in tests, which should wait on a condition."""
    findings = []
    for node in ast.walk(parsed(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr != "sleep" or not isinstance(node.func.value, ast.Name):
            continue
        argument = node.args[0] if node.args else None
        yields_only = isinstance(argument, ast.Constant) and argument.value == 0
        if node.func.value.id in {"time", "asyncio"} and not yields_only:
            findings.append(f"{name}:{node.lineno} {node.func.value.id}.sleep")
    return findings


def top_names(text: str) -> set[str]:
    """Names that a module defines at its top, also under an ``if`` or ``try``."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(parsed(text).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        else:
            waiting.extend(ast.iter_child_nodes(node))
    return found


def missing_support_names(name: str, text: str) -> list[str]:
    """What a test takes from a module of ``tests/support`` that is not in it."""
    findings = []
    for node in ast.walk(parsed(text)):
        if not isinstance(node, ast.ImportFrom) or node.level or not node.module:
            continue
        module = ROOT / "tests" / "support" / f"{node.module}.py"
        if module.is_file():
            there = top_names(module.read_text())
            findings += [
                f"{name}:{node.lineno} {node.module} has no {alias.name}"
                for alias in node.names
                if alias.name not in there
            ]
    return findings
