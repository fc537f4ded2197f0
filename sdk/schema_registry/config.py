"""Settings of a schema registry client."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.settings.declare import FUNCTION, Settings, instance, secret, text, whole

TokenFunction = Callable[[], str]
"""Returns the bearer token; called for each request, from any thread."""


class SchemaRegistryConfig(Settings):
    """Address, credentials, limits and caches of a schema registry client.

    Names are those of Confluent's clients.
    """

    url: str | Sequence[str] = text(
        "http://localhost:8081",
        "One address or several, asked in turn until one answers; `https://user:password@host` "
        "is accepted.",
        accepts=(Sequence,),
        kafka="schema.registry.url",
    )
    basic_auth_user_info: str | None = secret(None, "`user:password`.")
    bearer_auth_token: str | TokenFunction | None = secret(
        None, "The token, or a function that returns it.", accepts=(FUNCTION,)
    )
    ssl_context: ssl.SSLContext | None = instance(
        None, "A ready context; wins over the files below.", ssl.SSLContext, kafka=""
    )
    ssl_cafile: str | None = text(
        None, "PEM file of trusted certificates.", kafka="ssl.ca.location"
    )
    ssl_certfile: str | None = text(
        None, "PEM file of the client's certificate.", kafka="ssl.certificate.location"
    )
    ssl_keyfile: str | None = text(None, "PEM file of the client's key.", kafka="ssl.key.location")
    timeout_ms: int = whole(
        10_000,
        "Time for one request and its answer; Confluent's is in seconds.",
        1,
        kafka="timeout",
    )
    max_retries: int = whole(
        3,
        "Retries of a request that the registry does not answer, or answers with a temporary "
        "failure.",
    )
    retries_wait_ms: int = whole(
        200, "Wait before the first retry; doubled each time, with jitter."
    )
    retries_max_wait_ms: int = whole(5_000, "Longest wait before a retry.")
    cache_capacity: int = whole(
        1_000, "Entries of each cache; a full one drops the least recently used.", 1
    )
    cache_latest_ttl_ms: int = whole(
        60_000,
        "How long a subject's latest version stays cached; Confluent's is in seconds, and has no "
        "limit by default.",
        1,
        kafka="cache.latest.ttl.sec",
    )
    missing_id_cache_ttl_ms: int = whole(
        1_000,
        "How long an unknown id stays cached; then the client asks again. Confluent's is in "
        "seconds.",
        1,
        kafka="missing.id.cache.ttl.sec",
    )
    max_response_bytes: int = whole(16_777_216, "Largest answer accepted.", 1, kafka="")

    def _check(self) -> None:
        endpoints = self.endpoints
        if self.basic_auth_user_info is not None and ":" not in self.basic_auth_user_info:
            raise ConfigError("basic_auth_user_info", "***", "must be user:password")
        if self.basic_auth_user_info is not None and self.bearer_auth_token is not None:
            raise ConfigError(
                "bearer_auth_token", "***", "excludes basic_auth_user_info; set one of the two"
            )
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError("ssl_keyfile", self.ssl_keyfile, "needs ssl_certfile as well")
        uses_files = self.ssl_context or self.ssl_cafile or self.ssl_certfile
        if uses_files and not any(endpoint.secure for endpoint in endpoints):
            raise ConfigError(
                "url", self._shown_url, "must be an https:// address, as TLS settings are given"
            )

    @property
    def _shown_url(self) -> str:
        return ", ".join(endpoint.shown for endpoint in self.endpoints)

    def __repr__(self) -> str:
        return f"SchemaRegistryConfig(url={self._shown_url!r})"

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The parsed addresses.

        Raises:
            ConfigError: The list is empty, or an entry is not an ``http://`` or ``https://`` URL.
        """
        given = [self.url] if isinstance(self.url, str) else list(self.url)
        found = [part.strip() for entry in given for part in entry.split(",") if part.strip()]
        if not found:
            raise ConfigError("url", "", "must be an address such as http://localhost:8081")
        return tuple(_parse_endpoint(entry) for entry in found)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a registry.

    Attributes:
        secure: Whether to use TLS.
        host: Name or address.
        port: TCP port.
        path: Prefix of the registry's paths, without a slash at its end.
        user_info: ``user:password`` in the address, or None.
    """

    secure: bool
    host: str
    port: int
    path: str
    user_info: str | None = field(default=None, repr=False)

    @property
    def shown(self) -> str:
        """The address for messages, without its credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{self.path}"


def _parse_endpoint(entry: str) -> Endpoint:
    try:
        parts = urlsplit(entry)
        port = parts.port
    except ValueError:
        raise ConfigError("url", "...", "must be a URL such as http://localhost:8081") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        # The entry may hold a password, so it is not repeated.
        raise ConfigError("url", "...", "must be http://host:port or https://host:port")
    secure = parts.scheme == "https"
    user_info = None
    if parts.username is not None:
        user_info = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    default = 443 if secure else 80
    return Endpoint(secure, parts.hostname, port or default, parts.path.rstrip("/"), user_info)
