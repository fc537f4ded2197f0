"""Apache Kafka itself, for conformance tests: fetched once by Maven, run on 127.0.0.1.

Decides where the jars are kept, how one combined KRaft node is configured, and when it is ready.
Every release from 3.3 on can be had that way; one before it runs beside a ZooKeeper of its own.
As a program: ``python tests/support/real_kafka.py start|stop|tool ...`` (see ``--help``).
Needs Java 17+ and, for the first use, Maven; ``unavailable_reason()`` says what is missing.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

VERSION = os.environ.get("ONCEFLOW_KAFKA_VERSION", "4.4.0")
HOST = "127.0.0.1"
START_SECONDS_MAX = 120
SHORT_LIFE = ("-Xms256M", "-Xmx1G", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""For a node that lives for a test run: it starts, and does little work, for half the processor."""
LONG_LIFE = ("-Xms1G", "-Xmx1G", "-XX:+UseG1GC")
"""For a node that is measured, as Kafka's own scripts start it."""
ZOOKEEPER = "org.apache.zookeeper.server.ZooKeeperServerMain"
BROKER_ARTIFACTS = ("kafka_2.13", "kafka-tools")
TOOL_CLASSES = {
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-configs": "org.apache.kafka.tools.ConfigCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
}
ZOOKEEPER_OF_OLDER = "3.5.9"
"""For releases before 2.4: the one that they bring finds no address under Java 17."""
LOG4J_OF_OLDER = "2.24.3"
"""For releases whose published jars name no version of Log4j 2 (4.0)."""
LOGGING = """rootLogger.level = WARN
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.target = SYSTEM_ERR
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = [%d] %p %m (%c)%n
"""
LOGGING_1 = """log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.target=System.err
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n
"""
"""The same for the Log4j 1 of releases before 4.0."""

ANYBODY_MAY = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Settings under which ACLs are kept, and bind nobody who has not said who it is."""


def anybody_may(version: str) -> dict[str, str]:
    """The same for a release: with ZooKeeper the authorizers were others."""
    if not needs_zookeeper(version):
        return ANYBODY_MAY
    name = "authorizer.AclAuthorizer" if _numbers(version) >= (2, 4) else "auth.SimpleAclAuthorizer"
    return ANYBODY_MAY | {"authorizer.class.name": f"kafka.security.{name}"}


def cache_folder(version: str = VERSION) -> Path:
    """Where a version's jars and logging file are kept between runs."""
    root = os.environ.get("ONCEFLOW_KAFKA_CACHE") or Path.home() / ".cache" / "onceflow-kafka"
    return Path(root) / version


def needs_zookeeper(version: str) -> bool:
    """Whether a release is not fit to run without ZooKeeper; KRaft is, from 3.3 on."""
    return _numbers(version) < (3, 3)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".")[:2])


def java() -> str | None:
    """The Java program, or None."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java")


def unavailable_reason(version: str = VERSION) -> str | None:
    """Why Apache Kafka cannot be run here, or None when it can."""
    if java() is None:
        return "Java 17+ is missing (make java)"
    if not (cache_folder(version) / "jars").is_dir() and shutil.which("mvn") is None:
        return "Maven is missing, and Apache Kafka's jars were not fetched before"


def _pom(version: str, log4j: str, artifacts: Sequence[str]) -> str:
    def dependency(group: str, artifact: str, version: str) -> str:
        inner = "".join(
            f"<{tag}>{text}</{tag}>"
            for tag, text in (("groupId", group), ("artifactId", artifact), ("version", version))
        )
        return f"<dependency>{inner}</dependency>"

    if _numbers(version) < (2, 4):
        artifacts = [name.replace("_2.13", "_2.12") for name in artifacts]
    wanted = [dependency("org.apache.kafka", name, version) for name in artifacts]
    if _numbers(version) < (2, 4):
        wanted.append(dependency("org.apache.zookeeper", "zookeeper", ZOOKEEPER_OF_OLDER))
    if log4j:
        wanted.append(dependency("org.apache.logging.log4j", "log4j-slf4j-impl", log4j))
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>local</groupId>"
        "<artifactId>jars</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{''.join(wanted)}</dependencies></project>"
    )


def _copy_jars(
    work: Path, version: str, log4j: str = "", artifacts: Sequence[str] = BROKER_ARTIFACTS
) -> None:
    (work / "pom.xml").write_text(_pom(version, log4j, artifacts))
    command = ["mvn", "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    subprocess.run(
        [*command, f"-DoutputDirectory={work / 'jars'}"], cwd=work, check=True, timeout=900
    )


def jars(version: str = VERSION) -> Path:
    """The folder with Apache Kafka's jars, fetched on the first call."""
    folder = cache_folder(version) / "jars"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        print(f"fetching Apache Kafka {version} by Maven (once)", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            work = Path(temporary)
            _copy_jars(work, version)
            names = {jar.name.rpartition("-")[0] for jar in (work / "jars").iterdir()}
            if names & {"slf4j-reload4j", "slf4j-log4j12"}:
                (folder.parent / "log4j.properties").write_text(LOGGING_1)
            else:
                core = [jar.stem for jar in (work / "jars").glob("log4j-core-*.jar")]
                log4j = core[0].removeprefix("log4j-core-") if core else LOG4J_OF_OLDER
                _copy_jars(work, version, log4j)
                (folder.parent / "log4j2.properties").write_text(LOGGING)
            (work / "jars").rename(folder)
    return folder


def has_streams_jars() -> bool:
    """Whether Kafka Streams' jars were fetched before."""
    return (cache_folder() / "streams-jars").is_dir()


def streams_jars() -> Path:
    """The folder with Kafka Streams' jars and the Java clients, fetched on the first call."""
    folder = cache_folder() / "streams-jars"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
                _copy_jars(Path(temporary), VERSION, artifacts=("kafka-streams",))
                (Path(temporary) / "jars").rename(folder)
    return folder


def java_command(
    main_class: str, *args: str, jvm: Sequence[str] = (), version: str = VERSION
) -> list[str]:
    """The command line that runs a class of Apache Kafka's jars."""
    program = java()
    assert program is not None, unavailable_reason(version)
    folder = jars(version)
    logging = f"-Dlog4j2.configurationFile={folder.parent / 'log4j2.properties'}"
    if (older := folder.parent / "log4j.properties").exists():
        logging = f"-Dlog4j.configuration=file:{older}"
    return [program, *jvm, logging, "-cp", f"{folder}/*", main_class, *args]


def tool(name: str, *args: str, timeout_s: float = 120, version: str = VERSION) -> str:
    """Run one of Kafka's own tools and give its standard output.

    The first tool leaves an archive of its classes; with it the next start in half the time. A
    Java machine that cannot use the archive goes on without it.

    Raises:
        subprocess.CalledProcessError: The tool failed; its output is in the exception.
    """
    jvm = ["-Xmx512M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable"]
    archive = cache_folder(version) / "tools.jsa"
    made = archive.with_suffix(f".{os.getpid()}")
    if archive.exists():
        jvm.append(f"-XX:SharedArchiveFile={archive}")
    elif name != "kafka-storage":  # It has little in common with the others.
        jvm.append(f"-XX:ArchiveClassesAtExit={made}")
    command = java_command(TOOL_CLASSES.get(name, name), *args, jvm=jvm, version=version)
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    if made.exists():
        made.rename(archive)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
    return done.stdout


def new_cluster_id() -> str:
    """A cluster id as Kafka writes them: a UUID in URL-safe base64, which no tool takes for an
    option.
    """
    while (found := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode()).startswith("-"):
        pass
    return found.rstrip("=")


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at this moment."""
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in held:
            sock.bind((HOST, 0))
        return [sock.getsockname()[1] for sock in held]


class ApacheKafka:
    """One node on a free port of 127.0.0.1, with a folder of its own: broker and controller in one,
    or, for releases before 3.3, a broker and the process of its ZooKeeper.
    """

    def __init__(
        self,
        data: Path,
        *,
        port: int = 0,
        settings: dict[str, str] | None = None,
        jvm: Sequence[str] = SHORT_LIFE,
        version: str = VERSION,
    ):
        self.data = data
        self.jvm = jvm
        self.version = version
        ports = free_ports(2)
        self.port = port or ports[0]
        self.controller_port = ports[1]
        self.settings = settings or {}
        self.process: subprocess.Popen[bytes] | None = None
        self._zookeeper: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Address for clients."""
        return f"{HOST}:{self.port}"

    def _role(self) -> dict[str, str]:
        """Settings that say who the node is and who controls the cluster."""
        listener = f"PLAINTEXT://{HOST}:{self.port}"
        if needs_zookeeper(self.version):
            address = f"{HOST}:{self.controller_port}"
            return {"broker.id": "1", "zookeeper.connect": address, "listeners": listener}
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{HOST}:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "listeners": f"{listener},CONTROLLER://{HOST}:{self.controller_port}",
        }

    def _properties(self) -> dict[str, str]:
        return {
            **self._role(),
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "log.dirs": str(self.data / "log"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
            "group.initial.rebalance.delay.ms": "0",
            "group.consumer.min.heartbeat.interval.ms": "200",
            "group.consumer.heartbeat.interval.ms": "200",
            "group.consumer.assignment.interval.ms": "0",
            **self.settings,
        }

    def start(self) -> None:
        """Format the folder if it is new, start the node, wait until it serves metadata."""
        config = self.data / "server.properties"
        self.data.mkdir(parents=True, exist_ok=True)
        config.write_text("".join(f"{k}={v}\n" for k, v in self._properties().items()))
        if needs_zookeeper(self.version):
            folder = str(self.data / "zookeeper")
            self._zookeeper = self._run(ZOOKEEPER, str(self.controller_port), folder)
        elif not (self.data / "log" / "meta.properties").exists():
            wanted = ("format", "-t", new_cluster_id(), "-c", str(config))
            tool("kafka-storage", *wanted, version=self.version)
        self.process = self._run("kafka.Kafka", str(config))
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = (self.data / "server.log").read_text(errors="replace")[-3000:]
                self.stop()
                raise RuntimeError(f"Apache Kafka did not become ready:\n{tail}")
            time.sleep(0.1)

    def _run(self, main_class: str, *args: str) -> subprocess.Popen[bytes]:
        command = java_command(main_class, *args, jvm=self.jvm, version=self.version)
        with (self.data / "server.log").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def _ready(self) -> bool:
        # Metadata v1 without topics; ready when it names one live broker.
        header = b"\x00\x03\x00\x01\x00\x00\x00\x01\x00\x01c"
        request = header + (0).to_bytes(4, "big")
        try:
            with socket.create_connection((HOST, self.port), timeout=2) as conn:
                conn.sendall(len(request).to_bytes(4, "big") + request)
                reply = conn.makefile("rb").read(12)
        except OSError:
            return False
        return len(reply) == 12 and int.from_bytes(reply[8:12], "big") == 1

    def stop(self, *, kill: bool = False) -> None:
        """End the node and wait for it; ``kill`` sends SIGKILL."""
        for process in (self.process, self._zookeeper):
            if process is None:
                continue
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=10)
        self.process = self._zookeeper = None

    def __enter__(self) -> ApacheKafka:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def main() -> None:
    """``run``: a node until Ctrl-C; ``tool NAME``: one of Kafka's tools; ``fetch``: the jars."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="start a node, print its address, stop at Ctrl-C")
    run.add_argument("--data", type=Path, required=True)
    run.add_argument("--port", type=int, default=0)
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    tools = commands.add_parser("tool", help=f"one of: {', '.join(TOOL_CLASSES)}, or a class name")
    tools.add_argument("name")
    tools.add_argument("args", nargs=argparse.REMAINDER)
    commands.add_parser("fetch", help="fetch everything by Maven that is not here yet")
    args = parser.parse_args()
    if reason := unavailable_reason():
        sys.exit(reason)
    if args.command == "fetch":
        jars()
        streams_jars()
        return
    if args.command == "tool":
        try:
            print(tool(args.name, *args.args), end="")
        except subprocess.CalledProcessError as error:
            sys.exit(f"{error.stdout}\n{error.stderr}")
        return
    settings = dict(item.split("=", 1) for item in args.set)
    node = ApacheKafka(args.data.absolute(), port=args.port, settings=settings, jvm=LONG_LIFE)
    with node as kafka:
        print(kafka.bootstrap_servers, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


if __name__ == "__main__":
    main()
