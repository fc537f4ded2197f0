"""A pytest plugin under which kafka-python's own integration tests take a broker of ours.

Replaces what their fixture does to start Apache Kafka from a downloaded release; `suite_brokers`
says which broker runs instead. Everything else is their tests as published.
"""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import suite_brokers
from kafka import KafkaAdminClient

fixtures: Any = importlib.import_module("test.integration.fixtures")
"""The suite's own module; it lies beside the tests that are run, not in an installed package."""
PKCS12 = {
    "ssl.keystore.type": "PKCS12",
    "ssl.keystore.password": "foobar",
    "ssl.truststore.type": "PKCS12",
    "ssl.truststore.password": "foobar",
}
"""`keytool` writes this form, whatever the file is called."""


class SuiteFixture(fixtures.KafkaFixture):  # type: ignore[misc]
    """Their fixture with another way to start, to stop and to list topics."""

    broker: suite_brokers.SuiteBroker | None = None

    def open(self) -> None:
        if self.running:
            return
        folder = Path(tempfile.mkdtemp(prefix="kafka-python-suite-"))
        settings = {"num.partitions": str(self.partitions)}
        settings["auto.create.topics.enable"] = str(self.auto_create_topic).lower()
        if self.ssl_enabled:
            self.ssl_dir = str(folder)
            fixtures.gen_ssl_resources(self.ssl_dir)
            settings |= PKCS12
            settings["ssl.keystore.location"] = str(folder / "kafka.server.keystore.jks")
            settings["ssl.truststore.location"] = str(folder / "kafka.server.truststore.jks")
        self.broker = suite_brokers.start(folder / "broker", self.transport, settings)
        self.host, self.port = "localhost", self.broker.wanted_port
        self.child = SimpleNamespace(dump_logs=lambda: None)
        self.running = True
        if (self.sasl_mechanism or "").startswith("SCRAM"):
            with self._admin() as admin:
                admin.alter_user_scram_credentials(self._scram_user())

    def start(self) -> None:
        self.open()

    def stop(self) -> None:
        if self.broker is not None:
            self.broker.stop()
        self.broker, self.running = None, False

    def close(self) -> None:
        self.stop()

    def get_topic_names(self) -> list[str]:
        with self._admin() as admin:
            names: list[str] = admin.list_topics()
        return names

    def _admin(self) -> Any:
        assert self.broker is not None
        return KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{self.broker.plain_port}")

    def _scram_user(self) -> list[Any]:
        from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

        mechanism = ScramMechanism[self.sasl_mechanism.replace("-", "_")]
        return [UserScramCredentialUpsertion(self.broker_user, mechanism, self.broker_password)]


fixtures.KafkaFixture.instance = classmethod(
    lambda cls, broker_id, **params: _started(broker_id, **params)
)


def _started(
    broker_id: int, host: str = "localhost", port: int | None = None, **params: Any
) -> Any:
    fixture = SuiteFixture(host, port, broker_id, **params)
    fixture.open()
    return fixture
