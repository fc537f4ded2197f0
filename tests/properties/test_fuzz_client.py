"""Goal: whatever a broker answers, a client's calls end, with the truth or with an error of the
SDK; it stays small, and what it was told by whole answers it does not lose.

Method: the simulation's workers (producers with and without transactions, consumers, sessions,
administrators) over a network that hurts answers. Where only frames are hurt, the whole history is
checked as in any simulated run. Where answers lie, it is checked that everybody comes to an end
within the time limits once the answers are true again, with nothing but errors of the SDK, without
a traceback or a task left behind, in bounded memory. Seeds are fixed; ``ONCEFLOW_FUZZ_SEEDS`` runs
more.
"""

from __future__ import annotations

import dataclasses
import os
import tracemalloc

import pytest
from hostile_network import CONTENT, FRAMES, HostileNetwork
from sim_network import CALM
from sim_run import Result, simulate
from sim_setup import Setup, draw

SEEDS = int(os.environ.get("ONCEFLOW_FUZZ_SEEDS", "1"))
MEMORY_MAX = 96 * 1024 * 1024


class LyingNetwork(HostileNetwork):
    """Answers say what is not true."""

    how = CONTENT


def hostile_setup(seed: object, how: str) -> Setup:
    """A run whose only trouble is the answers; everybody takes part in turn."""
    setup = draw(f"hostile {how} {seed}")
    return dataclasses.replace(
        setup,
        troubles=["clock" if how == FRAMES else "cut"],
        storm=dataclasses.replace(CALM, delay_us=500, split=0.1),
        trouble_every_us=5_000_000,
        duration_us=2_000_000,
        units=8,
    )


def run(seed: int, how: str) -> Result:
    tracemalloc.start()
    try:
        network = HostileNetwork if how == FRAMES else LyingNetwork
        result = simulate(f"hostile {how} {seed}", hostile_setup(seed, how), network)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX
        return result
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_frames_that_lie_cost_a_client_nothing(seed: int) -> None:
    result = run(seed, FRAMES)
    assert result.problems == [], result.history.around(["hostile"])


@pytest.mark.parametrize("seed", range(1, SEEDS + 1))
def test_answers_that_lie_hang_nobody(seed: int) -> None:
    result = run(seed, CONTENT)
    assert result.breakdowns == [], result.history.around(["failed"])
