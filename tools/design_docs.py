"""Draws the state tables and the map of files into docs/design.md.

``python tools/design_docs.py`` writes diagrams and map between the marks in the page, ``--check``
only tells whether they are up to date. Arrows come from the tables that the code itself obeys, the
map from the first sentence of each module. Nothing about a state or a module is decided here.
"""

from __future__ import annotations

import ast
import enum
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from onceflow.broker_lite.coordinators.classic import states as group_states
from onceflow.broker_lite.coordinators.transactions import states as transaction_states
from onceflow.sdk.core.produce import transaction_manager

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "design.md"
SERVED = TARGET.parent.parent / "broker_lite" / "served_requests.py"
AREAS = ("sdk", "broker_lite", "transactions", "processors", "spark_integration")
OWN_AREAS = ("cli", "console")  # whose folders are in src/onceflow itself
S = TypeVar("S", bound=enum.Enum)
Arrow = tuple[str, str]


def arrows_of_successors(table: Mapping[S, Iterable[S]]) -> list[Arrow]:
    """Arrows of a table that says which states may follow each state."""
    order = list(table)
    return [(a.name, b.name) for a in order for b in order if b in set(table[a])]


def arrows_of_predecessors(table: Mapping[S, Iterable[S]], names: Mapping[S, str]) -> list[Arrow]:
    """Arrows of a table that says from which states each state may be entered."""
    order = list(table)
    return [(names[a], names[b]) for a in order for b in order if a in set(table[b])]


def diagram(arrows: list[Arrow], first: str, hidden: str | None = None, note: str = "") -> str:
    """A Mermaid state diagram.

    Args:
        arrows: Pairs of states.
        first: Where it begins.
        hidden: A state that every other one may enter; told by ``note`` instead of arrows.
        note: One sentence below the diagram.
    """
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {first}"]
    lines += [f"    {a} --> {b}" for a, b in arrows if hidden not in (a, b)]
    return "\n".join([*lines, "```", *([note] if note else [])])


def diagrams() -> dict[str, str]:
    """Every diagram of the page by its mark."""
    producer = transaction_manager.TRANSITIONS
    rows = "\n".join(f"| `{state.name}` | {state.value} |" for state in producer)
    transaction = {state: state.label for state in transaction_states.TransactionState}
    group = {state: state.value for state in group_states.GroupState}
    return {
        "producer-states": diagram(
            arrows_of_successors(producer),
            "UNINITIALIZED",
            "FATAL_ERROR",
            f"Every state but the last may also become `FATAL_ERROR`.\n\n"
            f"| state | the producer |\n| --- | --- |\n{rows}",
        ),
        "coordinator-states": diagram(
            arrows_of_predecessors(transaction_states.LEGAL_PREDECESSORS, transaction), "Empty"
        ),
        "group-states": diagram(
            arrows_of_predecessors(group_states.LEGAL_PREDECESSORS, group),
            "Empty",
            "Dead",
            "Every state may also become `Dead`.",
        ),
    }


def modules() -> list[Path]:
    """Every module of the product that is more than a list of names."""
    found = [path for area in AREAS for path in (ROOT / area).rglob("*.py")]
    own = ROOT / "src" / "onceflow"
    found += [*own.glob("*.py"), *(p for name in OWN_AREAS for p in (own / name).rglob("*.py"))]
    wanted = [path for path in found if path.name != "__init__.py"]
    return sorted(wanted, key=lambda path: (str(path.parent), path.name))


def first_sentence(path: Path) -> str:
    """The first sentence of a module's text, as one line."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    line = re.sub(r"\s+", " ", text.split("\n\n")[0])
    sentence = re.match(r".*?[.:](?= [A-Z]|$)", line)
    line = sentence[0] if sentence else line
    line = re.sub(r":\w+:`~?([^`]+)`", lambda m: f"`{m[1].rsplit('.', 1)[-1]}`", line)
    return line.replace("``", "`").replace("|", "\\|")


def file_map() -> str:
    """One table for each folder."""
    parts: list[str] = []
    folder = ""
    for path in modules():
        here = str(path.parent.relative_to(ROOT))
        if here != folder:
            folder = here
            parts.append(f"\n### {here}\n\n| module | |\n| --- | --- |\n")
        parts.append(f"| `{path.name}` | {first_sentence(path)} |\n")
    return "".join(parts)


def with_diagrams(text: str) -> str:
    """The page with its diagrams and its map drawn anew.

    Raises:
        ValueError: The marks of one are missing.
    """
    for name, drawn in {**diagrams(), "map": file_map()}.items():
        marks = rf"(<!-- begin {name} [^>]*-->\n)(?:.*?)(<!-- end {name} -->)"
        parts = re.split(marks, text, flags=re.S)
        if len(parts) != 4:
            raise ValueError(f"docs/design.md needs the marks of {name} exactly once")
        before, begin, end, after = parts
        text = f"{before}{begin}{drawn.rstrip()}\n{end}{after}"
    return text


def served_requests() -> str:
    """The module that lists what the broker's handlers declare, so that a start needs none of them.

    The handlers are the truth: this only saves importing all of them for ApiVersions.
    """
    from onceflow.broker_lite.registry import load_handlers

    rows = "".join(
        f'    {api_key}: ("{served.module}", {served.min_version}, {served.max_version}),\n'
        for api_key, served in load_handlers().served().items()
    )
    return f'''"""What the broker serves, as its handlers declare it. Made by tools/design_docs.py.

By api key: the handler's module, the lowest version that is advertised, the highest one.
"""

from __future__ import annotations

SERVED = {{
{rows}}}
'''


def main() -> None:
    """Write or check."""
    served = served_requests()
    if "--check" in sys.argv and SERVED.read_text() != served:
        sys.exit(f"{SERVED} is out of date: run python tools/design_docs.py")
    SERVED.write_text(served)
    text = TARGET.read_text()
    drawn = with_diagrams(text)
    if "--check" in sys.argv:
        if drawn != text:
            sys.exit("docs/design.md is out of date: run python tools/design_docs.py")
        return
    TARGET.write_text(drawn)


if __name__ == "__main__":
    main()
