"""Goal: whoever checks types against this package is told every one. (``make check`` runs mypy.)

Method: ``basedpyright --verifytypes`` over the package, by the tool that also declares what is
missing (``make fix``).
"""

from __future__ import annotations

import importlib
import subprocess
import sys

import house_rules
import pytest


def run(*command: str) -> str:
    """Run a tool at the top of the tree; gives what it printed, and fails with it."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=house_rules.ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_public_name_has_a_declared_type() -> None:
    run("tools/declared_types.py", "--check")


@pytest.mark.parametrize(
    ("module", "inferred", "written"),
    [
        ("import re", "Pattern[str]", "re.Pattern[str]"),
        ("import re", "dict[str, Pattern[str]]", "dict[str, re.Pattern[str]]"),
        ("from re import Pattern", "Pattern[str]", "Pattern[str]"),
        ("import logging", "Logger", "logging.Logger"),
        ("class Rule: ...", "Rule | None", "Rule | None"),
        ("'''A Pattern of words.'''", "Pattern[str]", None),
        ("import asyncio  # not a Logger", "Logger", None),
        ("def Rule(): ...", "Rule", None),
    ],
)
def test_only_types_that_the_module_can_name_are_declared(
    module: str, inferred: str, written: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(house_rules.ROOT / "tools")
    tool = importlib.import_module("declared_types")
    assert tool.spelled(inferred, tool.bound_names(module)) == written
