"""Goal: the samples that the type check reads are declared, and work as plain functions.

Method: their file is run; each function is called without a driver, and the topology is built.
"""

from __future__ import annotations

import runpy
from pathlib import Path

SAMPLES = Path(__file__).resolve().parents[2] / "typing" / "processing_samples.py"


def test_samples_are_plain_functions() -> None:
    found = runpy.run_path(str(SAMPLES))
    found["check"]()
    names = {node.name for node in found["app"].topology().working}
    assert {"shout", "count", "total", "paid", "visit", "enrich", "settle", "silent"} <= names
