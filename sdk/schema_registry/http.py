"""Sends requests to a schema registry over HTTP: addresses in turn, credentials, limits, retries.

It decides which failures to retry and which error to raise for an answer. Each request has its own
connection: the client caches answers and so asks rarely, and no connection needs closing or care
after a fork.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import re
import socket
import ssl
import threading
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import tenacity

from onceflow.sdk.errors import (
    ConfigError,
    IncompatibleSchemaError,
    SchemaNotFoundError,
    SchemaRegistryError,
    SchemaRegistryUnavailableError,
)
from onceflow.sdk.schema_registry.config import Endpoint, SchemaRegistryConfig, TokenFunction
from onceflow.sdk.serde import to_json

try:
    import urllib3
    from urllib3.connection import HTTPConnection, HTTPSConnection
except ImportError as _missing:
    raise ImportError("urllib3 is missing: pip install 'onceflow[registry]'") from _missing

log: logging.Logger = logging.getLogger("onceflow.schema_registry")

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"
_PASSING: Final = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses that are worth a retry."""
_CHUNK_BYTES: Final = 65_536


class RegistryHttp:
    """Requests to one registry; may be used from several threads."""

    def __init__(self, config: SchemaRegistryConfig) -> None:
        """Read certificate files; nothing is sent.

        Raises:
            ConfigError: A certificate file cannot be read.
        """
        self._config = config
        self._endpoints = config.endpoints
        self._context = _make_context(config)

    def request(
        self, method: str, path: str, body: Mapping[str, object] | None = None, *, about: str
    ) -> object:
        """Send a request to each address in turn until one answers, with retries.

        Args:
            method: HTTP method.
            path: Path after the address, quoted.
            body: Content, sent as JSON.
            about: What the request does, for messages.

        Returns:
            The answer's JSON.

        Raises:
            SchemaRegistryUnavailableError: No address answered, or each with a temporary failure.
            SchemaRegistryError: The registry refused; the subclass tells why.
        """
        config = self._config
        attempts = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(SchemaRegistryUnavailableError),
            stop=tenacity.stop_after_attempt(config.max_retries + 1),
            wait=tenacity.wait_random_exponential(
                multiplier=config.retries_wait_ms / 1000, max=config.retries_max_wait_ms / 1000
            ),
            reraise=True,
        )
        data = None if body is None else to_json(body)
        return attempts(self._ask_all, method, path, data, about)

    def _ask_all(self, method: str, path: str, data: bytes | None, about: str) -> object:
        failure: SchemaRegistryUnavailableError | None = None
        for endpoint in self._endpoints:
            try:
                return self._ask(endpoint, method, path, data, about)
            except SchemaRegistryUnavailableError as error:
                log.info("%s", error)
                failure = error
        assert failure is not None
        raise failure

    def _ask(
        self, endpoint: Endpoint, method: str, path: str, data: bytes | None, about: str
    ) -> object:
        connection = self._connection(endpoint)
        limit = _TimeLimit(connection, self._config.timeout_ms / 1000)
        try:
            with limit:
                connection.request(
                    method,
                    endpoint.path + path,
                    data,
                    self._headers(endpoint),
                    preload_content=False,
                    decode_content=False,
                )
                response = connection.getresponse()
                found = self._read(response)
            if limit.reached:  # the HTTP library takes a cut within the headers for their end
                raise TimeoutError
        except (OSError, http.client.HTTPException, urllib3.exceptions.HTTPError) as error:
            cause = TimeoutError("the answer did not end in time") if limit.reached else error
            raise SchemaRegistryUnavailableError(
                f"{about}: the schema registry at {endpoint.shown} does not answer: {cause!r}; "
                "check url and that the registry runs"
            ) from error
        finally:
            connection.close()
        status, target = response.status, response.headers.get("Location")
        about = f"{about}, registry {endpoint.shown}"
        if 300 <= status < 400:
            # Following it would send credentials and schemas to another host.
            place = f" to {_shown(target)}" if target else ""
            raise SchemaRegistryError(
                f"{about}: it redirects{place}, and redirects are not followed; if that is the "
                "registry, set url to its address",
                status,
            )
        return _read_answer(status, found, about)

    def _connection(self, endpoint: Endpoint) -> HTTPConnection:
        """One connection for one request: after a fork nothing is shared with the parent."""
        timeout_s = self._config.timeout_ms / 1000
        if endpoint.secure:
            return HTTPSConnection(
                endpoint.host, endpoint.port, timeout=timeout_s, ssl_context=self._context
            )
        return HTTPConnection(endpoint.host, endpoint.port, timeout=timeout_s)

    def _read(self, response: urllib3.BaseHTTPResponse) -> bytes:
        limit = self._config.max_response_bytes
        found = bytearray()
        for chunk in response.stream(_CHUNK_BYTES):
            found += chunk
            if len(found) > limit:
                raise urllib3.exceptions.HTTPError(f"the answer exceeds {limit} bytes")
        return bytes(found)

    def _headers(self, endpoint: Endpoint) -> dict[str, str]:
        headers = {"Accept": f"{CONTENT_TYPE}, application/json", "Content-Type": CONTENT_TYPE}
        config = self._config
        user_info = config.basic_auth_user_info or endpoint.user_info
        if config.bearer_auth_token is not None:
            headers["Authorization"] = f"Bearer {_token(config.bearer_auth_token)}"
        elif user_info is not None:
            headers |= urllib3.make_headers(basic_auth=user_info)
        return headers


class _TimeLimit:
    """Cuts a connection when request and answer together take too long.

    A socket's timeout starts again with each byte, so that a registry that sends one byte now and
    then would block its reader for ever.

    Attributes:
        reached: Whether the connection was cut.
    """

    def __init__(self, connection: HTTPConnection, limit_s: float) -> None:
        self._connection = connection
        self._timer = threading.Timer(limit_s, self._cut)
        self._timer.daemon = True
        self.reached: bool = False

    def _cut(self) -> None:
        self.reached = True
        sock = self._connection.sock
        if sock is not None:
            # SSLSocket.shutdown would drop the TLS session that the reading thread still uses.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()


def _shown(target: str) -> str:
    """Return an address for messages, shortened and without credentials."""
    try:
        parts = urlsplit(target)
    except ValueError:
        return "an invalid address"
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"[:200]


def _token(given: str | TokenFunction) -> str:
    """Return the token; no message repeats it or the text of its function's error."""
    try:
        token: object = given if isinstance(given, str) else given()
    except Exception as error:  # the user's code
        raise SchemaRegistryUnavailableError(
            f"the function bearer_auth_token raised {type(error).__name__}"
        ) from error
    if not isinstance(token, str) or not re.fullmatch(r"[\x21-\x7e]+", token):
        raise ConfigError("bearer_auth_token", "***", "must be a token of visible ASCII characters")
    return token


def _make_context(config: SchemaRegistryConfig) -> ssl.SSLContext | None:
    if not any(endpoint.secure for endpoint in config.endpoints):
        return None
    if config.ssl_context is not None:
        return config.ssl_context
    setting, path = "ssl_cafile", config.ssl_cafile
    try:
        context = ssl.create_default_context(cafile=path)
        if config.ssl_certfile is not None:
            setting, path = "ssl_certfile", config.ssl_certfile
            context.load_cert_chain(path, config.ssl_keyfile)
    except OSError as error:
        raise ConfigError(setting, path, f"cannot load: {error}") from error
    return context


def _read_answer(status: int, data: bytes, about: str) -> object:
    try:
        answer: object = json.loads(data) if data else None
    except (ValueError, RecursionError):
        answer = None
        if 200 <= status < 300:
            raise SchemaRegistryError(
                f"{about}: the answer is not JSON; is this a schema registry?", status
            ) from None
    if 200 <= status < 300:
        return answer
    code, message = 0, ""
    if isinstance(answer, dict):
        code = answer["error_code"] if isinstance(answer.get("error_code"), int) else 0
        message = str(answer.get("message", ""))[:2_000]
    raise _refusal(status, code, message, about)


def _refusal(status: int, code: int, message: str, about: str) -> SchemaRegistryError:
    said = f"{about}: {status}" + (f" ({code})" if code and code != status else "")
    if message:
        said += f" {message}"
    if status == 404:
        return SchemaNotFoundError(
            f"{said}; register the schema first, or check subject, version and id", status, code
        )
    if status == 409:
        return IncompatibleSchemaError(
            f"{said}; make the schema compatible with the versions before it, or change the "
            "subject's compatibility level",
            status,
            code,
        )
    if status in (401, 403):
        return SchemaRegistryError(
            f"{said}; check basic_auth_user_info or bearer_auth_token and its permissions",
            status,
            code,
        )
    if status == 422:
        return SchemaRegistryError(
            f"{said}; correct the schema or the argument that the registry cannot read",
            status,
            code,
        )
    if status in _PASSING:
        return SchemaRegistryUnavailableError(f"{said}; try again later", status, code)
    return SchemaRegistryError(f"{said}; see the registry's own log", status, code)
