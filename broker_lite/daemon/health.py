"""Checks whether a broker answers: ``python -m onceflow.broker_lite.daemon.health [HOST:PORT]``.

It is for health checks of containers: it sends one ApiVersions request on a new connection. Without
an address it uses the first listener of ``KAFKA_LISTENERS`` that is not a controller's. The exit
code is 0 for any answer, also if the broker requires a client certificate, which this check lacks.
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import sys

from onceflow.sdk.model.special_values import API_VERSIONS_KEY

TIMEOUT_SECONDS = 5.0
DEFAULT = "PLAINTEXT://127.0.0.1:9092"
ASKS_FOR_A_CERTIFICATE = ("ALERT_CERTIFICATE_REQUIRED", "ALERT_HANDSHAKE_FAILURE")
"""Ends of OpenSSL's reasons if the broker requires a certificate (TLS 1.3 and 1.2)."""

LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}
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
    except ssl.SSLError as error:
        return tls and (error.reason or "").endswith(ASKS_FOR_A_CERTIFICATE)
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
    listener = sys.argv[1] if len(sys.argv) > 1 else _first_listener()
    name, _, address = listener.rpartition("://")
    name = name.upper()
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not port.isdigit():
        print(f"{listener!r} is not HOST:PORT", file=sys.stderr)
        return 2
    protocols = dict(
        entry.strip().upper().partition(":")[::2]
        for entry in os.environ.get("KAFKA_LISTENER_SECURITY_PROTOCOL_MAP", "").split(",")
    )
    tls = protocols.get(name, name).endswith("SSL")
    return 0 if is_healthy(LOOPBACK.get(host, host), int(port), tls=tls) else 1


def _first_listener() -> str:
    """Return the first listener in the environment that this broker serves."""
    controllers = os.environ.get("KAFKA_CONTROLLER_LISTENER_NAMES", "").upper().split(",")
    left_out = {name.strip() for name in controllers}
    for entry in os.environ.get("KAFKA_LISTENERS", DEFAULT).split(","):
        if entry.strip().partition(":")[0].upper() not in left_out:
            return entry.strip()
    return DEFAULT


if __name__ == "__main__":
    sys.exit(main())
