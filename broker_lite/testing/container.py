"""The broker's container for the package ``testcontainers``, in place of its ``KafkaContainer``.

It sets the broker's listeners and advertised addresses, and waits until the broker is ready. Needs
the extra ``testcontainers``.
"""

from __future__ import annotations

import io
import re
import socket
import tarfile
import time
from typing import Any, Self

from onceflow import __version__
from onceflow.broker_lite.daemon.health import is_healthy

try:
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.wait_strategies import CompositeWaitStrategy, LogMessageWaitStrategy
    from testcontainers.core.waiting_utils import WaitStrategy, WaitStrategyTarget
except ImportError as _missing:
    raise ImportError(
        "OnceflowContainer needs the package testcontainers: pip install 'onceflow[testcontainers]'"
    ) from _missing

READY_LINE = r"onceflow broker ready on .*"
POLL_SECONDS = 0.05
INSIDE = "BROKER"
INSIDE_PORT = 9092
PORT_TAKEN = re.compile(r"port is already allocated|address already in use", re.IGNORECASE)


class AnswersWaitStrategy(WaitStrategy):
    """Waits until the broker answers an ApiVersions request from outside of the container."""

    def wait_until_ready(self, container: WaitStrategyTarget) -> None:
        """Send requests until one is answered.

        Raises:
            TimeoutError: None was answered within the start-up timeout.
        """
        assert isinstance(container, OnceflowContainer)
        deadline = time.monotonic() + self._startup_timeout
        while True:
            host, _, port = container.get_bootstrap_server().rpartition(":")
            if is_healthy(host, int(port), tls=container.security_protocol.endswith("SSL")):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the broker does not answer on {host}:{port} within "
                    f"{self._startup_timeout} seconds; its log: {container.log_tail()}"
                )
            time.sleep(self._poll_interval)


class OnceflowContainer(DockerContainer):
    """The broker in a container.

    Clients on the host reach it at a port that is chosen before the start, so that a restart of the
    container keeps it. Containers of the same network reach it at port 9092 of its first alias (or
    its address). Settings are variables with Kafka's names, as for Kafka's own image.

    Args:
        image: The image, built by ``make image``.
        port: Port of the listener for clients on the host, within the container.
        wait_strategy_check_string: Pattern of the log line of a broker that is ready.
        listener_name: Name of that listener.
        security_protocol: Its protocol; the caller sets the variables that it needs.
        kwargs: As for ``DockerContainer``: env, name, ports, volumes, network, network_aliases,
            docker_client_kw, transferables, and keywords of ``docker create``.

    Attributes:
        port: As given.
        listener_name: As given.
        security_protocol: As given.
        kraft_enabled: Whether :meth:`with_kraft` was called; it has no effect.
        cluster_id: As set by :meth:`with_cluster_id`; it has no effect.
        wait_for: The pattern for the log.
        listeners: ``KAFKA_LISTENERS`` in the container.
        security_protocol_map: ``KAFKA_LISTENER_SECURITY_PROTOCOL_MAP`` in the container.

    Example:
        >>> from onceflow.broker_lite.testing import OnceflowContainer
        >>> with OnceflowContainer() as kafka:  # doctest: +SKIP
        ...     bootstrap = kafka.get_bootstrap_server()
    """

    def __init__(
        self,
        image: str = f"onceflow:{__version__}",
        port: int = 9093,
        wait_strategy_check_string: str = READY_LINE,
        listener_name: str = "PLAINTEXT",
        security_protocol: str = "PLAINTEXT",
        **kwargs: Any,
    ) -> None:
        if "port_to_expose" in kwargs:
            raise ValueError("Use `port` instead of `port_to_expose`")
        super().__init__(image, **kwargs)
        self.port = port
        self.listener_name = listener_name
        self.security_protocol = security_protocol
        self.kraft_enabled: bool = False
        self.cluster_id: str = "MkU3OEVBNTcwNTJENDM2Qk"
        self.wait_for: re.Pattern[str] = re.compile(wait_strategy_check_string)
        self.listeners: str = f"{listener_name}://0.0.0.0:{port},{INSIDE}://0.0.0.0:{INSIDE_PORT}"
        self.security_protocol_map: str = f"{INSIDE}:PLAINTEXT,{listener_name}:{security_protocol}"
        self._host_port = 0
        self._inside_port = INSIDE_PORT
        self._waits_by_itself = self._wait_strategy is None

    # --- methods of KafkaContainer

    def with_kraft(self) -> Self:
        """Do nothing; it exists for compatibility, as this broker has no ZooKeeper mode."""
        self.kraft_enabled = True
        return self

    def with_cluster_id(self, cluster_id: str) -> Self:
        """Keep the id for compatibility; the broker makes its own.

        Args:
            cluster_id: The id.
        """
        self.cluster_id = cluster_id
        return self

    def waiting_for(self, strategy: WaitStrategy) -> Self:
        """Replace the default wait for the log line and an answer.

        Args:
            strategy: The wait strategy.
        """
        self._waits_by_itself = False
        super().waiting_for(strategy)
        return self

    def get_bootstrap_server(self) -> str:
        """Return ``HOST:PORT`` for clients on the host."""
        return f"{self._reachable_host()}:{self._host_port}"

    def configure(self) -> None:
        """Set the variables that the caller did not set."""
        told = f"{self.listener_name}://{self._reachable_host()}:{self._host_port}"
        if self._on_host_network:
            # The host network has no port mapping: the broker listens on the chosen ports itself.
            self.listeners = (
                f"{self.listener_name}://0.0.0.0:{self._host_port},"
                f"{INSIDE}://127.0.0.1:{self._inside_port}"
            )
        elif self._network is not None and self._network_aliases:
            told += f",{INSIDE}://{self._network_aliases[0]}:{INSIDE_PORT}"
        for name, value in {
            "KAFKA_LISTENERS": self.listeners,
            "KAFKA_ADVERTISED_LISTENERS": told,
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": self.security_protocol_map,
            "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        }.items():
            if name not in self.env or name in self._own_variables:
                self.with_env(name, value)
                self._own_variables.add(name)

    def tc_start(self) -> None:
        """Do nothing; testcontainers calls it after the start."""

    def create_file(self, content: bytes, path: str) -> None:
        """Write a file in the running container.

        Args:
            content: The file's content.
            path: Path within the container.
        """
        with io.BytesIO() as archive:
            with tarfile.TarFile(fileobj=archive, mode="w") as tar:
                entry = tarfile.TarInfo(name=path)
                entry.size = len(content)
                entry.mtime = int(time.time())
                tar.addfile(entry, io.BytesIO(content))
            self.get_wrapped_container().put_archive("/", archive.getvalue())

    # --- start and log

    def start(self, timeout: int = 30) -> Self:
        """Start, and return when a client can produce.

        Args:
            timeout: Longest wait in seconds.

        Raises:
            RuntimeError: The container ended; its log tells why.
            TimeoutError: The broker is not ready in time.
        """
        self._own_variables: set[str] = set()
        if self._waits_by_itself:
            self._wait_strategy = self._usual_wait(timeout)
        try:
            self._start_once()
        except Exception as error:
            # Another process took the chosen port before the start: choose another one, once.
            if not PORT_TAKEN.search(str(error)):
                raise
            if self._container is not None:
                self._container.remove(force=True, v=True)
                self._container = None
            self._start_once()
        self.tc_start()
        return self

    def log_tail(self, size: int = 2_000) -> str:
        """Return the end of the broker's output.

        Args:
            size: Most characters.
        """
        return b"".join(self.get_logs()).decode(errors="replace")[-size:]

    def _start_once(self) -> None:
        self._host_port = _free_port()
        if self._on_host_network:
            self._inside_port = _free_port()
        else:
            # The engine accepts an address too, although the declared type lacks it.
            self.ports[str(self.port)] = ("127.0.0.1", self._host_port)  # type: ignore[assignment]
        self.configure()
        super().start()

    def _usual_wait(self, timeout: int) -> WaitStrategy:
        steps = [LogMessageWaitStrategy(self.wait_for), AnswersWaitStrategy()]
        for step in steps:
            step.with_startup_timeout(timeout).with_poll_interval(POLL_SECONDS)
        return CompositeWaitStrategy(*steps)

    @property
    def _on_host_network(self) -> bool:
        return bool(self._kwargs.get("network_mode") == "host")

    def _reachable_host(self) -> str:
        if self._on_host_network:
            return "127.0.0.1"
        host = str(self.get_docker_client().host())
        return "127.0.0.1" if host == "localhost" else host

    def _get_exposed_port(self, port: int) -> int:
        if port == self.port:
            return self._host_port
        return int(super()._get_exposed_port(port))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
