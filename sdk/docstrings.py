"""Docstrings that users read at run time, such as what an error means, also under ``python -OO``.

That switch drops all docstrings; here they are read from the source then, which stays beside the
bytecode. What is done with the text is not decided here.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import cache


def docstring(owner: type[object] | Callable[..., object]) -> str:
    """The docstring without its indentation, empty where there is none.

    Args:
        owner: A class or function at the top of a module.
    """
    text = owner.__doc__ or ""
    if sys.flags.optimize > 1:  # What is there then was made, as `dataclass` does.
        text = _of_source(owner.__module__).get(owner.__name__, "") or text
    return inspect.cleandoc(text)  # Before Python 3.13 the indentation is still there.


@cache
def _of_source(module_name: str) -> dict[str, str]:
    """Docstrings of a module's classes and functions by name; none where the source is not."""
    import ast  # Late: only -OO needs it.

    try:
        tree = ast.parse(inspect.getsource(sys.modules[module_name]))
    except (OSError, TypeError, KeyError, SyntaxError):
        return {}
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {
        node.name: ast.get_docstring(node) or "" for node in tree.body if isinstance(node, kinds)
    }
