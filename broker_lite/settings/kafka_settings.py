"""Settings as Kafka's users have them: a ``server.properties`` file, and ``KAFKA_...`` variables.

It decides how a file is read, which property a variable sets, and which of Kafka's properties are
ignored because they change nothing in this broker. Any other unknown name is refused, so that a
mistyped one is noticed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from onceflow.broker_lite.settings.broker_config import BROKER_SETTINGS
from onceflow.broker_lite.settings.idle_dynamic import IDLE_DYNAMIC_SETTINGS
from onceflow.sdk.errors import ConfigError

VARIABLE_PREFIX = "KAFKA_"

_FOR_THE_JVM = """
KAFKA_HEAP_OPTS KAFKA_OPTS KAFKA_JMX_OPTS KAFKA_JMX_PORT KAFKA_JMX_HOSTNAME KAFKA_GC_LOG_OPTS
KAFKA_JVM_PERFORMANCE_OPTS KAFKA_LOG4J_OPTS KAFKA_LOG4J_LOGGERS KAFKA_LOG4J_ROOT_LOGLEVEL
KAFKA_TOOLS_LOG4J_LOGLEVEL KAFKA_HOME KAFKA_VERSION KAFKA_LOG_DIR
"""
FOR_THE_JVM = frozenset(_FOR_THE_JVM.split())
"""Variables for Apache Kafka's scripts, which are not properties."""

CLUSTER_ID_VARIABLES = ("CLUSTER_ID", "KAFKA_CLUSTER_ID", "KAFKA_KRAFT_CLUSTER_ID")
"""Variables by which Kafka's images set the cluster id of a new data folder."""

CLUSTER_ID_PROPERTY = "onceflow.cluster.id"
KRAFT_MODE_VARIABLE = "KAFKA_KRAFT_MODE"

_OF_A_SERVICE = re.compile(
    r"KAFKA_(\w+?_)??(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?|(?P<address>PORT))"
)
"""Variables that Kubernetes makes in every container for a service whose name begins with kafka."""

_WITHOUT_EFFECT = """
process.roles inter.broker.listener.name security.inter.broker.protocol
sasl.mechanism.inter.broker.protocol sasl.mechanism.controller.protocol
inter.broker.protocol.version early.start.listeners broker.id.generation.enable
offsets.topic.replication.factor transaction.state.log.replication.factor
transaction.state.log.min.isr share.coordinator.state.topic.replication.factor
share.coordinator.state.topic.min.isr queued.max.requests sasl.kerberos.service.name
sasl.kerberos.principal.to.local.rules socket.send.buffer.bytes socket.receive.buffer.bytes
socket.listen.backlog.size request.timeout.ms auto.leader.rebalance.enable
leader.imbalance.check.interval.seconds leader.imbalance.per.broker.percentage log.cleaner.enable
log.message.format.version log.segment.delete.delay.ms initial.broker.registration.timeout.ms
broker.heartbeat.interval.ms broker.session.timeout.ms reserved.broker.max.id
fetch.purgatory.purge.interval.requests producer.purgatory.purge.interval.requests
delete.records.purgatory.purge.interval.requests offsets.load.buffer.size offsets.commit.timeout.ms
offsets.topic.compression.codec controlled.shutdown.enable controlled.shutdown.max.retries
controlled.shutdown.retry.backoff.ms metric.reporters auto.include.jmx.reporter
group.coordinator.threads
"""
WITHOUT_EFFECT = frozenset(_WITHOUT_EFFECT.split()) | IDLE_DYNAMIC_SETTINGS.keys()
"""Properties of Apache Kafka without effect here: threads, replication, other processes."""

PREFIXES_WITHOUT_EFFECT = (
    "zookeeper.", "controller.", "replica.", "remote.log.", "metadata.", "metrics.", "kafka.",
    "delegation.token.", "group.share.", "group.streams.", "share.coordinator.", "confluent.",
    "password.encoder.", "telemetry.",
)  # fmt: skip

DATA_PROPERTIES = ("log.dirs", "log.dir")
_HEX4 = re.compile(r"[0-9A-Fa-f]{4}")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class KafkaSettings(NamedTuple):
    """Settings in this broker's terms.

    Attributes:
        properties: Properties that have an effect, or that must be refused by name.
        data: Folder for the data, None if no setting names one.
        passed_over: Names of properties without effect.
    """

    properties: dict[str, str]
    data: str | None
    passed_over: list[str]


def read_file(text: str) -> dict[str, str]:
    """Read the content of a properties file in Java's format.

    Args:
        text: ``name=value`` lines; ``#`` and ``!`` begin comments, a backslash at its end
            continues a line.

    Raises:
        ConfigError: A line has a malformed escape.
    """
    properties: dict[str, str] = {}
    logical = ""
    for line in [*text.splitlines(), ""]:
        part = line.lstrip(" \t\f")
        if not logical and (not part or part[0] in "#!"):
            continue
        body = part.rstrip("\\")
        if (len(part) - len(body)) % 2:
            logical += part[:-1]
            continue
        name, value = _name_and_value(logical + part)
        properties[name] = value
        logical = ""
    return properties


class Variable(NamedTuple):
    """A property that a variable sets.

    Attributes:
        variable: Name of the variable.
        value: Its value.
    """

    variable: str
    value: str


def read_environment(environment: Mapping[str, str]) -> dict[str, Variable]:
    """Properties from variables, as Kafka's own images read them.

    ``KAFKA_NUM_PARTITIONS`` is ``num.partitions``; two underscores stand for one, three for a dash.
    ``CLUSTER_ID`` is the cluster's id, and ``KAFKA_KRAFT_MODE`` may only be true. Variables that
    Kubernetes sets for a service named ``kafka``, such as ``KAFKA_SERVICE_HOST``, are ignored.

    Raises:
        ConfigError: ``KAFKA_KRAFT_MODE`` asks for ZooKeeper, or two variables name the cluster.
    """
    properties: dict[str, Variable] = {}
    for variable in sorted(environment):
        value = environment[variable]
        of_service = _OF_A_SERVICE.fullmatch(variable)
        if of_service and (not of_service["address"] or "://" in value):
            continue
        if variable == KRAFT_MODE_VARIABLE:
            if value.strip().lower() not in ("true", "yes", "1"):
                remedy = "set it to true or leave it out: this broker does not need ZooKeeper"
                raise ConfigError(variable, value, remedy)
        elif variable in CLUSTER_ID_VARIABLES:
            if not value.strip():
                continue
            other = properties.setdefault(CLUSTER_ID_PROPERTY, Variable(variable, value))
            if other.value != value:
                remedy = f"leave it out: {other.variable} names another cluster, {other.value}"
                raise ConfigError(variable, value, remedy)
        elif variable.startswith(VARIABLE_PREFIX) and variable not in FOR_THE_JVM:
            name = variable.removeprefix(VARIABLE_PREFIX).lower()
            name = name.replace("___", "-").replace("__", "\0").replace("_", ".")
            properties[name.replace("\0", "_")] = Variable(variable, value)
    return properties


def adapt(properties: Mapping[str, str]) -> KafkaSettings:
    """Convert settings of a Kafka installation that differ in this broker.

    The controller's listeners are left out, ``broker.id`` is ``node.id``, ``log.dirs`` is the data
    folder.

    Raises:
        ConfigError: There are several data folders.
    """
    kept = dict(properties)
    data = None
    for name in DATA_PROPERTIES:
        folder = kept.pop(name, None)
        if folder is not None and data is None:
            if "," in folder:
                raise ConfigError(name, folder, "give one folder; this broker keeps all in one")
            data = folder.strip() or None
    broker_id = kept.pop("broker.id", None)
    if broker_id is not None and broker_id.strip() != "-1":  # -1 lets Kafka choose one.
        kept.setdefault("node.id", broker_id)
    controllers = {
        name.strip().upper() for name in kept.get("controller.listener.names", "").split(",")
    }
    for name in ("listeners", "advertised.listeners"):
        if name in kept:
            entries = [entry.strip() for entry in kept[name].split(",")]
            kept[name] = ",".join(
                entry for entry in entries if entry.partition(":")[0].upper() not in controllers
            )
    passed_over = [
        name
        for name in kept
        if name not in BROKER_SETTINGS
        and (name in WITHOUT_EFFECT or name.startswith(PREFIXES_WITHOUT_EFFECT))
    ]
    for name in passed_over:
        del kept[name]
    return KafkaSettings(kept, data, passed_over)


def _name_and_value(line: str) -> tuple[str, str]:
    position = 0
    while position < len(line) and line[position] not in "=: \t\f":
        position += 2 if line[position] == "\\" else 1
    name = line[:position]
    rest = line[position:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return _unescape(name), _unescape(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out = []
    position = 0
    while position < len(text):
        letter = text[position]
        position += 1
        if letter != "\\":
            out.append(letter)
            continue
        escaped = text[position : position + 1]
        position += 1
        if escaped == "u":
            code = text[position : position + 4]
            if not _HEX4.fullmatch(code):
                raise ConfigError("--config", text, "write \\u with four hexadecimal digits")
            out.append(chr(int(code, 16)))
            position += 4
        else:
            out.append(_ESCAPES.get(escaped, escaped))
    return "".join(out)
