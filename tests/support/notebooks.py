"""Runs a notebook without Jupyter: its code cells in one namespace, with what each of them shows.

As a program it stores what the cells showed in the notebook: ``python notebooks.py NOTEBOOK``, run
in the folder that the notebook's imports are relative to.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """The cells that are run, in order."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def lines_of(text: str) -> list[str]:
    """Text as a notebook's file has it."""
    return text.splitlines(keepends=True)


def run_cell(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Run a cell and return its outputs: what it printed, and the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value, printed = None, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"<cell {number}>", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        text = lines_of(printed.getvalue())
        outputs.append({"name": "stdout", "output_type": "stream", "text": text})
    if value is not None:
        data = {"text/plain": lines_of(repr(value))}
        if hasattr(value, "_repr_svg_"):
            data = {"image/svg+xml": lines_of(value._repr_svg_()), "text/plain": ["<a picture>"]}
        result = {"data": data, "execution_count": number, "metadata": {}}
        outputs.append({**result, "output_type": "execute_result"})
    return outputs


def run_notebook(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Run all code cells and return the outputs of each."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return [
        run_cell("".join(cell["source"]), names, number)
        for number, cell in enumerate(code_cells(notebook), 1)
    ]


def main() -> None:
    """Run a notebook and store its outputs, or only print them with ``--print``."""
    path = Path(sys.argv[1])
    sys.path.insert(0, "")
    notebook = json.loads(path.read_text())
    found = run_notebook(notebook)
    if "--print" in sys.argv:
        print(json.dumps(found))
        return
    for number, (cell, outputs) in enumerate(zip(code_cells(notebook), found, strict=True), 1):
        cell |= {"execution_count": number, "outputs": outputs}
    path.write_text(json.dumps(notebook, indent=1) + "\n")


if __name__ == "__main__":
    main()
