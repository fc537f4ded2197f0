"""The public keys of tokens: read from a file or a URL, renewed, and used to check signatures.

PyJWT reads key sets and checks signatures. This module decides where keys may come from (``file:``,
``https:``, and ``http:`` of this machine) and when they are read again. It fetches them itself,
because PyJWT's client limits neither the size of an answer nor its whole time. Fetching blocks, so
the server does it in a thread; only a changed file is read at once.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from onceflow.broker_lite.security.tokens import TokenRefused
from onceflow.sdk.errors import ConfigError

if TYPE_CHECKING:
    from jwt import PyJWK

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.security")

SETTING = "sasl.oauthbearer.jwks.endpoint.url"
KEYS_BYTES_MAX = 1_048_576
"""Longest answer with keys that is read."""
HTTP_READ_BYTES = 65_536
FETCH_TIMEOUT_SECONDS = 10.0
MISSING_KEY_PAUSE_MS = 10_000
"""Shortest time between two reads of a URL because of tokens with an unknown key."""

ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512", "ES256K"),
    "OKP": ("EdDSA",),
    "oct": ("HS256", "HS384", "HS512"),
}
"""Algorithms of each kind of key; a key is never used with another one."""


class JwksKeys:
    """Public keys by id.

    Args:
        url: Value of ``sasl.oauthbearer.jwks.endpoint.url``.

    Attributes:
        url: The same.
        missing: Whether a token has named an unknown key since the keys were last read.

    Raises:
        ConfigError: The URL may not be used, or PyJWT is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.missing: bool = False
        self._keys: list[PyJWK] = []
        self._stamp: tuple[int, int] | None = None
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise ConfigError(SETTING, url, f"give a URL: {error}") from None
        local = parts.scheme in ("file", "")
        self._path = Path(unquote(parts.path)).absolute() if local else None
        if self._path is None and not (
            parts.scheme == "https" or (parts.scheme == "http" and _is_local(parts.hostname))
        ):
            raise ConfigError(
                SETTING, url, "give a file: or https: URL, or http: of this machine (127.0.0.1)"
            )
        try:
            import jwt
        except ImportError:
            raise ConfigError(
                SETTING, url, "pip install 'onceflow[security]' to check tokens"
            ) from None
        self._jwt = jwt

    def refresh(self) -> None:
        """Read the keys again; blocks.

        Raises:
            ConfigError: They cannot be read; the former keys stay.
        """
        try:
            if self._path is not None:
                self._stamp = self._file_stamp()
                data = self._path.read_bytes()
            else:
                data = _fetched(self.url)
            if len(data) > KEYS_BYTES_MAX:
                raise ValueError(f"more than {KEYS_BYTES_MAX} bytes")
            keys = self._parse(data)
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(SETTING, self.url, f"cannot read the keys: {error}") from None
        self._keys = keys
        self.missing = False

    def _parse(self, data: bytes) -> list[PyJWK]:
        document = json.loads(data)
        if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
            raise ValueError("a JSON object with a list 'keys' is expected")
        try:
            found = self._jwt.PyJWKSet.from_dict(document).keys
        except (self._jwt.PyJWTError, TypeError, ValueError) as error:
            raise ValueError(str(error)) from None
        unusable = len(document["keys"]) - len(found)
        if unusable:
            logger.warning("%d keys of %s cannot be used", unusable, self.url)
        keys = [key for key in found if key.public_key_use in (None, "sig")]
        if not keys:
            raise ValueError("it has no usable key")
        return keys

    def _file_stamp(self) -> tuple[int, int]:
        assert self._path is not None
        status = os.stat(self._path)
        return status.st_mtime_ns, status.st_ino

    def _find(self, key_id: str | None) -> PyJWK | None:
        if key_id is None and len(self._keys) == 1:
            return self._keys[0]
        return next((key for key in self._keys if key.key_id == key_id), None)

    def verify(self, algorithm: str, key_id: str | None, token: str) -> bytes:
        """Check a token's signature and return its content.

        Raises:
            TokenRefused: The key is unknown or the signature wrong.
        """
        key = self._find(key_id)
        if key is None:
            key = self._find_again(key_id)
        allowed = ALGORITHMS.get(key.key_type or "", ())
        if algorithm not in allowed:
            raise TokenRefused(f"its key does not sign by {algorithm}")
        try:
            decoded = self._jwt.PyJWS().decode_complete(token, key.key, algorithms=[algorithm])
        except self._jwt.PyJWTError as error:
            raise TokenRefused(str(error)) from None
        payload = decoded["payload"]
        assert isinstance(payload, bytes)
        return payload

    def _find_again(self, key_id: str | None) -> PyJWK:
        """Read a changed file again; the server reads a URL again later."""
        try:
            if self._path is not None and self._file_stamp() != self._stamp:
                self.refresh()
        except (ConfigError, OSError) as error:
            logger.warning("%s", error)
        key = self._find(key_id)
        if key is None:
            self.missing = True
            raise TokenRefused("its key is unknown")
        return key


def _fetched(url: str) -> bytes:
    """Return the content of a URL.

    Raises:
        OSError: There is no answer, or it is too slow.
    """
    # These take time to load, and few brokers need them.
    from http.client import HTTPException
    from urllib import request as http

    class NoRedirect(http.HTTPRedirectHandler):
        """Refuses redirects, which could lead to a place that is not allowed."""

        def redirect_request(self, *args: object, **kwargs: object) -> None:
            return None

    asked = http.Request(url, headers={"Accept": "application/json"})
    handlers: list[object] = [NoRedirect]
    if _is_local(urlsplit(url).hostname):
        handlers.append(http.ProxyHandler({}))
    deadline = time.monotonic() + FETCH_TIMEOUT_SECONDS
    data = b""
    try:
        with http.build_opener(*handlers).open(asked, timeout=FETCH_TIMEOUT_SECONDS) as answer:  # type: ignore[arg-type] # a class or an instance
            while len(data) <= KEYS_BYTES_MAX and (part := answer.read1(HTTP_READ_BYTES)):
                data += part
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not read after {FETCH_TIMEOUT_SECONDS:g} s")
    except HTTPException as error:
        raise OSError(f"no answer by HTTP: {error!r}") from None
    return data


def _is_local(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
