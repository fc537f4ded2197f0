"""A small HTTP server for health and metrics: fixed paths, each with a function that answers.

It listens for kubelets and Prometheus, so it answers GET alone, reads no bodies, and bounds how
long a connection may take.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, TypeAlias

Answer: TypeAlias = tuple[int, bytes]
Routes: TypeAlias = Mapping[str, Callable[[], Answer]]

REQUEST_LIMIT_S: Final = 10.0
"""How long a connection may take to send its request."""
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class AnswerServer:
    """Answers on one port until it is closed.

    Args:
        name: Of its thread.
        host: Address to listen on.
        port: Port, 0 for a free one.
        routes: By path, what gives status and body.
        logger: Takes what was asked.

    Raises:
        OSError: The port cannot be had.
    """

    def __init__(
        self, name: str, host: str, port: int, routes: Routes, logger: logging.Logger
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = REQUEST_LIMIT_S

            def do_GET(self) -> None:
                answer = routes.get(self.path.partition("?")[0])
                there = " ".join(routes)
                status, body = answer() if answer else (404, f"there are {there}\n".encode())
                self.send_response(status)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: Any) -> None:
                logger.debug(format, *arguments)

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), daemon=True, name=name
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it answers, as ``http://HOST:PORT``."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def close(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
