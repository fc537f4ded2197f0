"""Goal: every public name has one place in the documentation, and no name there is made up.

Method: ``docs/api.md`` lists the names of each area under a heading ``## onceflow.<area>``, each
as a table row that begins with the name in backticks; the lists are compared with ``__all__``.
"""

from __future__ import annotations

import importlib
import inspect
import re

import house_rules
import pytest

AREAS = [f"onceflow.{area}" for area in house_rules.AREAS] + [
    "onceflow.broker_lite.testing",
    "onceflow.processors.testing",
    "onceflow.sdk.schema_registry",
    "onceflow.sdk.prometheus",
    "onceflow.sdk.tracing",
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
