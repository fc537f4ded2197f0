"""Tokens for SASL OAUTHBEARER from an authorization server, by the client's own credentials.

Decides when a token is asked for again. For other grants, give ``sasl_oauth_token_provider`` a
function of your own.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from http.client import HTTPException

from onceflow.sdk.errors import BrokerConnectionError, ConfigError

__all__ = ["ClientCredentials"]

ANSWER_BYTES_MAX = 1_048_576
"""Longest answer of a token endpoint that is read."""
RENEW_SHARE = 0.8
"""Part of a token's life after which another one is asked for."""


@dataclass(slots=True)
class ClientCredentials:
    """Gets tokens by the client credentials grant (RFC 6749, 4.4); use it as the token provider.

    A token is kept until most of its life is over. Safe to share between clients and threads.

    Attributes:
        token_url: ``sasl.oauthbearer.token.endpoint.url``; https, or http of this machine.
        client_id: ``sasl.oauthbearer.client.credentials.client.id``.
        client_secret: ``sasl.oauthbearer.client.credentials.client.secret``; never printed.
        scope: ``sasl.oauthbearer.scope``, default None.
        timeout_s: How long the server may take, in seconds, default 10.

    Raises:
        ConfigError: The URL may not be used.

    Example:
        >>> from onceflow.sdk import ClientCredentials, SecurityConfig
        >>> provider = ClientCredentials("https://login.example/token", "me", "secret")
        >>> security = SecurityConfig(
        ...     security_protocol="SASL_SSL",
        ...     sasl_mechanism="OAUTHBEARER",
        ...     sasl_oauth_token_provider=provider,
        ... )
    """

    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str | None = None
    timeout_s: float = 10.0
    _token: str | None = field(default=None, init=False, repr=False)
    _renew_at: float = field(default=0.0, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.token_url)
        if "@" in parts.netloc:
            raise ConfigError(
                "token_url", "...", "it names no user; give client_id and client_secret"
            )
        local = parts.scheme == "http" and parts.hostname in ("localhost", "127.0.0.1", "::1")
        if parts.scheme != "https" and not local:
            raise ConfigError(
                "token_url", self.token_url, "give an https URL: it is sent the client's secret"
            )

    def __call__(self) -> str:
        """A token that is good for a while; blocks.

        Raises:
            BrokerConnectionError: The server cannot be reached or refuses; the same call may
                succeed later.
        """
        with self._lock:
            now = time.monotonic()
            if self._token is None or now >= self._renew_at:
                token, lifetime_s = self._ask()
                self._token = token
                self._renew_at = now + lifetime_s * RENEW_SHARE
            return self._token

    def _ask(self) -> tuple[str, float]:
        quoted = (
            urllib.parse.quote(part, safe="") for part in (self.client_id, self.client_secret)
        )
        credentials = base64.b64encode(":".join(quoted).encode()).decode()
        form = {"grant_type": "client_credentials"}
        if self.scope:
            form["scope"] = self.scope
        request = urllib.request.Request(
            self.token_url,
            data=urllib.parse.urlencode(form).encode(),
            headers={"Authorization": f"Basic {credentials}", "Accept": "application/json"},
        )
        try:
            opener = urllib.request.build_opener(_NoRedirect)
            with opener.open(request, timeout=self.timeout_s) as answer:
                found = json.loads(answer.read(ANSWER_BYTES_MAX))
            token, lifetime_s = found["access_token"], float(found.get("expires_in", 0))
        except urllib.error.HTTPError as error:
            error.close()
            raise BrokerConnectionError(
                f"{self.token_url} refused to give a token: HTTP {error.code}"
            ) from None
        except (OSError, HTTPException, ValueError, KeyError, TypeError, AttributeError) as error:
            raise BrokerConnectionError(
                f"{self.token_url} gave no token: {type(error).__name__}"
            ) from None
        if not isinstance(token, str):
            raise BrokerConnectionError(f"{self.token_url} gave no token")
        return token, max(0.0, lifetime_s)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would take the secret along."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None
