"""Goal: a change that breaks every run of the simulation is noticed before it is shared.

Method: one short seed of each kind, as ``make sim`` replays it; ``make check`` runs this file.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MAIN = Path(__file__).with_name("sim_main.py")


@pytest.mark.parametrize("kind", [(), ("--processors",), ("--database",)], ids=repr)
def test_short_seed(kind: tuple[str, ...]) -> None:
    result = subprocess.run(
        [sys.executable, str(MAIN), "--seed", "1", *kind],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "0"},  # Or it would start a second time.
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "seed 1: history" in result.stdout
