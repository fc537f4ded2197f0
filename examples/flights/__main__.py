"""The demo: 336,776 flights through broker, processors and Spark while processes are killed.

Starts everything, kills one worker, the broker and the Spark driver at random moments, waits until
every flight has passed, and compares the result with the same figures computed from the file.
Exits with status 1 when a record was lost or repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

from examples.flights import data, progress, report, verify
from examples.flights.children import Child, ChildFailedError
from onceflow.broker_lite.testing import transaction_outcomes
from onceflow.sdk import Admin, NewTopic
from onceflow.sdk.errors import KafkaError

SECONDS_MAX = 235
SAMPLE_SECONDS = 0.5
KILL_DELAY_SECONDS_MAX = 2.0
"""A kill comes up to this much after its share of the flights was seen, so that it does not always
hit the moment after a commit, which is when shares grow."""
console = Console()


def free_port() -> int:
    """A port that nobody listens on; the broker keeps it over its restarts."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Demo:
    """The processes of one run and what was seen of them.

    Args:
        folder: Everything of the run: broker data, worker state, checkpoint, logs.
        rows: How many flights to send.
        seconds: Over how many seconds to send them.
        seed: Decides when what is killed.
    """

    def __init__(self, folder: Path, rows: int, seconds: float, seed: int) -> None:
        self.rows = rows
        self.seed = seed
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self.data = folder / "broker"
        self.samples: list[report.Sample] = []
        self.kills: list[report.Kill] = []
        self._started_at = time.monotonic()
        self._random = random.Random(seed)
        names = ["worker", "broker", "Spark driver"]
        self._random.shuffle(names)
        moments = sorted(self._random.uniform(0.1, 0.85) for _ in names)
        self.plan = list(zip(moments, names, strict=True))
        self._delays = {name: self._random.uniform(0, KILL_DELAY_SECONDS_MAX) for name in names}
        self._due: dict[str, float] = {}
        self._make_children(folder, seconds)

    def _make_children(self, folder: Path, seconds: float) -> None:
        def python(name: str, *args: str, once: bool = False, **env: str) -> Child:
            log = folder / f"{name.replace(' ', '-')}.log"
            return Child(name, [sys.executable, *args], log, env, once=once)

        module = ("-m", "onceflow.cli")
        broker = ("broker", "--data", str(self.data), "--listen", self.bootstrap)
        self.broker = python("broker", *module, *broker)
        self.feed = python(
            "feed",
            *("-m", "examples.flights.feed", self.bootstrap, str(self.rows), str(seconds)),
            once=True,
        )
        self.workers = [
            python(
                f"worker {number}",
                *(*module, "run", "examples.flights.app:app"),
                BOOTSTRAP=self.bootstrap,
                STATE_DIR=str(folder / "state"),
            )
            for number in (1, 2)
        ]
        checkpoint = str(folder / "checkpoint")
        self.spark = python(
            "Spark driver", "-m", "examples.flights.daily", self.bootstrap, checkpoint
        )
        self.children = [self.broker, self.feed, *self.workers, self.spark]

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started_at

    def start(self) -> None:
        """Start the broker, create the topics, start the others."""
        self.broker.start()
        with Admin(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topics(
                [
                    NewTopic(data.FLIGHTS, data.PARTITIONS),
                    NewTopic(data.DEPARTURES, data.PARTITIONS),
                    NewTopic(data.DEAD_LETTERS, 1),
                    NewTopic(data.DAILY_DELAYS, 2),
                ]
            )
        for child in self.children[1:]:
            child.start()

    def run(self) -> Iterator[progress.Progress]:
        """Watch and kill until every flight has passed every stage; give each state seen."""
        while True:
            for child in self.children:
                child.watch()
            now = self._ask()
            if now is not None:
                self.samples.append(
                    report.Sample(self.seconds, now.fed, now.processed, now.aggregated)
                )
                killed = self._kill_what_is_due(now)
                yield now
                # Whoever was killed has to run again before anything counts as survived.
                if now.complete and self.feed.done and not self.plan and not killed:
                    return
            if self.seconds > SECONDS_MAX:
                raise ChildFailedError(
                    f"not done after {SECONDS_MAX} s; on a slow or busy machine take fewer "
                    f"flights: make demo ARGS='--rows 50000'\n{self.logs()}"
                )
            time.sleep(SAMPLE_SECONDS)

    def _ask(self) -> progress.Progress | None:
        try:
            with Admin(bootstrap_servers=self.bootstrap, request_timeout_ms=2000) as admin:
                return progress.ask(admin, self.rows)
        except KafkaError:
            return None  # The broker was killed a moment ago; ask again.

    def _kill_what_is_due(self, now: progress.Progress) -> bool:
        """Kill whose moment has come; gives whether there was any."""
        before = len(self.kills)
        for moment, name in list(self.plan):
            # Each by the progress of its own stage: workers and the Spark driver start slower than
            # the feed, and a kill before their first transaction would show nothing.
            done = {"broker": now.fed, "worker": now.processed, "Spark driver": now.aggregated}
            if done[name] < moment * self.rows:
                continue
            if self.seconds < self._due.setdefault(name, self.seconds + self._delays[name]):
                continue
            self.plan.remove((moment, name))
            target = {
                "worker": self._random.choice(self.workers),
                "broker": self.broker,
                "Spark driver": self.spark,
            }[name]
            target.kill()
            self.kills.append(report.Kill(self.seconds, target.name))
        return len(self.kills) > before

    def logs(self) -> str:
        """The end of every child's output, for a failure."""
        return "\n".join(f"--- {child.name}\n{child.tail()}" for child in self.children)

    def stop(self) -> None:
        """Stop everything, the broker last."""
        for child in [*self.children[1:], self.broker]:
            child.stop()


def follow(demo: Demo) -> None:
    """Show live bars until the run is done."""
    columns = (
        TextColumn("{task.description:>12}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    told = 0
    with Bars(*columns, console=console) as bars:
        stages = [bars.add_task(name, total=demo.rows) for name in ("sent", "processed", "Spark")]
        for now in demo.run():
            for task, done in zip(stages, (now.fed, now.processed, now.aggregated), strict=True):
                bars.update(task, completed=done)
            for kill in demo.kills[told:]:
                bars.console.print(f"[bold red]SIGKILL[/] {kill.target} after {kill.at:.1f} s")
            told = len(demo.kills)


def summary(
    demo: Demo, seconds: float, verdict: verify.Verdict, found: data.Figures
) -> list[tuple[str, str]]:
    """The table's lines."""
    outcomes = transaction_outcomes(demo.data)
    return [
        ("records in", f"{demo.rows:,}"),
        ("records out", f"{sum(found.departed.values()):,}"),
        ("dead letters", f"{sum(found.dead.values()):,}"),
        ("lost", f"{verdict.lost:,}"),
        ("duplicated", f"{verdict.duplicated:,}"),
        ("not expected", f"{verdict.unexpected:,}"),
        ("errors in running counts", f"{verdict.count_errors:,}"),
        ("wrong daily sums", f"{verdict.wrong_days:,}"),
        ("transactions committed", f"{outcomes.committed:,}"),
        ("transactions aborted", f"{outcomes.aborted:,}"),
        ("kills survived", str(len(demo.kills))),
        ("seconds", f"{seconds:.1f}"),
        ("records per second", f"{demo.rows / seconds:,.0f}"),
        ("seed of the kills", str(demo.seed)),
    ]


def run(args: argparse.Namespace, folder: Path) -> bool:
    """One run; gives whether every record arrived exactly once."""
    demo = Demo(folder, args.rows, args.seconds, args.seed)
    console.print(
        f"seed {args.seed}: kills planned at "
        + ", ".join(f"{share:.0%} ({name})" for share, name in demo.plan)
    )
    try:
        demo.start()
        follow(demo)
        seconds = demo.seconds
        for child in demo.children[1:]:
            child.stop()
        console.print("comparing with the file ...")
        found = verify.published(demo.bootstrap)
    except KafkaError as error:
        raise ChildFailedError(f"{error}\n{demo.logs()}") from error
    finally:
        demo.stop()
    verdict = verify.compare(data.expected_figures(args.rows), found)
    rows = summary(demo, seconds, verdict, found.figures)
    table = Table(title="flights, exactly once", show_header=False)
    for name, value in rows:
        table.add_row(name, value)
    console.print(table)
    pictures = [
        (
            "Mean departure delay by carrier and scheduled hour",
            report.heat_map(found.by_hour, data.table("airlines", "carrier", "name")),
        ),
        ("Records per second", report.throughput(demo.samples, demo.kills)),
    ]
    report.write_report(args.report, rows, verdict.ok, pictures)
    console.print(f"report: {args.report}")
    return verdict.ok


def main() -> None:
    """Read the arguments, run, exit with 1 when a record was lost or repeated."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="decides when what is killed")
    parser.add_argument("--rows", type=int, default=data.ROWS, help="number of flights to send")
    parser.add_argument("--seconds", type=float, default=60, help="seconds over which to send them")
    parser.add_argument(
        "--report", type=Path, default=Path("demo-report/flights.html"), help="where to write it"
    )
    parser.add_argument("--keep", type=Path, help="keep the run's files in this new folder")
    args = parser.parse_args()
    if not 1 <= args.rows <= data.ROWS:
        parser.error(f"--rows {args.rows}: there are {data.ROWS} flights")
    if args.seed is None:
        args.seed = random.SystemRandom().randrange(10_000)
    with contextlib.ExitStack() as stack:
        if args.keep:
            args.keep.mkdir(parents=True)
            folder = args.keep.absolute()
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onceflow-")))
        try:
            ok = run(args, folder)
        except ChildFailedError as error:
            # The reason comes last, where it is seen: the logs behind it can be long.
            reason, _, logs = str(error).partition("\n")
            console.print(logs, markup=False, highlight=False)
            tell_failure(reason)
        except KeyboardInterrupt:
            sys.exit(130)
    if not ok:
        tell_failure("records were lost, repeated or wrong; the table above counts them")


def tell_failure(reason: str) -> NoReturn:
    """Say why the demo failed, and end."""
    console.print(f"[bold red]failed:[/] {escape(reason)}")
    sys.exit(1)


if __name__ == "__main__":
    main()
