"""Spark for tests: a local session, topics filled and read through the SDK, queries run to an end.

Sessions of one test process share a JVM, so only the first one pays for its start. As a program it
makes an archive of Java's classes, which halves that start: ``make spark-chaos`` starts hundreds.
Nothing here knows what a test wants to show.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onceflow.sdk import Consumer, ConsumerRecord, Headers, Producer, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

DEADLINE_S = 300.0
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.streaming.stopTimeout": "30s",
}


def unavailable_reason() -> str | None:
    """Why Spark cannot run here, or None."""
    home = os.environ.get("JAVA_HOME")
    found = (Path(home) / "bin" / "java").exists() if home else shutil.which("java")
    return None if found else "Java 17+ is missing (make java)"


def class_archive() -> Path:
    """Where the archive of this PySpark's classes for this Java is, once it is made."""
    java = os.path.realpath(os.environ.get("JAVA_HOME") or shutil.which("java") or "")
    key = f"{java} {sys.prefix} {metadata.version('pyspark')}"
    name = f"spark-{hashlib.sha256(key.encode()).hexdigest()[:12]}.jsa"
    return Path(__file__).parents[2] / ".setup" / name


def java_options() -> str:
    """Options of the driver's JVM. It ignores an archive that does not fit."""
    archive = class_archive()
    return f"{JAVA_OPTIONS} -XX:SharedArchiveFile={archive}" if archive.exists() else JAVA_OPTIONS


def _same(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


def make_class_archive() -> None:
    """Make the archive if it is not there: a JVM writes it at its end."""
    archive = class_archive()
    if archive.exists() or unavailable_reason() is not None:
        return
    archive.parent.mkdir(exist_ok=True)
    made = archive.with_suffix(f".{os.getpid()}")
    settings = {"spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={made}"}
    with spark_session(settings) as spark, tempfile.TemporaryDirectory() as folder:
        Path(folder, "rows").mkdir()
        Path(folder, "rows", "one.txt").write_text("a row\n")
        writer = spark.readStream.text(f"{folder}/rows").writeStream.trigger(availableNow=True)
        writer = writer.foreachBatch(
            lambda rows, _: rows.mapInArrow(_same, "value STRING").collect()
        )
        finish(writer.option("checkpointLocation", f"{folder}/checkpoint").start())
        jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    jvm.stdin.close()
    jvm.wait(DEADLINE_S)
    made.rename(archive)


@contextlib.contextmanager
def spark_session(settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A local session of two cores that knows ``format("onceflow")``."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    from onceflow.spark_integration import register

    builder = SparkSession.builder.appName("tests")
    own = {"spark.driver.extraJavaOptions": java_options()}
    for name, value in {**SETTINGS, **own, **(settings or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        register(session)
        yield session
    finally:
        session.stop()


def fill(
    bootstrap: str,
    topic: str,
    values: Iterable[bytes | None],
    *,
    partition: int | None = 0,
    keys: Iterable[bytes | None] | None = None,
    timestamp_ms: int | None = None,
    headers: Headers = (),
    transactional_id: str | None = None,
    commit: bool = True,
) -> None:
    """Write values, in one transaction when ``transactional_id`` is given."""
    rows = list(values)
    names = list(keys) if keys is not None else [None] * len(rows)
    with Producer(bootstrap_servers=bootstrap, transactional_id=transactional_id) as producer:
        if transactional_id is not None:
            producer.begin_transaction()
        for key, value in zip(names, rows, strict=True):
            producer.send(
                topic,
                value,
                key=key,
                partition=partition,
                timestamp_ms=timestamp_ms,
                headers=headers,
            )
        producer.flush()
        if transactional_id is not None:
            producer.commit_transaction() if commit else producer.abort_transaction()


def read_topic(
    bootstrap: str, topic: str, isolation_level: str = "read_committed"
) -> list[ConsumerRecord]:
    """Every record of a topic, up to where this isolation level can see now."""
    found: list[ConsumerRecord] = []
    with Consumer(
        bootstrap_servers=bootstrap,
        isolation_level=isolation_level,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    ) as consumer:
        numbers = sorted(consumer.partitions_for_topic(topic) or ())
        partitions = [TopicPartition(topic, number) for number in numbers]
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)

        def at_end() -> bool:
            for records in consumer.poll(timeout_ms=100).values():
                found.extend(records)
            return all(consumer.position(tp) >= ends[tp] for tp in partitions)

        wait_until(at_end, f"{topic} read to {ends}")
    return found


def values_of(bootstrap: str, topic: str, isolation_level: str = "read_committed") -> list[str]:
    """The values of a topic as text, sorted."""
    records = read_topic(bootstrap, topic, isolation_level)
    return sorted(r.value.decode() for r in records if isinstance(r.value, bytes))


def wait_until(condition: Callable[[], bool], what: str, *, deadline_s: float = DEADLINE_S) -> None:
    """Ask until it holds."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {deadline_s:.0f} s: {what}")
        time.sleep(0.05)


def stream(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    """A stream of a topic from its beginning, unless an option says otherwise."""
    given = {"subscribe": topic, "startingOffsets": "earliest", **options}
    reader = spark.readStream.format("onceflow").option("kafka.bootstrap.servers", bootstrap)
    for name, value in given.items():
        reader = reader.option(name, value)
    return reader.load()


def finish(query: StreamingQuery) -> None:
    """Wait for a query that ends by itself; a failure of the query is raised."""
    if not query.awaitTermination(int(DEADLINE_S)):
        query.stop()
        raise TimeoutError(f"query {query.name} did not end within {DEADLINE_S:.0f} s")


def waiting_for(started: Path, go_on: Path) -> Callable[[DataFrame], DataFrame]:
    """Rows whose task waits for a file, after it made another one."""
    from pyspark.sql import functions as F  # noqa: N812 - the usual name for it

    def wait(value):  # no hints: Spark would read them
        started.touch()
        deadline = time.monotonic() + 300
        while not go_on.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return value

    waiting = F.udf(wait, "binary")
    return lambda rows: rows.select("key", waiting("value").alias("value"))


if __name__ == "__main__":
    make_class_archive()
