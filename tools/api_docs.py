"""Writes docs/api.md: the public names of every area with their first sentence.

``python tools/api_docs.py`` writes the file, ``--check`` only tells whether it is up to date. The
names come from each area's ``__all__``, the sentences from the docstrings, so that neither can
drift from the code.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from pathlib import Path

TARGET = Path(__file__).resolve().parents[1] / "docs" / "api.md"
AREAS = (
    "onceflow.sdk",
    "onceflow.sdk.schema_registry",
    "onceflow.sdk.prometheus",
    "onceflow.sdk.tracing",
    "onceflow.transactions",
    "onceflow.transactions.sinks",
    "onceflow.transactions.outbox",
    "onceflow.transactions.two_phase",
    "onceflow.processors",
    "onceflow.processors.testing",
    "onceflow.broker_lite",
    "onceflow.broker_lite.testing",
    "onceflow.spark_integration",
)
HEAD = """# Public names

Everything that an area's `__all__` lists is public and stays; everything else may change. The full
text of each is in its docstring (`help(onceflow.sdk.Producer)`). Written by `tools/api_docs.py`.
"""


def kind_of(value: object) -> str:
    """One word for a reader: class, error, function, module or value."""
    if inspect.isclass(value):
        return "error" if issubclass(value, BaseException) else "class"
    if inspect.ismodule(value):
        return "module"
    return "function" if callable(value) and not hasattr(value, "__origin__") else "value"


def first_sentence(value: object) -> str:
    """The docstring's first line, safe within a table."""
    if not (inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)):
        return ""
    text = inspect.getdoc(value) or _from_source(value)
    return text.split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


def _from_source(value: object) -> str:
    """The docstring of a function, which a compiled one does not carry."""
    module = importlib.import_module(getattr(value, "__module__", __name__))
    path = Path(module.__file__ or "")
    tree = ast.parse(path.with_name(path.name.partition(".")[0] + ".py").read_text())
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == getattr(value, "__name__", ""):
            return ast.get_docstring(node) or ""
    return ""


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for area in AREAS:
        module = importlib.import_module(area)
        parts.append(
            f"\n## {area}\n\n{first_sentence(module)}\n\n"
            "| name | is | what |\n| --- | --- | --- |\n"
        )
        for name in module.__all__:
            value = getattr(module, name)
            parts.append(f"| `{name}` | {kind_of(value)} | {first_sentence(value)} |\n")
    return "".join(parts)


def main() -> None:
    """Write or check."""
    text = page()
    if "--check" in sys.argv:
        if not TARGET.exists() or TARGET.read_text() != text:
            sys.exit("docs/api.md is out of date: run make fix")
        return
    TARGET.write_text(text)


if __name__ == "__main__":
    main()
