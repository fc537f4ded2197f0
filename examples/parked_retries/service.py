"""A shipping service that fails for customers whose name is in the file `down`.

python -m examples.parked_retries.service 8080
echo bob > down        # bob's orders fail from now on
rm down                # and work again
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

DOWN = Path("down")
parcels: dict[str, int] = {}
"""Number of the parcel by idempotency key: a repeated request makes no second one."""


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        customer = self.path.rpartition("/")[2]
        if DOWN.exists() and customer in DOWN.read_text().split():
            self.answer(503, {"error": "try again"})
        else:
            parcel = parcels.setdefault(self.headers["Idempotency-Key"], len(parcels) + 1)
            self.answer(200, {"parcel": parcel})

    def do_GET(self) -> None:
        self.answer(200, {"parcels": len(parcels)})

    def answer(self, status: int, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
