"""Small HTTP servers of ``onceflow run``: health on one port, metrics on the same or another."""

from __future__ import annotations

import logging

from onceflow.cli.base import Failure
from onceflow.sdk.observe.answers import AnswerServer, Routes

logger: logging.Logger = logging.getLogger("onceflow.run")


class Served:
    """Answers GET requests until it is closed.

    Args:
        host: Address to listen on.
        health_port: Port of the health answers; 0 takes a free one, None serves none.
        health: The health answers.
        metrics_port: Port of the metrics, likewise; may be the same.
        metrics: The answers with metrics.

    Raises:
        Failure: A port cannot be had.
    """

    def __init__(
        self,
        host: str,
        health_port: int | None,
        health: Routes,
        metrics_port: int | None,
        metrics: Routes,
    ) -> None:
        self._servers: dict[str, AnswerServer] = {}
        shared = bool(health_port) and health_port == metrics_port
        if metrics_port is not None and not shared:
            self._serve("metrics", host, metrics_port, metrics)
        if health_port is not None:
            self._serve("health", host, health_port, {**health, **(metrics if shared else {})})
        if shared:
            self._servers["metrics"] = self._servers["health"]

    @property
    def addresses(self) -> dict[str, str]:
        """Where it answers, by ``health`` and ``metrics``."""
        return {name: server.address for name, server in self._servers.items()}

    def close(self) -> None:
        """Answer no more."""
        for server in set(self._servers.values()):
            server.close()

    def _serve(self, name: str, host: str, port: int, routes: Routes) -> None:
        try:
            self._servers[name] = AnswerServer(name, host, port, routes, logger)
        except OSError as error:
            self.close()
            option = f"--{name}-port {port}"
            raise Failure(f"{option}: cannot listen on {host}: {error.strerror}", 1) from error
