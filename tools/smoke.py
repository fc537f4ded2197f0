"""Try an installation: produce, consume and a transaction on the broker in this process.

``python tools/smoke.py compiled`` (or ``plain``) also checks which engine is in use. Run it by the
Python of the environment; the project's own tree must not be what it imports.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import onceflow
from onceflow.broker_lite import Broker
from onceflow.sdk import Consumer, Producer
from onceflow.sdk.protocol import record_kernel

RECORDS = [(b"key-%d" % number, b"value-%d" % number * 9) for number in range(500)]


def produce(bootstrap_servers: str, compression_type: str) -> None:
    """Send the records one by one, and in bulk."""
    with Producer(
        bootstrap_servers=bootstrap_servers, compression_type=compression_type
    ) as producer:
        for key, value in RECORDS:
            producer.send("plain", value, key=key, headers={"h": b"1"})
        keys, values = [list(column) for column in zip(*RECORDS, strict=True)]
        producer.send_many("plain", values, keys=keys)


def transact(bootstrap_servers: str) -> None:
    """Commit one transaction and abort another one."""
    with Producer(bootstrap_servers=bootstrap_servers, transactional_id="smoke") as producer:
        with producer.transaction():
            producer.send("transacted", b"committed")
        try:
            with producer.transaction():
                producer.send("transacted", b"aborted")
                producer.flush()
                raise LookupError
        except LookupError:
            pass


def consume(bootstrap_servers: str, topic: str, count: int) -> list[tuple[object, object]]:
    """Read a topic from its start until it ends; fails if other records come than `count`."""
    found: list[tuple[object, object]] = []
    with Consumer(
        topic, bootstrap_servers=bootstrap_servers, group_id=topic, auto_offset_reset="earliest"
    ) as consumer:
        while len(found) < count:
            polled = consumer.poll(timeout_ms=20_000)
            assert polled, f"{len(found)} of {count} records came from {topic}"
            found += [(r.key, r.value) for records in polled.values() for r in records]
        assert not consumer.poll(timeout_ms=100), f"too many records came from {topic}"
    return found


def main() -> None:
    """Run all of it."""
    installed = Path(onceflow.__file__).resolve()
    assert Path(__file__).resolve().parents[1] / "src" not in installed.parents, installed
    engine = "compiled" if record_kernel.COMPILED else "plain"
    wanted = sys.argv[1] if len(sys.argv) > 1 else engine
    assert engine == wanted, f"the engine is {engine}, and should be {wanted}"
    with Broker() as broker:
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            produce(broker.bootstrap_servers, codec)
        transact(broker.bootstrap_servers)
        plain = consume(broker.bootstrap_servers, "plain", 10 * len(RECORDS))
        assert sorted(plain) == sorted(RECORDS * 10)
        assert consume(broker.bootstrap_servers, "transacted", 1) == [(None, b"committed")]
    version = f"{platform.python_implementation()} {platform.python_version()}"
    print(f"onceflow {onceflow.__version__}, {engine}, {version}: works")


if __name__ == "__main__":
    main()
