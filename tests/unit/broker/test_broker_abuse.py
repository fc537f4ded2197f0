"""Goal: clients without manners, deaths and full disks cost nothing that was acknowledged.

Method: `Abuser` sends random requests of every kind with identities, sequences and sessions of any
age to a broker without sockets, while topics come and go, time jumps and the clock is set back.
Meanwhile the process dies at random changes of its folder, or the disk refuses them. No request may
end in anything but an answer or a closed connection; in the end no transaction hangs, and what was
acknowledged is stored once. Seeds are fixed, so a failure comes back.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator

import pytest
from broker_abuser import Abuser
from coordinator_bench import ProcessDied
from coordinator_processor import DyingStorage

from onceflow.broker_lite.testing.failing_storage import FailingStorage

STEPS = 300


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of refusals are meant to be logged; nobody reads them here."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def settings_for(rng: random.Random) -> dict[str, object]:
    early = rng.random() < 0.3
    return {
        "onceflow.transaction.version": rng.choice([0, 1, 2, 2]),
        "onceflow.end.txn.early.answer": early,
        "onceflow.end.txn.marker.delay.ms": rng.choice([0, 500]) if early else 0,
    }


def finish(abuser: Abuser) -> None:
    for clean in (False, True):
        abuser.restart(clean=clean)
        abuser.finish()
        abuser.check()


@pytest.mark.parametrize("seed", range(24))
def test_deaths_under_abuse(seed: int) -> None:
    rng = random.Random(seed)
    storage = DyingStorage()
    abuser = Abuser(storage, seed, settings_for(rng))
    for _ in range(STEPS):
        chance = rng.random()
        if chance < 0.004:
            abuser.restart(clean=True, clock_step_ms=rng.choice([0, -100_000, 5_000]))
        elif chance < 0.02:
            storage.die_after = storage.writes + rng.randint(1, 12)
            storage.torn = rng.random() < 0.5
        try:
            abuser.step()
        except ProcessDied:
            abuser.restart(clean=False, clock_step_ms=rng.choice([0, 0, -100_000]))
    storage.die_after = None
    finish(abuser)


@pytest.mark.parametrize("seed", range(24))
def test_full_disks_under_abuse(seed: int) -> None:
    rng = random.Random(seed)
    storage = FailingStorage()
    abuser = Abuser(storage, seed, settings_for(rng))
    for _ in range(STEPS):
        chance = rng.random()
        if chance < 0.01:
            abuser.restart(clean=rng.random() < 0.5)
        elif chance < 0.06:
            storage.fail_write(
                len(storage.writes) + rng.randint(0, 6), written_bytes=rng.choice([0, 0, 1, 70])
            )
        abuser.step()
    finish(abuser)
