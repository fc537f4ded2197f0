"""A schema registry to test against: Confluent's HTTP interface, in this process.

Subjects, versions, ids, references, deletion, and compatibility by a simple rule for Avro records
(a new field needs a default, a kept field keeps its type). Faults can be ordered, and requests are
counted. It shares no code with the client.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import ssl
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

NOT_FOUND = {"subject": 40401, "version": 40402, "schema": 40403}


class Refused(Exception):
    """An answer that is no success."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class FakeRegistry:
    """The registry; use it as a context.

    Attributes:
        requests: Method and path of everything that was asked, in order.
        faults: What to do with the next requests instead: an HTTP status, bytes to answer,
            "hang" to wait until the end, "ask" to do as it is asked, "drip" with "status",
            "headers" or "body" to send from there on one byte now and then, or "redirect", a
            status and an address.
        compiled: Base64 of the descriptor that stands for a ``.proto`` text, by the text.
        credentials: ``user:password`` or ``Bearer token`` that is demanded, None for all.
    """

    def __init__(
        self,
        context: ssl.SSLContext | None = None,
        credentials: str | None = None,
        level: str = "BACKWARD",
    ) -> None:
        self.requests: list[tuple[str, str]] = []
        self.faults: deque[int | bytes | str] = deque()
        self.credentials = credentials
        self.compiled: dict[str, str] = {}
        self._levels: dict[str, str] = {"": level}
        self._schemas: list[dict[str, Any]] = []
        self._subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self._server.daemon_threads = True
        self._secure = context is not None
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> FakeRegistry:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        """Its address."""
        port = self._server.server_address[1]
        return f"https://localhost:{port}" if self._secure else f"http://127.0.0.1:{port}"

    def _make_handler(registry) -> type[BaseHTTPRequestHandler]:  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments: object) -> None:
                pass

            def _answer(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else {}
                status, found = registry.handle(
                    self.command, self.path, body, self.headers.get("Authorization")
                )
                if isinstance(found, str):
                    self._misbehave(found)
                    return
                data = found if isinstance(found, bytes) else json.dumps(found).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _misbehave(self, how: str) -> None:
                """Redirect, or send an answer byte by byte until the other side goes."""
                word, place, *target = how.split(" ")
                if word == "redirect":
                    self.send_response(int(place))
                    self.send_header("Location", target[0])
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                self.close_connection = True
                whole = b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"
                sent = {"status": 5, "headers": 20, "body": len(whole)}[place]
                self.wfile.write(whole[:sent])
                with contextlib.suppress(OSError):
                    while not registry._end.wait(0.01):
                        self.wfile.write(b"1")

            do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

        return Handler

    def handle(
        self, method: str, path: str, body: dict[str, Any], authorization: str | None
    ) -> tuple[int, object]:
        """One request."""
        with self._lock:
            self.requests.append((method, path))
            fault = self.faults.popleft() if self.faults else None
        if fault == "hang":
            self._end.wait()
            fault = 500
        if isinstance(fault, bytes | str) and fault != "ask":
            return 200, fault
        if isinstance(fault, int):
            return fault, {"error_code": fault, "message": "ordered by the test"}
        if self.credentials is not None:
            wanted = self.credentials
            if not wanted.startswith("Bearer "):
                wanted = "Basic " + base64.b64encode(wanted.encode()).decode()
            if authorization != wanted:
                return 401, {"error_code": 401, "message": "Unauthorized"}
        parts = urlsplit(path)
        steps = [unquote(step) for step in parts.path.strip("/").split("/")]
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        try:
            with self._lock:
                return 200, self._route(method, steps, query, body)
        except Refused as error:
            return error.status, {"error_code": error.code, "message": str(error)}

    def _route(
        self, method: str, steps: list[str], query: dict[str, str], body: dict[str, Any]
    ) -> object:
        match method, steps:
            case "GET", ["subjects"]:
                return sorted(self._subjects)
            case "GET", ["subjects", subject, "versions"]:
                return list(range(1, len(self._versions(subject)) + 1))
            case "GET", ["subjects", subject, "versions", version]:
                return self._version(subject, version)
            case "POST", ["subjects", subject, "versions"]:
                return {"id": self._register(subject, body)}
            case "POST", ["subjects", subject]:
                return self._lookup(subject, body)
            case "DELETE", ["subjects", subject]:
                count = len(self._versions(subject))
                del self._subjects[subject]
                return list(range(1, count + 1))
            case "GET", ["schemas", "ids", number]:
                found = self._schema(int(number))
                if query.get("format") == "serialized":
                    found["schema"] = self.compiled.get(found["schema"], found["schema"])
                return found
            case "POST", ["compatibility", "subjects", subject, "versions", *_]:
                found = self._faults_of(subject, body)
                return {"is_compatible": not found, "messages": found}
            case "GET", ["config", *subject]:
                level = self._levels.get("".join(subject))
                if level is None:
                    raise Refused(404, 40408, f"Subject '{subject[0]}' has no level of its own")
                return {"compatibilityLevel": level}
            case "PUT", ["config", *subject]:
                self._levels["".join(subject)] = body["compatibility"]
                return body
        raise Refused(404, 404, f"HTTP 404 Not Found {method} {steps} {query}")

    def _versions(self, subject: str) -> list[int]:
        found = self._subjects.get(subject)
        if found is None:
            raise Refused(404, NOT_FOUND["subject"], f"Subject '{subject}' not found.")
        return found

    def _version(self, subject: str, version: str) -> dict[str, Any]:
        versions = self._versions(subject)
        number = len(versions) if version == "latest" else int(version)
        if not 0 < number <= len(versions):
            raise Refused(404, NOT_FOUND["version"], f"Version {version} not found.")
        schema_id = versions[number - 1]
        return {
            **self._schema(schema_id),
            "id": schema_id,
            "subject": subject,
            "version": number,
        }

    def _schema(self, schema_id: int) -> dict[str, Any]:
        if not 0 < schema_id <= len(self._schemas):
            raise Refused(404, NOT_FOUND["schema"], f"Schema {schema_id} not found")
        schema = self._schemas[schema_id - 1]
        return {name: value for name, value in schema.items() if value}

    @staticmethod
    def _canonical(body: dict[str, Any]) -> dict[str, Any]:
        kind = body.get("schemaType", "AVRO")
        text = body.get("schema")
        if not isinstance(text, str):
            raise Refused(422, 42201, "Empty schema")
        if kind in ("AVRO", "JSON"):
            try:
                bare = kind == "AVRO" and not re.match(r'\s*[{\["]', text)
                loaded = text if bare else json.loads(text)
            except ValueError:
                raise Refused(422, 42201, f"Invalid schema {text[:60]}") from None
            text = json.dumps(loaded)
        return {
            "schema": text,
            "schemaType": "" if kind == "AVRO" else kind,
            "references": body.get("references", []),
        }

    def _register(self, subject: str, body: dict[str, Any]) -> int:
        schema = self._canonical(body)
        faults = self._faults_of(subject, body)
        if faults:
            raise Refused(
                409, 409, f"Schema being registered is incompatible with an earlier one: {faults}"
            )
        if schema not in self._schemas:
            self._schemas.append(schema)
        schema_id = self._schemas.index(schema) + 1
        versions = self._subjects.setdefault(subject, [])
        if schema_id not in versions:
            versions.append(schema_id)
        return schema_id

    def _lookup(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        versions = self._versions(subject)
        schema = self._canonical(body)
        for number, schema_id in enumerate(versions, 1):
            if self._schemas[schema_id - 1] == schema:
                return self._version(subject, str(number))
        raise Refused(404, NOT_FOUND["schema"], "Schema not found")

    def _faults_of(self, subject: str, body: dict[str, Any]) -> list[str]:
        level = self._levels.get(subject, self._levels[""])
        versions = self._subjects.get(subject)
        schema = self._canonical(body)
        if level == "NONE" or not versions or schema["schemaType"]:
            return []
        before = json.loads(self._schemas[versions[-1] - 1]["schema"])
        after = json.loads(schema["schema"])
        if not isinstance(before, dict) or not isinstance(after, dict):
            return [] if before == after else ["TYPE_MISMATCH"]
        old = {field["name"]: field for field in before.get("fields", [])}
        faults = []
        for field in after.get("fields", []):
            known = old.get(field["name"])
            if known is None and "default" not in field:
                faults.append(f"READER_FIELD_MISSING_DEFAULT_VALUE: {field['name']}")
            elif known is not None and known["type"] != field["type"]:
                faults.append(f"TYPE_MISMATCH: {field['name']}")
        return faults
