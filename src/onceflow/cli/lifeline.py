"""The connection between a worker process and the ``onceflow run`` that started it.

The worker tells over it where it answers and what it did, one JSON document a line. It ends when
the process that started it dies, also by SIGKILL. The worker then stops as after SIGTERM, so that
no worker is left behind.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Mapping

from onceflow.sdk.serde import to_json


class Lifeline:
    """The worker's end.

    Args:
        descriptor: File descriptor of the socket that was inherited.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        self._thread = threading.Thread(target=self._watch, name="onceflow-lifeline", daemon=True)
        self._thread.start()

    def tell(self, event: Mapping[str, object]) -> None:
        """Send an event.

        Args:
            event: What JSON can hold.
        """
        try:
            self._socket.sendall(to_json(event) + b"\n")
        except OSError:
            return  # It died; the thread has noticed, and the worker stops.

    def _watch(self) -> None:
        try:
            while self._socket.recv(1024):
                pass
        except OSError:
            pass  # Its end as well.
        os.kill(os.getpid(), signal.SIGTERM)
