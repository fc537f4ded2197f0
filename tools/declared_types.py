"""Holds that every public name has a declared type, and declares what can be declared by machine.

``python tools/declared_types.py`` writes the type that basedpyright infers to where an attribute or
a variable is first assigned; ``--check`` only tells what is missing. What is left needs a hand.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILT_IN = {
    "int",
    "bool",
    "str",
    "float",
    "bytes",
    "None",
    "list",
    "dict",
    "tuple",
    "set",
    "object",
}
HOMES = {"Logger": "logging", "AbstractEventLoop": "asyncio", "Pattern": "re"}
"""Modules of types that sources name by their module."""
UNDOCUMENTED = re.compile(r"docstring|default value")


@dataclass(frozen=True)
class Finding:
    """A name without a declared type.

    Attributes:
        name: Full name.
        path: Its file.
        line: Line from 0.
        message: What the checker says.
    """

    name: str
    path: Path
    line: int
    message: str

    @property
    def inferred(self) -> str | None:
        """The type that the checker infers, None if it is another complaint."""
        match = re.search(r'^\s*Inferred type is "(.*)"$', self.message, re.M)
        return match[1] if match and self.message.startswith("Type is missing") else None


def findings() -> tuple[float, list[Finding]]:
    """How complete the types are, from 0 to 1, and what is missing."""
    tool = str(Path(sys.executable).with_name("basedpyright"))
    command = [tool, "--verifytypes", "onceflow", "--ignoreexternal", "--outputjson"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "VIRTUAL_ENV": sys.prefix}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ['PATH']}"
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    report = json.loads(done.stdout)["typeCompleteness"]
    found = [
        Finding(
            symbol["name"],
            Path(entry["file"]).resolve(),
            entry["range"]["start"]["line"],
            entry["message"],
        )
        for symbol in report["symbols"]
        for entry in symbol["diagnostics"]
        if "range" in entry and not UNDOCUMENTED.search(entry["message"])
    ]
    return float(report["completenessScore"]), found


def first_assignment(text: str, attribute: str, line: int) -> int:
    """Line where an attribute of the class around a line is assigned in ``__init__``."""
    for cls in ast.walk(ast.parse(text)):
        if isinstance(cls, ast.ClassDef) and cls.lineno <= line + 1 <= (cls.end_lineno or 0):
            for function in cls.body:
                if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                    for node in ast.walk(function):
                        if (
                            isinstance(node, ast.Assign)
                            and len(node.targets) == 1
                            and ast.unparse(node.targets[0]) == attribute
                        ):
                            return node.lineno - 1
    return line


def bound_names(text: str) -> set[str]:
    """Names that a type can be written with at the top of a module."""
    names = set(BUILT_IN)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    for statement in ast.parse(text).body:
        if isinstance(statement, ast.ClassDef):
            names.add(statement.name)
    return names


def spelled(inferred: str, bound: set[str]) -> str | None:
    """The inferred type as a module can write it; None if it would need a name of its own."""

    def spell(match: re.Match[str]) -> str:
        name = match[0]
        home = HOMES.get(name)
        return f"{home}.{name}" if name not in bound and home in bound else name

    kind = re.sub(r"(?<![\w.])[A-Za-z_]\w*", spell, inferred)
    roots = re.findall(r"(?<![\w.])[A-Za-z_]\w*", kind)
    return kind if set(roots) <= bound else None


def declare(finding: Finding) -> bool:
    """Write the inferred type to the source; tells whether that was possible."""
    inferred = finding.inferred
    text = finding.path.read_text()
    lines = text.split("\n")
    match = re.match(r"\s*(self\.\w+|\w+) = ", lines[finding.line])
    if inferred is None or match is None or re.search(r'["@]|->|Unknown|Module', inferred):
        return False
    kind = spelled(inferred, bound_names(text))
    if kind is None:
        return False
    place = first_assignment(text, match[1], finding.line)
    if f"{match[1]} = " not in lines[place]:
        return False
    lines[place] = lines[place].replace(f"{match[1]} = ", f"{match[1]}: {kind} = ", 1)
    finding.path.write_text("\n".join(lines))
    return True


def main() -> None:
    """Write or check."""
    score, found = findings()
    if "--check" not in sys.argv:
        places = {(f.path, f.line): f for f in found}
        if sum(declare(finding) for finding in places.values()):
            score, found = findings()
    causes = [finding for finding in found if "partially unknown" not in finding.message]
    for finding in causes or found:
        where = finding.path.relative_to(ROOT)
        print(f"{where}:{finding.line + 1} {finding.name}: {finding.message.splitlines()[0]}")
    if score < 1:
        sys.exit(f"{score:.2%} of the public names have a known type; run make fix")


if __name__ == "__main__":
    main()
