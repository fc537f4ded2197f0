"""The two brokers that test suites of other clients run against; standard library only.

Such a suite runs in an environment of its own, where onceflow is not installed: the variables
``SUITE_BROKER`` (``ours`` or ``kafka``) and ``SUITE_PYTHON`` (a Python with onceflow) say which
broker to start. Both get the same settings, in Kafka's names.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import real_kafka

STOP_S = 60
READY = "the broker of the suite is ready"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "num.partitions": "4",
    "node.id": "0",
    "group.min.session.timeout.ms": "1000",
}
JAAS = "org.apache.kafka.common.security"
SASL = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.wanted.plain.sasl.jaas.config": f"{JAAS}.plain.PlainLoginModule required "
    'user_alice="alice-secret";',
    "listener.name.wanted.scram-sha-256.sasl.jaas.config": f"{JAAS}.scram.ScramLoginModule "
    "required;",
    "listener.name.wanted.scram-sha-512.sasl.jaas.config": f"{JAAS}.scram.ScramLoginModule "
    "required;",
}
"""User alice by PLAIN; users of SCRAM are made over the listener without security."""


@dataclass
class SuiteBroker:
    """A running broker.

    Attributes:
        plain_port: Port of the listener without security.
        wanted_port: Port of the listener with the protocol that was asked for.
        stop: Ends the process and waits for it.
    """

    plain_port: int
    wanted_port: int
    stop: Callable[[], None]


def start(
    folder: Path, protocol: str = "PLAINTEXT", settings: Mapping[str, str] | None = None
) -> SuiteBroker:
    """Start the broker that ``SUITE_BROKER`` names on a new folder, with a listener for
    ``protocol`` beside the one without security.
    """
    plain, wanted, controller = real_kafka.free_ports(3)
    listeners = f"PLAINTEXT://{real_kafka.HOST}:{plain},WANTED://localhost:{wanted}"
    values = {
        **SETTINGS,
        "listeners": listeners,
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,WANTED:{protocol}",
        **(SASL if protocol.startswith("SASL") else {}),
        **(settings or {}),
    }
    if os.environ["SUITE_BROKER"] == "kafka":
        values |= {
            "listeners": f"{listeners},CONTROLLER://{real_kafka.HOST}:{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": f"{values['listener.security.protocol.map']},"
            "CONTROLLER:PLAINTEXT",
            "controller.quorum.voters": f"0@{real_kafka.HOST}:{controller}",
            "inter.broker.listener.name": "PLAINTEXT",
        }
        kafka = real_kafka.ApacheKafka(folder, port=plain, settings=values)
        kafka.start()
        return SuiteBroker(plain, wanted, kafka.stop)
    process = _spawn_ours(folder, values)

    def stop() -> None:
        process.terminate()
        process.wait(STOP_S)

    return SuiteBroker(plain, wanted, stop)


def _spawn_ours(folder: Path, values: Mapping[str, str]) -> subprocess.Popen[str]:
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    command = [os.environ["SUITE_PYTHON"], "-m", "onceflow.broker_lite", "--config", str(config)]
    command += ["--data", str(folder / "data"), "--ready-message", READY]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if READY in line:
            return process
    raise RuntimeError(f"the broker ended: {(folder / 'server.log').read_text()[-3000:]}")
