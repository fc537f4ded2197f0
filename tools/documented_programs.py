"""The programs of README.md and docs/*.md as modules, for mypy.

``python tools/documented_programs.py`` writes the python blocks of each section, which are one
program, to ``.setup/programs/documented/PAGE_SECTION/``. Every line keeps its number, so that mypy
names the line of the page. A block that begins with ``# name.py`` becomes that module; the other
modules of its section import it from there.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / ".setup" / "programs"
PACKAGE = "documented"
FILE_NAME = re.compile(r"# (\w+)\.py$")


def modules_of(page: str, text: str) -> dict[str, str]:
    """Modules of a page by dotted name below the package.

    Args:
        page: What the names begin with.
        text: The page.
    """
    found: dict[str, list[str]] = {}
    lines = text.splitlines()
    section, language, module = 0, None, ""
    for number, line in enumerate(lines):
        if language is not None:
            if line == "```":
                language = None
            elif language == "python":
                found.setdefault(module, [""] * len(lines))[number] = line
        elif line.startswith("```"):
            language = line[3:]
            named = FILE_NAME.match(lines[number + 1])
            module = f"{page}_{section}.{named[1] if named else 'program'}"
        elif re.match(r"#{1,2} ", line):
            section += 1
    return {name: _import_siblings(name, written, set(found)) for name, written in found.items()}


def _import_siblings(name: str, lines: list[str], modules: set[str]) -> str:
    section = name.partition(".")[0]

    def full(found: re.Match[str]) -> str:
        sibling = f"{section}.{found[1]}"
        return f"from {PACKAGE}.{sibling} import" if sibling in modules else found[0]

    return "".join(re.sub(r"^from (\w+) import", full, line) + "\n" for line in lines)


def pages() -> Iterator[tuple[str, str]]:
    """Names, usable as those of modules, and texts of all pages."""
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        yield re.sub(r"\W", "_", path.stem).lower(), path.read_text()


def main() -> None:
    """Write all modules anew."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    for page, text in pages():
        for name, program in modules_of(page, text).items():
            path = FOLDER / PACKAGE / f"{name.replace('.', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(program)


if __name__ == "__main__":
    main()
