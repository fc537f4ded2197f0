"""SASL OAUTHBEARER (RFC 7628, KIP-255, KIP-768): finds the user of a signed token.

Decides which signatures, issuers, audiences and times are good. Keys come from `jwks`; the library
PyJWT checks signatures, everything else is checked here on the broker's own clock.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from onceflow.broker_lite.security.plain import AuthenticationFailed

TOKEN_BYTES_MAX = 65_536
"""Longest token of OAUTHBEARER; longer ones are refused."""
SEPARATOR = "\x01"

INVALID_TOKEN = b'{"status":"invalid_token"}'
"""What a refused client is told before it ends the exchange (RFC 7628, 3.2.2)."""


class TokenRefused(Exception):
    """Why a token is not good; for the log, the client learns no more than that."""


class Token(NamedTuple):
    """What a good token says.

    Attributes:
        user: Who the client is.
        expires_ms: Until when, wall milliseconds.
    """

    user: str
    expires_ms: int


Verify = Callable[[str, str | None, str], bytes]
"""``verify(algorithm, key_id, token) -> payload``; raises TokenRefused."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """What tokens must be like; see the settings ``sasl.oauthbearer.*``.

    Attributes:
        verify: Checks the signature; None accepts unsigned tokens.
        audiences: A token must name one of them; empty for any.
        issuer: Who must have made it; empty for anybody.
        skew_ms: How far the issuer's clock may differ.
        sub_claim: Claim that names the user.
        scope_claim: Claim that holds the scope.
    """

    verify: Verify | None
    audiences: frozenset[str] = frozenset()
    issuer: str = ""
    skew_ms: int = 30_000
    sub_claim: str = "sub"
    scope_claim: str = "scope"

    def check(self, token: str, now_ms: int) -> Token:
        """Find out who a token speaks for.

        Raises:
            TokenRefused: It is not good.
        """
        if len(token) > TOKEN_BYTES_MAX or token.count(".") != 2:
            raise TokenRefused("it does not have three parts")
        head, body, signature = token.split(".")
        header = _object(_decode(head))
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
            raise TokenRefused("its header names no algorithm")
        if self.verify is not None:
            if algorithm.lower() == "none":
                raise TokenRefused("it is not signed")
            claims = _object(self.verify(algorithm, key_id, token))
        elif algorithm != "none" or signature:
            raise TokenRefused("only unsigned tokens are taken here")
        else:
            claims = _object(_decode(body))
        return self._checked(claims, now_ms)

    def _checked(self, claims: Mapping[str, object], now_ms: int) -> Token:
        expires_ms = _time_ms(claims, "exp")
        if expires_ms is None:
            raise TokenRefused("it has no exp")
        if expires_ms + self.skew_ms <= now_ms:
            raise TokenRefused("it has expired")
        issued_ms, not_before_ms = _time_ms(claims, "iat"), _time_ms(claims, "nbf")
        if issued_ms is None and self.verify is not None:
            raise TokenRefused("it has no iat")
        if issued_ms is not None and issued_ms - self.skew_ms > expires_ms:
            raise TokenRefused("it expired before it was issued")
        if not_before_ms is not None and not_before_ms - self.skew_ms > now_ms:
            raise TokenRefused("it is not valid yet")
        if self.issuer and claims.get("iss") != self.issuer:
            raise TokenRefused("another issuer made it")
        named = claims.get("aud")
        audiences = {named} if isinstance(named, str) else set(_texts(named))
        if self.audiences and not audiences & self.audiences:
            raise TokenRefused("it is for another audience")
        scope = claims.get(self.scope_claim)
        if scope is not None and not isinstance(scope, str) and not _is_texts(scope):
            raise TokenRefused(f"its {self.scope_claim} is neither text nor texts")
        user = claims.get(self.sub_claim)
        if not isinstance(user, str) or not user.strip():
            raise TokenRefused(f"its {self.sub_claim} names no user")
        if not user.isprintable():
            # Such names look alike in a log or in an ACL.
            raise TokenRefused(f"its {self.sub_claim} holds characters that cannot be shown")
        return Token(user, expires_ms)


class TokenExchange:
    """OAUTHBEARER: one token, and one more message when it was refused."""

    def __init__(self, rules: TokenRules, refused: Callable[[str], object]) -> None:
        self._rules = rules
        self._refused = refused
        self._failed = False
        self.user: str | None = None
        self.expires_ms: int | None = None

    def step(self, token: bytes, now_ms: int) -> bytes:
        """See `SaslExchange`."""
        if self._failed:
            raise AuthenticationFailed("Authentication failed: invalid_token")
        identity, bearer = _read_message(token)
        try:
            good = self._rules.check(bearer, now_ms)
        except TokenRefused as error:
            self._refused(str(error))
            self._failed = True
            return INVALID_TOKEN
        if identity and identity != good.user:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different "
                "from the token's principal name"
            )
        self.user, self.expires_ms = good
        return b""


def _read_message(message: bytes) -> tuple[str, str]:
    """Authorization id and token of the client's message."""
    try:
        text = message.decode("ascii")
    except UnicodeDecodeError:
        raise AuthenticationFailed("An OAUTHBEARER message is ASCII text.") from None
    head, *pairs = text.split(SEPARATOR)
    parts = head.split(",")
    fields = [pair.partition("=") for pair in pairs if pair]
    if len(parts) != 3 or parts[0] not in ("n", "y") or (parts[1] and parts[1][:2] != "a="):
        raise AuthenticationFailed("An OAUTHBEARER message begins with n,, and a separator.")
    found = [value for key, _, value in fields if key == "auth"]
    scheme, _, token = found[0].partition(" ") if len(found) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token.strip():
        raise AuthenticationFailed("An OAUTHBEARER message holds one Bearer token.")
    return parts[1][2:], token.strip()


def _decode(part: str) -> bytes:
    try:
        return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise TokenRefused("it is not base64") from None


def _object(data: bytes) -> dict[str, object]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise TokenRefused("it is not JSON") from None
    if not isinstance(found, dict):
        raise TokenRefused("it is not a JSON object")
    return found


def _time_ms(claims: Mapping[str, object], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e12:
        raise TokenRefused(f"its {name} is not a time")
    return int(value * 1000)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []
