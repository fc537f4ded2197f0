"""Cost of growth: produce throughput of the broker over partitions and over connections.

Raw Produce requests of one prepared batch (100 records of 100 bytes), so that the broker is what is
measured: over 1, 10, 100 and 1,000 partitions by 16 connections, then over 1, 64 and 1,024 of them
into 16 partitions. One JSON line for each, with the broker's processor time of a request, which
tells more on a busy machine; ``--draw`` writes a picture of the lines of a file.

    python bench/growth.py --out growth.jsonl && python bench/growth.py --draw growth.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import socket
import statistics
import struct
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from produce import make_values
from scale import _answer, _framed, daemon

RECORDS = 100
SECONDS = 4.0
PARTITIONS = [(partitions, 16) for partitions in (1, 10, 100, 1_000)]
CONNECTIONS = [(16, connections) for connections in (1, 64, 1_024)]
PICTURE = Path(__file__).parent.parent / "docs" / "growth.svg"
TOPIC = b"bench-growth"
Line = dict[str, object]


def request_for(batch: bytes, partition: int) -> bytes:
    """Produce version 3 of one batch."""
    topic = struct.pack(">ih", 1, len(TOPIC)) + TOPIC + struct.pack(">ii", 1, partition)
    body = struct.pack(">hhi", -1, -1, 30_000) + topic + struct.pack(">i", len(batch)) + batch
    return _framed(0, 3, body)


def measure(partitions: int, connections: int, seconds: float) -> Line:
    """Records a second that the broker takes."""
    from onceflow.sdk.protocol.records import encode_batch

    records = [(0, b"key-%d" % i, value, []) for i, value in enumerate(make_values(100)[:RECORDS])]
    batch = bytes(encode_batch(records))  # type: ignore[arg-type]
    with TemporaryDirectory() as data, daemon(data) as running:
        create_topic(running.port, partitions)
        requests = [request_for(batch, number) for number in range(partitions)]
        selector = selectors.DefaultSelector()
        for _ in range(connections):
            connection = socket.create_connection(("127.0.0.1", running.port), timeout=60)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ)
        sent = done = 0
        spent_before = _processor_us(running.process.pid)
        begin = time.perf_counter()
        for key in list(selector.get_map().values()):
            key.fileobj.sendall(requests[sent % partitions])  # type: ignore[union-attr]
            sent += 1
        while (spent := time.perf_counter() - begin) < seconds:
            for key, _ in selector.select(1):
                connection = key.fileobj  # type: ignore[assignment]
                _answer(connection)
                done += 1
                connection.sendall(requests[sent % partitions])
                sent += 1
        processor_us = _processor_us(running.process.pid) - spent_before
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        memory = running.memory_mb
    return {
        "bench": "growth",
        "partitions": partitions,
        "connections": connections,
        "rec_s": round(done * RECORDS / spent),
        "broker_us_each": round(processor_us / done, 1),
        "memory_mb": round(memory, 1),
        "load": round(os.getloadavg()[0], 2),
    }


def _processor_us(pid: int) -> float:
    """Processor time of a process so far: on a busy machine, the figure to compare."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1000


def create_topic(port: int, partitions: int) -> None:
    """CreateTopics version 2."""
    topic = struct.pack(">ih", 1, len(TOPIC)) + TOPIC
    body = topic + struct.pack(">ihii", partitions, 1, 0, 0) + struct.pack(">i?", 60_000, False)
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(_framed(19, 2, body))
        answer = _answer(connection)
    code = struct.unpack_from(">h", answer, 4 + 4 + 4 + 2 + len(TOPIC))[0]
    if code:
        raise SystemExit(f"the topic was not created: error {code}")


def draw(lines: list[Line]) -> str:
    """Two small line charts as SVG, each point labelled; no axis begins elsewhere than at 0."""
    charts = [("partitions", PARTITIONS, 0), ("connections", CONNECTIONS, 1)]
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="720" height="260" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="720" height="260" fill="white"/>',
    ]
    for number, (name, cases, which) in enumerate(charts):
        left = 50 + number * 360
        points = []
        for case in cases:
            rates = [
                float(str(line["rec_s"]))
                for line in lines
                if (line["partitions"], line["connections"]) == case
            ]
            if rates:
                points.append((case[which], statistics.median(rates)))
        top = max((rate for _, rate in points), default=1.0)
        step = 280 / max(1, len(points) - 1)
        places = [
            (left + index * step, 200 - rate / top * 150) for index, (_, rate) in enumerate(points)
        ]
        text = f"thousand records a second over {name}"
        parts.append(f'<text x="{left}" y="24">{text}</text>')
        parts.append(f'<path d="M{left} 40V200H{left + 285}" fill="none" stroke="#888"/>')
        half = f'<path d="M{left} 125H{left + 285}" stroke="#bbb" stroke-dasharray="4"/>'
        parts.append(half + f'<text x="{left - 34}" y="129" fill="#888">half</text>')
        path = " ".join(f"{x:.0f},{y:.0f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="#1565c0" stroke-width="2"/>')
        for (x, y), (value, rate) in zip(places, points, strict=True):
            parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="#1565c0"/>')
            parts.append(f'<text x="{x - 10:.0f}" y="{y - 8:.0f}">{rate / 1000:.0f}</text>')
            parts.append(f'<text x="{x - 10:.0f}" y="218">{value:,}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    """Measure, or draw what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--out", type=argparse.FileType("a"), default=os.devnull)
    parser.add_argument("--draw", type=Path, help="draw the lines of this file and end")
    args = parser.parse_args()
    if args.draw:
        PICTURE.write_text(draw([json.loads(text) for text in args.draw.read_text().splitlines()]))
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for _ in range(args.rounds):
        for case in (*PARTITIONS, *CONNECTIONS):
            line = json.dumps(measure(*case, args.seconds))
            print(line, flush=True)
            args.out.write(line + "\n")
            args.out.flush()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
