"""Goal: a worker that ends by an error is replaced within bounds where that is declared, and what
it left is done once.

Method: applications in this process over the in-process broker, as bounded runs; handlers raise as
often as told. The bounds alone are tried on a clock that the test moves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from processor_processes import committed_values, fill

from onceflow.broker_lite import Broker
from onceflow.processors import (
    App,
    Output,
    ProcessingError,
    SlotInUseError,
    State,
    StateMismatchError,
    TooManyDeadLettersError,
    TopicSetupError,
)
from onceflow.processors.report import RunReport, TaskReport
from onceflow.processors.settings import AppSettings
from onceflow.processors.worker.replacing import Replacements
from onceflow.sdk.errors import ConfigError


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(settings={"group.min.session.timeout.ms": 100}) as broker:
        broker.create_topic("in", partitions=1)
        yield broker


def failing(broker: Broker, tmp_path: Path, failures: int, **settings: object) -> App:
    """Fails on one value, as often as told; that ends the worker."""
    app = App("replaced", broker.bootstrap_servers, state_dir=tmp_path, **settings)  # type: ignore[arg-type]
    left = [failures]

    @app.processor("in", to="out")
    def count(value: str, seen: State[int]) -> str:
        seen.set(seen.get(0) + 1)
        if value == "3" and left[0]:
            left[0] -= 1
            raise RuntimeError(value)
        return f"{value}:{seen.get()}"

    return app


def put(broker: Broker) -> list[bytes]:
    values = [b"%d" % number for number in range(6)]
    fill(broker.bootstrap_servers, "in", values, [b"k"] * 6)
    return [b"%d:%d" % (number, number + 1) for number in range(6)]


def test_a_new_worker_goes_on_from_what_is_committed(broker: Broker, tmp_path: Path) -> None:
    wanted = put(broker)
    report = failing(broker, tmp_path, 2, uncaught_error="replace").run(until_end=True)
    assert committed_values(broker.bootstrap_servers, "out") == wanted
    assert report == RunReport([TaskReport("in", 0, 6, 6, 0, 2)], True, 0)


async def test_a_new_worker_within_a_running_loop(broker: Broker, tmp_path: Path) -> None:
    wanted = await asyncio.to_thread(put, broker)
    app = failing(broker, tmp_path, 1, uncaught_error="replace")
    assert (await app.run_async(until_end=True)).records == 6
    assert await asyncio.to_thread(committed_values, broker.bootstrap_servers, "out") == wanted


def test_beyond_the_bound_the_error_is_raised(broker: Broker, tmp_path: Path) -> None:
    wanted = put(broker)
    app = failing(broker, tmp_path, 99, uncaught_error="replace", replacements_max=2)
    with pytest.raises(ProcessingError, match="in-0@3"):
        app.run(until_end=True)
    assert committed_values(broker.bootstrap_servers, "out") == wanted[:3]
    assert app._worker is None


def test_by_default_the_error_is_raised(broker: Broker, tmp_path: Path) -> None:
    put(broker)
    with pytest.raises(ProcessingError, match="in-0@3"):
        failing(broker, tmp_path, 1).run(until_end=True)


def test_what_a_new_worker_would_meet_too_is_raised_at_once(broker: Broker, tmp_path: Path) -> None:
    app = App("lost", broker.bootstrap_servers, state_dir=tmp_path, uncaught_error="replace")

    @app.processor("no-such-topic")
    def nothing(value: bytes) -> Output | None:
        return None

    with pytest.raises(TopicSetupError, match="no-such-topic"):
        app.run()


def test_bounds_of_replacing() -> None:
    now = [1_000.0]
    settings = AppSettings(
        uncaught_error="replace", replacements_max=2, replacement_window_ms=60_000
    )
    bounds = Replacements(settings, lambda: now[0])
    error = RuntimeError("x")
    assert [bounds.allow(error) for _ in range(3)] == [True, True, False]
    now[0] += 60
    assert not bounds.allow(error)
    now[0] += 0.001
    assert bounds.allow(error)
    flood = TooManyDeadLettersError("x", "in", 0, 0, 1)
    for never in (SlotInUseError("x"), StateMismatchError("x"), ConfigError("a", 1, "no"), flood):
        now[0] += 600
        assert not bounds.allow(never)
    assert not Replacements(AppSettings(), lambda: now[0]).allow(error)
    with pytest.raises(ConfigError, match="uncaught_error='restart'"):
        AppSettings(uncaught_error="restart")
