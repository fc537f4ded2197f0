"""Small HTTP servers of ``onceflow run``: health on one port, metrics on the same or another."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeAlias

from onceflow.cli.base import Failure

logger: logging.Logger = logging.getLogger("onceflow.run")

REQUEST_LIMIT_S: Final = 10.0
"""How long a connection may take to send its request."""

Routes: TypeAlias = Mapping[str, Callable[[], tuple[int, bytes]]]
"""What gives status and body of an answer, by path."""


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
        self._servers: dict[str, ThreadingHTTPServer] = {}
        self._threads: list[threading.Thread] = []
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
        return {
            name: f"http://{server.server_address[0]!s}:{server.server_address[1]}"
            for name, server in self._servers.items()
        }

    def close(self) -> None:
        """Answer no more."""
        for server in set(self._servers.values()):
            server.shutdown()
            server.server_close()
        for thread in self._threads:
            thread.join()

    def _serve(self, name: str, host: str, port: int, routes: Routes) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_LIMIT_S

            def do_GET(self) -> None:
                answer = routes.get(self.path.partition("?")[0])
                there = " ".join(routes)
                status, body = answer() if answer else (404, f"there are {there}\n".encode())
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                logger.debug(format, *arguments)

        try:
            server = ThreadingHTTPServer((host, port), Handler)
        except OSError as error:
            self.close()
            option = f"--{name}-port {port}"
            raise Failure(f"{option}: cannot listen on {host}: {error.strerror}", 1) from error
        server.daemon_threads = True
        self._servers[name] = server
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True, name=name)
        self._threads.append(thread)
        thread.start()
