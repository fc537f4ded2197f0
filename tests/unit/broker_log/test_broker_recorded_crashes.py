"""Whatever write a whole broker dies at, and whatever a power loss takes: the answers stay true.

Method: one run of a broker (`recorded_broker`) records every change of its data folder. For a disk
that holds the first n of them, the next one torn or not, or what a power loss may leave of them, a
broker starts and is held against what had been answered by then; then the clients go on, and in the
end everything is there once. `make test` takes a sample of the n, `make chaos` each of them.
"""

from __future__ import annotations

import random

import pytest
from power_loss import disk_after_power_loss
from recorded_broker import Recovered, check_recovered, finish, record_run, torn_sizes

from onceflow.broker_lite.log import MemoryStorage

SAMPLE_STEP = 61
LOSSES = 3


def check(mode: str, version: int, *, step: int, first: int) -> None:
    """Processes that die: what is written is there, in order, the last write perhaps torn."""
    run, storage = record_run(mode, version)
    for writes in range(first, len(storage.writes) + 1, step):
        for torn_bytes in torn_sizes(storage, writes, random.Random(writes)):
            disk = storage.disk_after(writes, torn_bytes=torn_bytes)
            again = started(disk, mode, version, f"death at write {writes}, {torn_bytes} bytes")
            check_recovered(run, again, writes, lossy=False)
            finish(run, again)


def check_power_losses(mode: str, version: int, *, step: int, first: int) -> None:
    """Power losses: only what was flushed is sure to be there."""
    run, storage = record_run(mode, version, power=True)
    for writes in range(first, len(storage.writes) + 1, step):
        for loss in range(LOSSES):
            disk = disk_after_power_loss(storage, writes, random.Random(f"{writes} {loss}"))
            again = started(disk, mode, version, f"power loss {loss} at write {writes}")
            check_recovered(run, again, writes, lossy=mode == "kafka")
            if mode != "kafka":
                finish(run, again)


def started(disk: MemoryStorage, mode: str, version: int, what: str) -> Recovered:
    print(what)  # shown with a failure
    again = Recovered(disk, {"onceflow.durability": mode}, version)
    again.create_topics()
    return again


@pytest.mark.parametrize("version", [1, 2])
def test_death_at_any_write_of_a_sample(version: int) -> None:
    check("kafka", version, step=SAMPLE_STEP, first=version * 7)


@pytest.mark.parametrize(("mode", "version"), [("group", 1), ("group", 2), ("always", 2)])
def test_power_loss_at_any_write_of_a_sample(mode: str, version: int) -> None:
    check_power_losses(mode, version, step=SAMPLE_STEP, first=version * 11)


def test_power_loss_in_mode_kafka_shows_nothing_aborted_and_nothing_twice() -> None:
    check_power_losses("kafka", 2, step=SAMPLE_STEP, first=5)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["kafka", "group", "always"])
@pytest.mark.parametrize("version", [1, 2])
def test_death_at_every_write(mode: str, version: int) -> None:
    check(mode, version, step=1, first=0)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["kafka", "group", "always"])
@pytest.mark.parametrize("version", [1, 2])
def test_power_loss_at_every_write(mode: str, version: int) -> None:
    check_power_losses(mode, version, step=1, first=0)
