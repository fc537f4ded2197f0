"""Everything side by side: our clients and the published ones, on our broker and on Apache Kafka.

Starts both brokers on this machine, runs every case once a round, each in a process of its own, and
prints the median of the rounds with its least and greatest as a table, and the ratios that matter
(`suite_report.py`). One JSON line a run goes to ``--out``. Nothing else should run meanwhile; the
load is printed.

    python bench/suite.py --rounds 3 --out results.jsonl
    python bench/suite.py --only produce consume --sizes 100 1024 --compressions none lz4
    python bench/suite.py --only transactions --brokers onceflow
    python bench/suite.py --table results.jsonl      # only print what was measured
    python bench/suite.py --draw results.jsonl       # the same as pictures, docs/bench-*.svg
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from suite_report import draw, table

HERE = Path(__file__).resolve().parent
DOCS = HERE.parent / "docs"
BENCHES = ("produce", "consume", "one-record", "latency", "transactions", "client-footprint")
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

CONFLUENT_TUNED = (
    *("--set", "linger.ms=20", "--set", "batch.size=1000000"),
    *("--set", "batch.num.messages=100000", "--set", "queue.buffering.max.messages=1000000"),
)
PRODUCED = {
    "onceflow": 600_000,
    "onceflow-async": 600_000,
    "onceflow-many": 1_500_000,
    "onceflow-columns": 1_500_000,
    "confluent": 600_000,
    "confluent-batch": 600_000,
    "aiokafka": 100_000,
    "kafka-python": 100_000,
}
"""Records that a client sends, so that each takes about a second."""
FILLED = 3_000_000
"""Records of a topic that is read: as with producing, the fastest then take about half a second."""
CONSUMED = {
    **dict.fromkeys(("onceflow", "onceflow-columns", "onceflow-values"), FILLED),
    **dict.fromkeys(("onceflow-async", "onceflow-columns-async", "onceflow-values-async"), FILLED),
    "confluent": FILLED,
    "aiokafka": FILLED // 6,
    "kafka-python": FILLED // 15,
}
ONE_RECORD = ("onceflow", "onceflow-async", "confluent", "aiokafka", "kafka-python")
FOOTPRINT = ("onceflow", "confluent", "aiokafka", "kafka-python")
HALF_LOAD = 300_000
"""Records a second for the latency: about half of what either broker takes from confluent-kafka."""

Line = dict[str, object]


class Case(NamedTuple):
    """One program with one client: what is measured, and how it is called."""

    bench: str
    client: str
    size: int
    arguments: tuple[str, ...] = ()
    compression: str = "none"


def cases(sizes: Sequence[int], compressions: Sequence[str]) -> list[Case]:
    """All cases; what does not depend on size and compression once."""
    found: list[Case] = []
    for size, compression in itertools.product(sizes, compressions):
        for client, records in PRODUCED.items():
            tuned = CONFLUENT_TUNED if client.startswith("confluent") else ()
            count = ("--records", str(scaled(records, size)))
            found.append(Case("produce", client, size, (*count, *tuned), compression))
        for client, records in CONSUMED.items():
            tuned = ("--set", "fetch.queue.backoff.ms=5") if client == "confluent" else ()
            count = ("--records", str(scaled(records, size)))
            topic = ("--topic", read_topic(size, compression))
            found.append(Case("consume", client, size, (*count, *topic, *tuned), compression))
    found += [Case("one-record", client, 100) for client in ONE_RECORD]
    found.append(Case("latency", "confluent", 100, ("--rate", str(HALF_LOAD))))
    found += [Case("transactions", client, 100) for client in ("onceflow", "confluent", "aiokafka")]
    found += [Case("client-footprint", client, 100) for client in FOOTPRINT]
    return found


def scaled(records: int, size: int) -> int:
    """Fewer of the large records, so that a run takes as long."""
    return records if size <= 100 else records // 4


def read_topic(size: int, compression: str) -> str:
    """The topic that consumers read."""
    return f"bench-consume-{size}-{compression}"


@contextlib.contextmanager
def our_broker() -> Iterator[str]:
    """The daemon on a temporary folder."""
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "onceflow.cli", "broker", "--data", data]
        with subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                yield process.stdout.readline().split("ready on ")[1].split()[0]
            finally:
                process.terminate()
                process.wait(30)


@contextlib.contextmanager
def apache_kafka() -> Iterator[str]:
    """Apache Kafka on a temporary folder, warmed by some produced records."""
    import real_kafka

    with (
        tempfile.TemporaryDirectory() as data,
        real_kafka.ApacheKafka(Path(data), jvm=real_kafka.LONG_LIFE) as kafka,
    ):
        for _ in range(2):
            run_case(
                Case("produce", "confluent", 100, ("--records", "1000000")), kafka.bootstrap_servers
            )
        yield kafka.bootstrap_servers


BROKERS = {"onceflow": our_broker, "kafka": apache_kafka}


def run_case(case: Case, bootstrap: str) -> Line:
    """Run one case in a process of its own and give its JSON line."""
    program = {"one-record": "latency", "client-footprint": "client_footprint"}
    path = HERE / f"{program.get(case.bench, case.bench)}.py"
    command = [sys.executable, str(path), "--bootstrap", bootstrap, "--client", case.client]
    command += case.arguments
    if case.bench not in ("transactions", "client-footprint"):
        command += ["--size", str(case.size)]
    if case.bench in ("produce", "consume"):
        command += ["--compression", case.compression]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    line: Line = json.loads(done.stdout.splitlines()[-1])
    return line


def fill(bootstrap: str, chosen: Sequence[Case]) -> None:
    """Write the topics that the consumers read."""
    wanted = {(case.size, case.compression) for case in chosen if case.bench == "consume"}
    for size, compression in sorted(wanted):
        records = str(scaled(FILLED, size))
        command = [sys.executable, str(HERE / "consume.py"), "--bootstrap", bootstrap]
        command += ["--client", "confluent", "--topic", read_topic(size, compression)]
        command += ["--size", str(size), "--compression", compression]
        command += ["--fill", records, "--records", records]
        command += ["--set", "fetch.queue.backoff.ms=5"]
        subprocess.run(command, check=True, capture_output=True, timeout=600)


def measure(args: argparse.Namespace) -> list[Line]:
    """All rounds; the brokers take turns, so that a slow minute hits both.

    Footprints are medians by themselves and hardly depend on the broker: they are taken once.
    """
    lines: list[Line] = []
    every = cases(args.sizes, args.compressions)
    chosen = [case for case in every if not args.only or case.bench in args.only]
    with contextlib.ExitStack() as stack:
        addresses = {name: stack.enter_context(BROKERS[name]()) for name in args.brokers}
        for address in addresses.values():
            fill(address, chosen)
        first = next(iter(addresses))
        turns = [
            (number, case, broker)
            for number in range(args.rounds)
            for case in chosen
            for broker in addresses
            if case.bench != "client-footprint" or (broker == first and number == 0)
        ]
        for number, case, broker in turns:
            load = os.getloadavg()[0]
            line = run_case(case, addresses[broker])
            line |= {"broker": broker, "round": number, "load": round(load, 2)}
            lines.append(line)
            args.out.write(json.dumps(line) + "\n")
            args.out.flush()
            print(f"\r{len(lines)}/{len(turns)} runs", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    return lines


def main() -> None:
    """Measure, or print a table of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100])
    parser.add_argument("--compressions", nargs="+", default=["none"], help="none lz4 ...")
    parser.add_argument("--only", nargs="+", choices=BENCHES)
    parser.add_argument("--brokers", nargs="+", choices=list(BROKERS), default=list(BROKERS))
    parser.add_argument("--out", type=argparse.FileType("a"), default=os.devnull)
    parser.add_argument("--table", type=Path, help="print the table of this file and end")
    parser.add_argument("--draw", type=Path, help="draw the runs of this file and end")
    args = parser.parse_args()
    if args.table or args.draw:
        text = (args.table or args.draw).read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        print(table(lines) if args.table else draw(lines, DOCS))
        return
    began = time.monotonic()
    print(table(measure(args)))
    print(f"\n{time.monotonic() - began:.0f} s, load now {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
