"""Spark's own Kafka source and sink, in a process of their own: their jars and a copying query.

As a program: ``python spark_stock.py JSON``. The jars come from Maven once and are kept beside
those of Apache Kafka. They have to be there when the JVM starts, hence the process.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import real_kafka

VERSION = os.environ.get("ONCEFLOW_SPARK_KAFKA_VERSION", "4.2.0")
WANTED = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
POM = f"""<project><modelVersion>4.0.0</modelVersion><groupId>local</groupId>
<artifactId>jars</artifactId><version>1</version><packaging>pom</packaging><dependencies><dependency>
<groupId>org.apache.spark</groupId><artifactId>spark-sql-kafka-0-10_2.13</artifactId>
<version>{VERSION}</version><exclusions><exclusion><groupId>org.apache.hadoop</groupId>
<artifactId>*</artifactId></exclusion></exclusions></dependency></dependencies></project>
"""


def jars() -> list[str]:
    """The jars of Spark's own connector, fetched on the first call.

    Raises:
        subprocess.CalledProcessError: Maven could not fetch them.
    """
    folder = real_kafka.cache_folder().parent / f"spark-kafka-{VERSION}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "spark-kafka.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
                work = Path(temporary)
                (work / "pom.xml").write_text(POM)
                command = ["mvn", "-B", "-q", "dependency:copy-dependencies"]
                command += ["-DincludeScope=runtime", f"-DoutputDirectory={work / 'jars'}"]
                subprocess.run(command, cwd=work, check=True, timeout=600)
                (work / "jars").rename(folder)
    return sorted(str(jar) for jar in folder.glob("*.jar") if jar.name.startswith(WANTED))


def copy(bootstrap: str, source: str, checkpoint: Path, **targets: str) -> str:
    """Read a topic by Spark's own source, in one micro-batch, and write it.

    Args:
        bootstrap: Brokers.
        source: Topic to read.
        checkpoint: Folder for the checkpoints.
        targets: Topics: ``ours`` is written by ``foreach_batch``, ``stock`` by Spark's own sink.

    Returns:
        What the process printed.
    """
    plan = {"bootstrap": bootstrap, "source": source, "checkpoint": str(checkpoint), **targets}
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(plan)],
        capture_output=True,
        text=True,
        timeout=200,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def main() -> None:
    """Run the copies of a plan."""
    plan = json.loads(sys.argv[1])
    from spark_world import finish, spark_session

    from onceflow.spark_integration import foreach_batch

    servers = {"kafka.bootstrap.servers": plan["bootstrap"]}
    with spark_session({"spark.jars": ",".join(jars())}) as spark:
        reading = {
            **servers,
            "subscribe": plan["source"],
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
        }
        rows = spark.readStream.format("kafka").options(**reading).load().select("key", "value")
        for sink in ("ours", "stock"):
            if sink not in plan:
                continue
            checkpoint = f"{plan['checkpoint']}/{sink}"
            if sink == "ours":
                options = {"topic": plan[sink], "checkpointLocation": checkpoint, **servers}
                writer = rows.writeStream.foreachBatch(foreach_batch(**options))
            else:
                writer = rows.writeStream.format("kafka").options(topic=plan[sink], **servers)
            writer = writer.option("checkpointLocation", checkpoint)
            finish(writer.trigger(availableNow=True).start())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
