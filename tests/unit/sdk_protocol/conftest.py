"""Record tests run once with each engine: the kernel as it is here, and as plain Python."""

from __future__ import annotations

import plain_modules
import pytest


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test of a module named test_records_* with both engines."""
    if metafunc.module.__name__.rpartition(".")[2].startswith("test_records_"):
        metafunc.fixturenames.append("record_engine")
        metafunc.parametrize("record_engine", plain_modules.ENGINES, indirect=True)


@pytest.fixture
def record_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Use one engine for the test."""
    plain_modules.use(request.param, monkeypatch)
    return str(request.param)
