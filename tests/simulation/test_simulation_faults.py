"""Goal: the simulation would notice: each way of breaking the product is found within some seeds.

Method: a fault is put into the product in memory, and seeds are run until the checker objects with
one of the rules that the fault breaks. A few quick ones belong to every run of the tests; all of
them are run by ``pytest -m chaos tests/simulation``.
"""

from __future__ import annotations

from types import MethodDescriptorType

import pytest
from sim_faults import FAULTS, setup_for
from sim_run import simulate

QUICK = (
    "duplicates are not recognised",
    "last stable offset passes open transactions",
    "readers do not hide aborted records",
    "an abort is carried out as a commit",
    "a marker says the contrary",
    "a write is acknowledged and not done",
    "compaction drops everything",
)


def seeds_until_found(name: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many seeds it took to find a fault."""
    fault = FAULTS[name]
    # With the product whole, the same runs are fine: what is found is the fault.
    assert simulate(1, setup_for(fault, 1)).problems == []
    fault.apply(monkeypatch.setattr)
    seen: list[str] = []
    for seed in range(1, fault.seeds + 1):
        problems = simulate(seed, setup_for(fault, seed)).problems
        if any(problem.startswith(fault.rules) for problem in problems):
            return seed
        seen += problems[:1]
    pytest.fail(f"{name}: not found in {fault.seeds} seeds; other problems: {seen[:5]}")


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_breaks_is_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(owner: object, attribute: str, value: object) -> None:
        # Compiled code calls the methods of its own classes without looking them up. A fault has
        # to replace one that plain code calls, or it breaks nothing.
        is_compiled = isinstance(vars(owner).get(attribute), MethodDescriptorType)
        assert not (is_compiled and attribute.startswith("_")), f"{owner} calls {attribute} itself"
        monkeypatch.setattr(owner, attribute, value)

    FAULTS[name].apply(replace)


@pytest.mark.sim
@pytest.mark.parametrize("name", QUICK)
def test_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"{name}: found by seed {seeds_until_found(name, monkeypatch)}")


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in QUICK])
def test_every_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"{name}: found by seed {seeds_until_found(name, monkeypatch)}")
