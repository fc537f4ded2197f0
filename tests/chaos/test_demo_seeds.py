"""Goal: the demo's promise does not depend on the moments at which it kills.

Method: the whole demo, every flight, once for each of ten seeds; each run kills a worker, the
broker and the Spark driver at other moments and compares the result with the file. About two
minutes a seed on two cores: ``make chaos ARGS="-k demo"``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 300


@pytest.mark.chaos
@pytest.mark.spark
@pytest.mark.timeout(SECONDS_MAX + 30)
@pytest.mark.parametrize("seed", range(10))
def test_demo_loses_and_repeats_nothing(seed: int, tmp_path: Path) -> None:
    report = tmp_path / "flights.html"
    command = [sys.executable, "-m", "examples.flights", "--seed", str(seed)]
    done = subprocess.run(
        [*command, "--seconds", "40", "--report", str(report)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kills survived           │ 3" in done.stdout
    assert "Every flight arrived exactly once" in report.read_text()
