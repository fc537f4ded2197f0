"""``make sim``: runs seeds of the whole-system simulation.

``SEED=n`` replays one run and prints the history around what went wrong (all of it with
``ARGS=--full``). ``SEEDS=n`` runs many in two processes (``ARGS="--processes 1"`` in one), from
``FROM`` on; the first seed is a number from the clock by default, so that every use looks at new
ones. ``ARGS=--processors`` runs an application of processors in place of the other clients,
``ARGS=--database`` clients that keep what they do in a database, and
``ARGS="--processors --kind window"`` one of a kind.
"""

from __future__ import annotations

import argparse
import functools
import logging
import multiprocessing
import os
import re
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim_run import Result

PROCESSES = 2
DEFAULT_SEEDS = 200
SEEDS_A_LINE = 1_000
"""After how many seeds a line is written where there is no terminal."""

SHOWN_PROBLEMS = 12
logging.getLogger("onceflow").addHandler(logging.NullHandler())  # Of processes that died.


def fix_hash_seed() -> None:
    """Start again under a fixed hash seed, since the order of sets of names depends on it."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.argv])


PROCESSORS, DATABASE = "processors", "database"


def simulated(seed: int, runs: str, kind: str | None) -> Result:
    """Run one seed. What runs is imported here: the process may have to start a second time.

    Args:
        seed: The seed.
        runs: What runs in place of the usual clients; empty for these.
        kind: Which of them; None lets the seed decide.
    """
    kinds = kinds_of(runs) if kind is None else (kind,)
    if runs == PROCESSORS:
        from sim_processor_run import simulate_processors

        return simulate_processors(seed, kinds)
    if runs == DATABASE:
        from sim_sinks import simulate_stores

        return simulate_stores(seed, kinds)
    from sim_run import simulate

    return simulate(seed)


def kinds_of(runs: str) -> tuple[str, ...]:
    """The kinds of what runs, with repetitions as weights."""
    if runs == PROCESSORS:
        import sim_shapes

        return sim_shapes.KINDS
    if runs == DATABASE:
        import sim_sinks

        return sim_sinks.KINDS
    return ()


def replay(seed: int, *, full: bool, runs: str = "", kind: str | None = None) -> bool:
    """Run one seed and tell; True when all is well."""
    began_s = time.process_time()
    result = simulated(seed, runs, kind)
    cpu_s = time.process_time() - began_s
    if full:
        print("\n".join(str(event) for event in result.history.events))
    print(f"seed {seed}: history {result.digest}, {result.virtual_s:.1f} virtual seconds, "
          f"{cpu_s:.2f} seconds of CPU")  # fmt: skip
    print("  " + ", ".join(f"{name} {count}" for name, count in result.counts.items()))
    for problem in result.problems[:SHOWN_PROBLEMS]:
        print(f"* {problem}")
    if result.problems and not full:
        print(result.history.around(_named_in(result.problems)))
    return not result.problems


def _named_in(problems: list[str]) -> list[str]:
    """Records, transactions and clients that the problems name."""
    text = " ".join(problems[:3])
    return sorted(set(re.findall(r"[a-z]+\d+/\d+[.-]t?\d+|[a-z]+-\d+@\d+", text)))[:4]


def run_one(
    seed: int, *, runs: str, kind: str | None
) -> tuple[int, str, list[str], dict[str, int]]:
    """One seed in a process of its own."""
    result = simulated(seed, runs, kind)
    return seed, result.digest, result.problems, result.counts


def run_many(
    first: int,
    count: int,
    processes: int = PROCESSES,
    *,
    runs: str = "",
    kind: str | None = None,
) -> bool:
    """Run seeds in parallel; True when all is well."""
    began_s = time.monotonic()
    failed: list[int] = []
    totals: dict[str, int] = {}
    context = multiprocessing.get_context("spawn")
    seeds = range(first, first + count)
    run = functools.partial(run_one, runs=runs, kind=kind)
    with context.Pool(processes) as pool:
        for done, (seed, digest, problems, counts) in enumerate(
            pool.imap_unordered(run, seeds, chunksize=4), 1
        ):
            for name, number in counts.items():
                totals[name] = totals.get(name, 0) + number
            if problems:
                failed.append(seed)
                _clear_line()
                how = f" ARGS=--{runs}" if runs else ""
                how = f' ARGS="--{runs} --kind {kind}"' if kind else how
                print(f"seed {seed} ({digest}): make sim SEED={seed}{how}", flush=True)
                for problem in problems[:SHOWN_PROBLEMS]:
                    print(f"  * {problem}")
            _progress(done, count, len(failed), began_s)
    _clear_line()
    print(f"seeds {first} to {first + count - 1}: {len(failed)} failed, "
          f"{time.monotonic() - began_s:.0f} s; "
          + ", ".join(f"{name} {number:,}" for name, number in totals.items()))  # fmt: skip
    return not failed


def _progress(done: int, count: int, failed: int, began_s: float) -> None:
    if not sys.stderr.isatty():
        if done % SEEDS_A_LINE == 0:
            spent_s = time.monotonic() - began_s
            print(f"{done:,} seeds, {failed} failed, {spent_s:.0f} s", flush=True)
        return
    share = done / count
    left_s = (time.monotonic() - began_s) * (1 - share) / share
    bar = "#" * int(30 * share)
    print(f"\r[{bar:<30}] {done}/{count} seeds, {failed} failed, {left_s:.0f} s left ",
          end="", file=sys.stderr, flush=True)  # fmt: skip


def _clear_line() -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay one run")
    parser.add_argument("--seeds", type=int, default=DEFAULT_SEEDS, help="how many to run")
    parser.add_argument("--from", type=int, dest="first", default=int(time.time()) % 10**9)
    parser.add_argument("--processes", type=int, default=PROCESSES, help="how many run at once")
    beside = parser.add_mutually_exclusive_group()
    beside.add_argument(
        "--processors", dest="runs", action="store_const", const=PROCESSORS, default="",
        help="run an application",
    )  # fmt: skip
    beside.add_argument(
        "--database", dest="runs", action="store_const", const=DATABASE,
        help="run clients with a database",
    )  # fmt: skip
    parser.add_argument("--kind", help="kind of what runs, with --processors or --database")
    parser.add_argument("--full", action="store_true", help="print the whole history")
    options = parser.parse_args()
    if options.kind is not None and options.kind not in (known := kinds_of(options.runs)):
        names = ", ".join(sorted({*known})) or "those of --processors or --database"
        parser.error(f"--kind={options.kind}: must be one of {names}")
    if options.seed is not None:
        return not replay(options.seed, full=options.full, runs=options.runs, kind=options.kind)
    return not run_many(
        options.first, options.seeds, options.processes, runs=options.runs, kind=options.kind
    )


if __name__ == "__main__":
    fix_hash_seed()
    sys.exit(main())
