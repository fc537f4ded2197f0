"""Whether `sendfile` would serve Fetch cheaper than a read and a `writev`: processor time for a MB.

Sends a file of the page cache through a loopback socket, in answers of 64 KiB, 1 MiB and 8 MiB, by
both ways in turns, and takes the least of several rounds of the sender's own processor time.

    python bench/sendfile.py
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import threading
import time

ROUND_BYTES = 64 * 1024 * 1024
ROUNDS = 9
SIZES = (64 * 1024, 1024 * 1024, 8 * 1024 * 1024)
HEADER = bytes(100)


def read_and_writev(out: int, file: int, position: int, size: int) -> None:
    """What the broker does."""
    parts: list[bytes | memoryview] = [HEADER, os.pread(file, size, position)]
    while parts:
        sent = os.writev(out, parts)
        while parts and sent >= len(parts[0]):
            sent -= len(parts.pop(0))
        if parts:
            parts[0] = memoryview(parts[0])[sent:]


def sendfile(out: int, file: int, position: int, size: int) -> None:
    """Header by itself, then the file's bytes within the kernel."""
    os.write(out, HEADER)
    while size:
        sent = os.sendfile(out, file, position, size)
        position, size = position + sent, size - sent


def drain(connection: socket.socket) -> None:
    """Take everything; its processor time is not the sender's thread's."""
    buffer = bytearray(1024 * 1024)
    while connection.recv_into(buffer):
        pass


def main() -> None:
    """Measure and print."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryFile() as file:
        file.write(os.urandom(ROUND_BYTES))
        file.flush()
        sender, receiver = _pair()
        thread = threading.Thread(target=drain, args=(receiver,), daemon=True)
        thread.start()
        for size in SIZES:
            least = {"read_writev": float("inf"), "sendfile": float("inf")}
            for _ in range(ROUNDS):
                for name, way in (("read_writev", read_and_writev), ("sendfile", sendfile)):
                    begin = time.thread_time()
                    for position in range(0, ROUND_BYTES, size):
                        way(sender.fileno(), file.fileno(), position, size)
                    least[name] = min(least[name], time.thread_time() - begin)
            megabytes = ROUND_BYTES / 1e6
            found[str(size)] = {name: round(s / megabytes * 1e6) for name, s in least.items()}
        sender.close()
        thread.join()
    print(json.dumps({"bench": "sendfile", "cpu_us_per_mb": found}))


def _pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    return sender, receiver


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
    else:
        main()
