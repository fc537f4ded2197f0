"""What record batches cost: building, validating and reading them, with each codec.

Run `python bench/records.py [--records N] [--size BYTES] [--rounds N]`; prints one JSON line with
the median of the rounds in microseconds a record, the milliseconds that loading the kernel takes,
and whether it is compiled.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from onceflow.sdk.protocol import record_kernel
from onceflow.sdk.protocol.batch_building import append_scattered
from onceflow.sdk.protocol.records import (
    Codec,
    RecordBatchBuilder,
    consumer_records,
    decode_batch,
    decode_values,
    encode_batch,
    parse_batch_header,
    validate_batch,
)

NOW = 1_700_000_000_000
LOADING = """
import time
import onceflow.sdk.protocol
start = time.perf_counter()
import onceflow.sdk.protocol.record_kernel
print((time.perf_counter() - start) * 1000)
"""


def median_us(work: Callable[[], object], records: int, rounds: int) -> float:
    """Microseconds a record: the median of some rounds of about 20 ms each."""
    start = time.perf_counter()
    work()
    repeats = max(1, int(0.02 / max(time.perf_counter() - start, 1e-7)))
    figures = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        figures.append((time.perf_counter() - start) / repeats / records * 1e6)
    return round(statistics.median(figures), 3)


def loading_ms(rounds: int) -> float:
    """Milliseconds to load the kernel in a fresh process."""
    figures = []
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, "-c", LOADING], capture_output=True, check=True, text=True
        )
        figures.append(float(done.stdout))
    return round(statistics.median(figures), 2)


def measure(count: int, size: int, rounds: int) -> dict[str, float]:
    """All figures for batches of `count` records with values of `size` bytes, half random."""
    source = random.Random(7)
    values = [source.randbytes(size // 2) + b"x" * (size - size // 2) for _ in range(count)]
    records = [(NOW + index, None, value, []) for index, value in enumerate(values)]
    plain = encode_batch(records)
    header = parse_batch_header(plain)

    def build() -> None:
        builder = RecordBatchBuilder(1 << 24)
        for timestamp, key, value, headers in records:
            builder.append(timestamp, key, value, headers)
        builder.build(1, 1, 0)

    def build_write() -> None:
        builder = RecordBatchBuilder(1 << 24)
        for value in values:
            builder.write(NOW, None, value, [])
        builder.build(1, 1, 0)

    def build_values() -> None:
        builder = RecordBatchBuilder(1 << 24)
        append_scattered([builder], [0] * len(values), 0, len(values), NOW, None, values, None)
        builder.build(1, 1, 0)

    single = encode_batch(records[:1])
    figures = {
        "build": median_us(build, count, rounds),
        "build_write": median_us(build_write, count, rounds),
        "build_append_scattered": median_us(build_values, count, rounds),
        "decode": median_us(lambda: decode_batch(plain), count, rounds),
        "decode_values": median_us(lambda: decode_values(plain), count, rounds),
        "decode_consumer_records": median_us(
            lambda: consumer_records(plain, header, 0, "topic", 0), count, rounds
        ),
        "validate_batch_of_one": median_us(lambda: validate_batch(single), 1, rounds),
        "validate_limits_and_keys": median_us(
            lambda: validate_batch(plain, timestamp_range=(0, 1 << 60)), count, rounds
        ),
    }
    for codec in Codec:
        batch = encode_batch(records, codec=codec)
        figures[f"validate_{codec.name.lower()}"] = median_us(
            lambda batch=batch: validate_batch(batch), count, rounds
        )
        figures[f"encode_{codec.name.lower()}"] = median_us(
            lambda codec=codec: encode_batch(records, codec=codec), count, rounds
        )
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description="Cost of record batches, in us a record.")
    parser.add_argument("--records", type=int, default=150, help="records in a batch")
    parser.add_argument("--size", type=int, default=100, help="bytes of each value")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    result: dict[str, object] = {
        "bench": "records",
        "records": args.records,
        "size": args.size,
        "compiled": record_kernel.COMPILED,
        "load_kernel_ms": loading_ms(args.rounds),
    }
    result.update(measure(args.records, args.size, args.rounds))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
