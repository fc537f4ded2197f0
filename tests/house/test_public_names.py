"""Goal: every public name has one place in the documentation, and no name there is made up.

Method: ``docs/api.md`` lists the names of each area under a heading ``## onceflow.<area>``, each
as a table row that begins with the name in backticks; the lists are compared with ``__all__``. What
the functions take and raise is read from their sources and looked for in their docstrings.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator

import house_rules
import pytest

AREAS = [f"onceflow.{area}" for area in house_rules.AREAS] + [
    "onceflow.broker_lite.testing",
    "onceflow.processors.testing",
    "onceflow.sdk.schema_registry",
    "onceflow.sdk.prometheus",
    "onceflow.sdk.tracing",
    "onceflow.transactions.sinks",
    "onceflow.transactions.outbox",
    "onceflow.transactions.two_phase",
]


def documented(area: str) -> list[str]:
    """Names that docs/api.md lists for an area."""
    text = (house_rules.ROOT / "docs" / "api.md").read_text()
    section = re.search(rf"^## {re.escape(area)}\n(.*?)(?=^## |\Z)", text, re.M | re.S)
    assert section, f"docs/api.md has no heading for {area}"
    return re.findall(r"^\| `([A-Za-z_]\w*)`", section[1], re.M)


@pytest.mark.parametrize("area", AREAS)
def test_public_names_equal_the_documentation(area: str) -> None:
    module = importlib.import_module(area)
    assert sorted(module.__all__) == sorted(documented(area))


@pytest.mark.parametrize("area", AREAS)
def test_public_names_exist_and_are_documented_in_place(area: str) -> None:
    module = importlib.import_module(area)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), f"{area}.{name} has no docstring"


def callables(area: str) -> Iterator[tuple[str, Callable[..., object]]]:
    """The public functions and methods of an area, inherited ones of ours included."""
    module = importlib.import_module(area)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value):
            for base in value.__mro__:
                if base.__module__.startswith("onceflow."):
                    for method, member in vars(base).items():
                        function = getattr(member, "fget", None) or inspect.unwrap(
                            getattr(member, "__func__", member)
                        )
                        if inspect.isfunction(function) and not method.startswith("_"):
                            yield f"{base.__name__}.{method}", function


NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def raises_itself(node: ast.AST) -> bool:
    """Whether a function's own body raises a new error; functions within it do not count."""
    return any(
        (isinstance(child, ast.Raise) and child.exc is not None)
        or (
            not isinstance(
                child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
            )
            and raises_itself(child)
        )
        for child in ast.iter_child_nodes(node)
    )


def untold(name: str, source: str, known: set[str]) -> list[str]:
    """What the docstring of a function leaves out; one may refer to that of a known name."""
    (node,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    text = ast.get_docstring(node) or ""
    if set(re.findall(r"\b[Ss]ee ``([\w.]+)``", text)) & known:
        return []
    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    missing = [
        argument.arg
        for argument in given
        if argument.arg not in ("self", "cls")
        and not re.search(rf"^    {argument.arg}: ", text, re.M)
    ]
    found = [f"{name}: {argument} is not under Args" for argument in missing]
    if "\nArgs:\n" not in text and found:
        found = [f"{name}: no Args"]
    if raises_itself(node) and "\nRaises:\n" not in text:
        found.append(f"{name}: no Raises")
    return found


@pytest.mark.parametrize("area", AREAS)
def test_arguments_and_errors_of_public_functions_are_told(area: str) -> None:
    told = dict(callables(area))
    found = [
        finding
        for name, function in told.items()
        if "typing.overload" not in (source := inspect.getsource(function))
        for finding in untold(name, source, told.keys() - {name})
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "left_out"),
    [
        ("def f(self, a):\n    '''Do.'''", ["f: no Args"]),
        (
            "def f(a, *, b):\n    '''Do.\n\n    Args:\n        a: One.\n    '''",
            ["f: b is not under Args"],
        ),
        ("def f():\n    '''Do.'''\n    raise ValueError('no')", ["f: no Raises"]),
        ("def f():\n    '''Do.'''\n    if g():\n        raise ValueError('no')", ["f: no Raises"]),
        ("def f():\n    '''Do.'''\n    try:\n        g()\n    except E:\n        raise", []),
        ("def f():\n    '''Do.'''\n    def g():\n        raise ValueError('no')", []),
        ("async def f(a):\n    '''See ``C.f``.'''", []),
        ("async def f(a):\n    '''See ``C.g``.'''", ["f: no Args"]),
        ("def f(a):\n    '''Do.\n\n    Args:\n        a: One.\n    '''", []),
    ],
)
def test_what_a_docstring_leaves_out_is_found(source: str, left_out: list[str]) -> None:
    assert untold("f", source, {"C.f"}) == left_out
