"""Settings of a schema registry client."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from onceflow.sdk.errors import ConfigError
from onceflow.sdk.settings.checks import NamedSettings, check_kinds, check_range

TokenFunction = Callable[[], str]
"""Gives the bearer token of a request; called for each, from any thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRegistryConfig(NamedSettings):
    """How to reach a schema registry, and how much of it to remember.

    Names are those of Confluent's clients.

    Attributes:
        url: ``schema.registry.url``: one address or several, asked in turn until one answers;
            ``https://user:password@host`` is understood.
        basic_auth_user_info: ``basic.auth.user.info``: ``user:password``; never printed.
        bearer_auth_token: ``bearer.auth.token``: the token, or a function that gives it; never
            printed.
        ssl_context: A ready context; wins over the files below.
        ssl_cafile: PEM file of trusted certificates (``ssl.ca.location``).
        ssl_certfile: PEM file of the client's certificate (``ssl.certificate.location``).
        ssl_keyfile: PEM file of the client's key (``ssl.key.location``).
        timeout_ms: ``timeout``, default 10,000: limit of one HTTP exchange in milliseconds.
        max_retries: ``max.retries``, default 3: how often a request is repeated when the registry
            does not answer, or answers that it cannot at the moment.
        retries_wait_ms: ``retries.wait.ms``, default 200: first wait before a repetition; doubled
            each time, with jitter.
        retries_max_wait_ms: ``retries.max.wait.ms``, default 5,000.
        cache_capacity: ``cache.capacity``, default 1,000: schemas remembered of each kind; the
            one that was not used for longest is forgotten first.
        cache_latest_ttl_ms: ``cache.latest.ttl.sec`` in milliseconds, default 60,000: how long the
            latest version of a subject is believed.
        missing_id_cache_ttl_ms: ``missing.id.cache.ttl.sec`` in milliseconds, default 1,000: how
            long it is believed that an id does not exist; then the registry is asked again.
        max_response_bytes: Largest answer taken, default 16 MiB.
    """

    url: str | Sequence[str] = "http://localhost:8081"
    basic_auth_user_info: str | None = field(default=None, repr=False)
    bearer_auth_token: str | TokenFunction | None = field(default=None, repr=False)
    ssl_context: ssl.SSLContext | None = None
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    timeout_ms: int = 10_000
    max_retries: int = 3
    retries_wait_ms: int = 200
    retries_max_wait_ms: int = 5_000
    cache_capacity: int = 1_000
    cache_latest_ttl_ms: int = 60_000
    missing_id_cache_ttl_ms: int = 1_000
    max_response_bytes: int = 16_777_216

    def __post_init__(self) -> None:
        check_kinds(self, {"ssl.SSLContext": ssl.SSLContext})
        for name, least in (
            ("timeout_ms", 1),
            ("max_retries", 0),
            ("retries_wait_ms", 0),
            ("retries_max_wait_ms", 0),
            ("cache_capacity", 1),
            ("cache_latest_ttl_ms", 1),
            ("missing_id_cache_ttl_ms", 1),
            ("max_response_bytes", 1),
        ):
            check_range(name, getattr(self, name), least)
        endpoints = self.endpoints
        if self.basic_auth_user_info is not None and ":" not in self.basic_auth_user_info:
            raise ConfigError("basic_auth_user_info", "***", "write it as user:password")
        if self.basic_auth_user_info is not None and self.bearer_auth_token is not None:
            raise ConfigError(
                "bearer_auth_token", "***", "give either basic_auth_user_info or a token, not both"
            )
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ConfigError("ssl_keyfile", self.ssl_keyfile, "it needs ssl_certfile beside it")
        uses_files = self.ssl_context or self.ssl_cafile or self.ssl_certfile
        if uses_files and not any(endpoint.secure for endpoint in endpoints):
            raise ConfigError(
                "url", self._shown_url, "TLS settings are only used with an https:// address"
            )

    @property
    def _shown_url(self) -> str:
        return ", ".join(endpoint.shown for endpoint in self.endpoints)

    def __repr__(self) -> str:
        return f"SchemaRegistryConfig(url={self._shown_url!r})"

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The addresses, taken apart.

        Raises:
            ConfigError: There is none, or one is no ``http://`` or ``https://`` address.
        """
        given = [self.url] if isinstance(self.url, str) else list(self.url)
        found = [part.strip() for entry in given for part in entry.split(",") if part.strip()]
        if not found:
            raise ConfigError("url", "", "give an address such as http://localhost:8081")
        return tuple(_parse_endpoint(entry) for entry in found)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a registry.

    Attributes:
        secure: Whether it is reached by TLS.
        host: Name or address.
        port: TCP port.
        path: What stands before the registry's own paths, without a slash at its end.
        user_info: ``user:password`` of the address, None without.
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
        raise ConfigError("url", "...", "the address cannot be read") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        # The entry may hold a password, so it is not repeated.
        raise ConfigError("url", "...", "write it as http://host:port or https://host:port")
    secure = parts.scheme == "https"
    user_info = None
    if parts.username is not None:
        user_info = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    default = 443 if secure else 80
    return Endpoint(secure, parts.hostname, port or default, parts.path.rstrip("/"), user_info)
