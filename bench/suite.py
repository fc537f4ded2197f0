"""Everything side by side: our clients and the published ones, on our broker and on Apache Kafka.

Starts both brokers on this machine, runs every case once a round, each in a process of its own, and
prints the median of the rounds with its least and greatest as a table, and the ratios that matter.
One JSON line a run goes to ``--out``. Nothing else should run meanwhile; the load is printed.

    python bench/suite.py --rounds 3 --out results.jsonl
    python bench/suite.py --only transactions --brokers onceflow
    python bench/suite.py --table results.jsonl      # only print what was measured
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

CONFLUENT_TUNED = (
    *("--set", "linger.ms=20", "--set", "batch.size=1000000"),
    *("--set", "batch.num.messages=100000", "--set", "queue.buffering.max.messages=1000000"),
)
RECORDS = {"onceflow": 600_000, "onceflow-many": 1_500_000, "confluent": 600_000}
RECORDS_SLOW = 100_000
HALF_LOAD = 300_000
"""Records a second for the latency: about half of what either broker takes from confluent-kafka."""

Line = dict[str, object]


class Case(NamedTuple):
    """One program with one client: what is measured, and how it is called."""

    bench: str
    client: str
    size: int
    arguments: tuple[str, ...] = ()
    label: str = ""

    @property
    def name(self) -> str:
        """How tables call it."""
        return f"{self.client} {self.label}".strip()


def cases(sizes: Sequence[int]) -> list[Case]:
    """All cases, slowest clients only with the first size."""
    found: list[Case] = []
    for size in sizes:
        for client in ("onceflow", "onceflow-many", "confluent", "aiokafka", "kafka-python"):
            records = RECORDS.get(client, RECORDS_SLOW) // (1 if size <= 100 else 4)
            tuned = CONFLUENT_TUNED if client == "confluent" else ()
            found.append(Case("produce", client, size, ("--records", str(records), *tuned)))
        for client in ("onceflow", "onceflow-async", "confluent", "aiokafka", "kafka-python"):
            tuned = ("--set", "fetch.queue.backoff.ms=5") if client == "confluent" else ()
            found.append(Case("consume", client, size, tuned))
    found.append(Case("latency", "confluent", 100, ("--rate", str(HALF_LOAD))))
    found += [Case("transactions", client, 100) for client in ("onceflow", "confluent", "aiokafka")]
    return found


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
        real_kafka.ApacheKafka(Path(data)) as kafka,
    ):
        for _ in range(2):
            run_case(
                Case("produce", "confluent", 100, ("--records", "1000000")), kafka.bootstrap_servers
            )
        yield kafka.bootstrap_servers


BROKERS = {"onceflow": our_broker, "kafka": apache_kafka}


def run_case(case: Case, bootstrap: str) -> Line:
    """Run one case in a process of its own and give its JSON line."""
    command = [sys.executable, str(HERE / f"{case.bench}.py"), "--bootstrap", bootstrap]
    command += ["--client", case.client, *case.arguments]
    if case.bench != "transactions":
        command += ["--size", str(case.size)]
    if case.bench == "consume":
        records = 500_000 if case.size <= 100 else 200_000
        command += ["--topic", f"bench-consume-{case.size}", "--records", str(records)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")
    line: Line = json.loads(done.stdout.splitlines()[-1])
    return line


def fill(bootstrap: str, sizes: Sequence[int]) -> None:
    """Write the topics that the consumers read."""
    for size in sizes:
        records = 500_000 if size <= 100 else 200_000
        command = [sys.executable, str(HERE / "consume.py"), "--bootstrap", bootstrap]
        command += ["--client", "confluent", "--topic", f"bench-consume-{size}"]
        command += ["--size", str(size), "--fill", str(records), "--records", str(records)]
        command += ["--set", "fetch.queue.backoff.ms=5"]
        subprocess.run(command, check=True, capture_output=True, timeout=600)


def measure(args: argparse.Namespace) -> list[Line]:
    """All rounds; the brokers take turns, so that a slow minute hits both."""
    lines: list[Line] = []
    chosen = [c for c in cases(args.sizes) if not args.only or c.bench in args.only]
    with contextlib.ExitStack() as stack:
        addresses = {name: stack.enter_context(BROKERS[name]()) for name in args.brokers}
        if any(c.bench == "consume" for c in chosen):
            for address in addresses.values():
                fill(address, args.sizes)
        total = args.rounds * len(chosen) * len(addresses)
        for number in range(args.rounds):
            for case in chosen:
                for broker, address in addresses.items():
                    load = os.getloadavg()[0]
                    line = run_case(case, address)
                    line |= {"broker": broker, "round": number, "load": round(load, 2)}
                    lines.append(line)
                    args.out.write(json.dumps(line) + "\n")
                    args.out.flush()
                    print(f"\r{len(lines)}/{total} runs", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    return lines


def rate_of(line: Line) -> float:
    """Records or transactions a second."""
    return float(str(line.get("rec_s", line.get("per_s", line.get("rate")))))


def table(lines: Sequence[Line]) -> str:
    """Medians by bench, size, client and broker, as Markdown."""
    groups: dict[tuple[str, int, str, str], list[Line]] = defaultdict(list)
    for line in lines:
        size = int(str(line.get("size", 0)))
        key = (str(line["bench"]), size, str(line["client"]), str(line["broker"]))
        groups[key].append(line)
    rows = ["| what | client | broker | per second | runs |", "| --- | --- | --- | --- | --- |"]
    medians: dict[tuple[str, int, str, str], float] = {}
    for key, found in groups.items():
        rates = sorted(rate_of(line) for line in found)
        medians[key] = statistics.median(rates)
        what = f"{key[0]} {key[1]} B" if key[1] else key[0]
        spread = f"{rates[0]:,.0f}-{rates[-1]:,.0f}"
        extra = ""
        if key[0] in ("transactions", "latency"):
            p50 = statistics.median(float(str(line["p50_ms"])) for line in found)
            p99 = statistics.median(float(str(line["p99_ms"])) for line in found)
            extra = f"; p50 {p50:.2f} ms, p99 {p99:.2f} ms"
        rows.append(
            f"| {what} | {key[2]} | {key[3]} | {medians[key]:,.0f} ({spread}){extra} "
            f"| {len(rates)} |"
        )
    return "\n".join([*rows, "", *ratios(medians)])


def ratios(medians: dict[tuple[str, int, str, str], float]) -> list[str]:
    """Our broker by Apache Kafka's under each client; our clients by the others on each broker."""
    rows = ["| ratio | |", "| --- | --- |"]
    for (bench, size, client, broker), rate in medians.items():
        what = f"{bench} {size} B" if size else bench
        other = medians.get((bench, size, client, "kafka"))
        if broker == "onceflow" and other:
            rows.append(f"| {what}, {client}: our broker / Apache Kafka | {rate / other:.2f} |")
        for peer in ("confluent", "aiokafka", "kafka-python"):
            base = medians.get((bench, size, peer, broker))
            if client.startswith("onceflow") and base:
                rows.append(f"| {what} on {broker}: {client} / {peer} | {rate / base:.2f} |")
    return rows


def main() -> None:
    """Measure, or print a table of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100])
    benches = ("produce", "consume", "latency", "transactions")
    parser.add_argument("--only", nargs="+", choices=benches)
    parser.add_argument("--brokers", nargs="+", choices=list(BROKERS), default=list(BROKERS))
    parser.add_argument("--out", type=argparse.FileType("a"), default=os.devnull)
    parser.add_argument("--table", type=Path, help="print the table of this file and end")
    args = parser.parse_args()
    if args.table:
        print(table([json.loads(text) for text in args.table.read_text().splitlines()]))
        return
    began = time.monotonic()
    print(table(measure(args)))
    print(f"\n{time.monotonic() - began:.0f} s, load now {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
