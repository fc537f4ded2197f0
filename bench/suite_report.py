"""What `suite.py` measured, as tables of Markdown and as pictures: medians of the runs and ratios.

A case is a bench, a size, a compression, a client and a broker; its figures are the medians of its
runs. Ratios above 1 are in our favour for rates; for times and processor time those below 1 are.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bars import Group, bar_chart

Line = dict[str, object]
FIGURES = ("p50_ms", "p99_ms", "client_cpu_us_per_record")
FOOTPRINT = ("import_ms", "names_import_ms", "names_import_cpu_ms", "idle_mb")
PEERS = ("confluent", "confluent-batch", "aiokafka", "kafka-python")
BROKERS = {"onceflow": "our broker", "kafka": "Apache Kafka"}


class Key(NamedTuple):
    """A case."""

    what: str
    client: str
    broker: str


class Figures(NamedTuple):
    """Medians of a case's runs, with least and greatest rate."""

    rate: float
    least: float
    greatest: float
    runs: int
    others: dict[str, float]


def what_of(line: Line) -> str:
    """How tables call what was measured."""
    bench = str(line["bench"])
    if bench in ("produce", "consume"):
        compression = str(line.get("compression", "none"))
        return f"{bench} {line['size']} B" + ("" if compression == "none" else f" {compression}")
    return f"{bench} {line['size']} B" if line.get("size") else bench


def figures_by_case(lines: Sequence[Line]) -> dict[Key, Figures]:
    """Medians by case, in the order of the lines."""
    groups: dict[Key, list[Line]] = defaultdict(list)
    for line in lines:
        key = Key(what_of(line), str(line["client"]), str(line["broker"]))
        groups[key].append(line)
    found = {}
    for key, runs in groups.items():
        rates = [float(str(r.get("rec_s", r.get("per_s", r.get("rate", 0))))) for r in runs]
        others = {
            name: statistics.median(float(str(r[name])) for r in runs)
            for name in (*FIGURES, *FOOTPRINT)
            if name in runs[0]
        }
        found[key] = Figures(statistics.median(rates), min(rates), max(rates), len(runs), others)
    return found


def table(lines: Sequence[Line]) -> str:
    """All cases and the ratios, as Markdown."""
    cases = figures_by_case(lines)
    rows = [
        "| what | client | broker | per second | client CPU us/record | p50 / p99 ms | runs |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for key, case in cases.items():
        if "idle_mb" in case.others:
            continue
        cpu = case.others.get("client_cpu_us_per_record")
        times = [case.others.get(name) for name in ("p50_ms", "p99_ms")]
        cells = [
            *key,
            f"{case.rate:,.0f} ({case.least:,.0f}-{case.greatest:,.0f})",
            "" if cpu is None else f"{cpu:.2f}",
            "" if None in times else " / ".join(f"{value:.2f}" for value in times),
            str(case.runs),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join([*rows, "", *ratios(cases), *footprints(cases)])


def ratios(cases: dict[Key, Figures]) -> list[str]:
    """Our broker by Apache Kafka's under each client; our clients by the others on each broker."""
    rows = ["| ratio | per second | client CPU | p50 | p99 |", "| --- | --- | --- | --- | --- |"]
    for key, case in cases.items():
        if "idle_mb" in case.others:
            continue
        compared: list[tuple[str, Key]] = []
        if key.broker == "onceflow":
            text = f"{key.what}, {key.client}: our broker / Apache Kafka"
            compared.append((text, key._replace(broker="kafka")))
        if key.client.startswith("onceflow"):
            where = BROKERS.get(key.broker, key.broker)
            compared += [
                (f"{key.what} on {where}: {key.client} / {peer}", key._replace(client=peer))
                for peer in PEERS
                if key.client == "onceflow" or peer.startswith("confluent")
            ]
        for text, other in compared:
            if other in cases:
                rows.append(f"| {text} | {' | '.join(_ratio_cells(case, cases[other]))} |")
    return rows


def _ratio_cells(case: Figures, other: Figures) -> list[str]:
    cells = [f"{case.rate / other.rate:.2f}" if other.rate else ""]
    for name in ("client_cpu_us_per_record", "p50_ms", "p99_ms"):
        ours, theirs = case.others.get(name), other.others.get(name)
        cells.append(f"{ours / theirs:.2f}" if ours is not None and theirs else "")
    return cells


def footprints(cases: dict[Key, Figures]) -> list[str]:
    """Import time and memory of the clients."""
    rows = [
        "",
        "| client | broker | import ms | with Producer and Consumer ms | CPU ms of it "
        "| idle producer and consumer MB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    found = [
        f"| {key.client} | {key.broker} | "
        + " | ".join(f"{case.others[name]:.1f}" for name in FOOTPRINT)
        + " |"
        for key, case in cases.items()
        if "idle_mb" in case.others
    ]
    return [*rows, *found] if found else []


def draw(lines: Sequence[Line], folder: Path) -> str:
    """Write a picture for each kind of measurement.

    Returns:
        Markdown that shows them.
    """
    cases = figures_by_case(lines)
    links = []
    charts: list[tuple[str, str, Callable[[Key, Figures], float | None]]] = [
        ("produce", "thousand records a second", _thousands("produce")),
        ("consume", "thousand records a second", _thousands("consume")),
        ("one-record", "p50 of one record, ms", _other("one-record", "p50_ms")),
        ("transactions", "transactions a second", _rate("transactions")),
        ("cpu", "client CPU, microseconds a record", _cpu),
    ]
    for name, unit, figure in charts:
        groups: dict[str, Group] = {}
        for key, case in cases.items():
            value = figure(key, case)
            if value is not None:
                group = groups.setdefault(key.what, Group(key.what, {}))
                row = group.bars.setdefault(key.client, {})
                row[BROKERS.get(key.broker, key.broker)] = value
        if groups:
            path = folder / f"bench-{name}.svg"
            path.write_text(bar_chart(unit, list(groups.values())))
            links.append(f"![{name}: {unit}]({path.name})")
    return "\n\n".join(links)


def _thousands(bench: str) -> Callable[[Key, Figures], float | None]:
    return lambda key, case: case.rate / 1000 if key.what.split()[0] == bench else None


def _rate(bench: str) -> Callable[[Key, Figures], float | None]:
    return lambda key, case: case.rate if key.what.split()[0] == bench else None


def _other(bench: str, name: str) -> Callable[[Key, Figures], float | None]:
    return lambda key, case: case.others.get(name) if key.what.split()[0] == bench else None


def _cpu(key: Key, case: Figures) -> float | None:
    is_bulk = key.what.split()[0] in ("produce", "consume")
    return case.others.get("client_cpu_us_per_record") if is_bulk else None
