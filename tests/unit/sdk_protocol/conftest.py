"""Record tests run once with each engine: the kernel as it is here, and aiokafka's extension."""

from __future__ import annotations

import pytest

from onceflow.sdk.protocol import batch_building, batch_reading, record_validation


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test of a module named test_records_* with both engines."""
    if metafunc.module.__name__.rpartition(".")[2].startswith("test_records_"):
        metafunc.fixturenames.append("record_engine")
        metafunc.parametrize("record_engine", ["kernel", "extension"], indirect=True)


@pytest.fixture
def record_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Use one engine for the test; the kernel also where it is plain Python."""
    for module in (batch_building, batch_reading, record_validation):
        monkeypatch.setattr(module, "kernel_in_use", lambda: request.param == "kernel")
    return str(request.param)
