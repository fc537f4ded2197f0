"""Asks a broker whether it answers: ``python -m onceflow.broker_lite.health [HOST:PORT]``.

For health checks of containers: one ApiVersions request on a connection of its own. Without an
address it takes the first listener of ``KAFKA_LISTENERS``. The exit code is 0 for an answer.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import sys

TIMEOUT_SECONDS = 5.0
DEFAULT = "PLAINTEXT://127.0.0.1:9092"
API_VERSIONS_KEY = 18
CORRELATION_ID = 1


def is_healthy(host: str, port: int, *, tls: bool = False) -> bool:
    """Whether a broker answers ApiVersions there.

    Args:
        host: Address.
        port: Port.
        tls: Whether the listener expects TLS; its certificate is not checked.
    """
    request = struct.pack(">hhih", API_VERSIONS_KEY, 0, CORRELATION_ID, -1)
    try:
        with socket.create_connection((host, port), TIMEOUT_SECONDS) as plain:
            connection = _encrypted(plain, host) if tls else plain
            with connection:
                connection.sendall(struct.pack(">i", len(request)) + request)
                head = _read(connection, 10)
    except OSError:
        return False
    # Length, correlation id, error code: 0 comes from a broker that is ready.
    return len(head) == 10 and struct.unpack(">iih", head)[1:] == (CORRELATION_ID, 0)


def _encrypted(plain: socket.socket, host: str) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(plain, server_hostname=host)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data


def main() -> int:
    """Check the broker that the command line or the environment names."""
    listener = sys.argv[1] if len(sys.argv) > 1 else os.environ.get("KAFKA_LISTENERS", DEFAULT)
    listener = listener.split(",")[0].strip()
    name, _, address = listener.rpartition("://")
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not port.isdigit():
        print(f"{listener!r} is no HOST:PORT", file=sys.stderr)
        return 2
    protocols = dict(
        entry.strip().partition(":")[::2]
        for entry in os.environ.get("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "").split(",")
    )
    tls = protocols.get(name, name).endswith("SSL")
    wildcard = host in ("", "0.0.0.0", "::")
    return 0 if is_healthy("127.0.0.1" if wildcard else host, int(port), tls=tls) else 1


if __name__ == "__main__":
    sys.exit(main())
