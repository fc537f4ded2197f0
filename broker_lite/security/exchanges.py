"""The SASL mechanisms PLAIN and SCRAM: one exchange of tokens for each authentication.

An exchange takes the client's tokens one by one, returns the broker's, and finds out who the client
is. The handler decides when a connection may begin one, and what follows.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Protocol

from onceflow.broker_lite.security.plain import AuthenticationFailed, authenticate
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol.scram import (
    HASHES,
    MIN_ITERATIONS,
    ClientFirst,
    ScramKeys,
    decode_base64,
    encode_base64,
    is_proof_valid,
    read_client_first,
    read_final,
    server_signature,
)

KeysOf = Callable[[str, str], ScramKeys | None]
"""``keys_of(mechanism, user)``; None for an unknown user."""


class SaslExchange(Protocol):
    """One authentication in progress.

    Attributes:
        user: The user, after the authentication.
        expires_ms: When the credentials expire, wall milliseconds; None for never.
    """

    user: str | None
    expires_ms: int | None

    def step(self, token: bytes, now_ms: int) -> bytes:
        """Check a token and return the answer to it.

        Raises:
            AuthenticationFailed: With a text that may be shown to the peer.
        """
        ...


class PlainExchange:
    """PLAIN (RFC 4616): one token with name and password."""

    def __init__(self, credentials: Mapping[str, str]) -> None:
        self._credentials = credentials
        self.user: str | None = None
        self.expires_ms: int | None = None

    def step(self, token: bytes, now_ms: int) -> bytes:
        """See `SaslExchange`."""
        self.user = authenticate(token, self._credentials)
        return b""


class ScramExchange:
    """SCRAM (RFC 5802): two tokens, which do not contain the password.

    An unknown user gets a random but constant salt, and fails at the second token like a
    user with a wrong password, so that a client cannot learn which users exist. (Apache Kafka ends
    the exchange at the first token.)
    """

    def __init__(self, mechanism: str, keys_of: KeysOf, nonce: bytes, secret: bytes) -> None:
        self._mechanism = mechanism
        self._keys_of = keys_of
        self._nonce = encode_base64(nonce)
        self._secret = secret
        self._first: ClientFirst | None = None
        self._server_first = ""
        self._keys: ScramKeys | None = None
        self.user: str | None = None
        self.expires_ms: int | None = None

    def step(self, token: bytes, now_ms: int) -> bytes:
        """See `SaslExchange`."""
        try:
            if self._first is None:
                return self._challenge(read_client_first(token))
            return self._verify(token, self._first)
        except RemoteProtocolError as error:
            raise AuthenticationFailed(f"Authentication failed: {error}.") from None

    def _challenge(self, first: ClientFirst) -> bytes:
        if first.extensions.get("tokenauth", "false").lower() == "true":
            raise AuthenticationFailed("Authentication failed: delegation tokens are not served.")
        self._first = first
        self._keys = self._keys_of(self._mechanism, first.name)
        if self._keys is None:
            salt = hmac.digest(self._secret, first.name.encode(), "sha256")[:20]
            iterations = MIN_ITERATIONS
        else:
            salt, iterations = self._keys.salt, self._keys.iterations
        nonce = first.nonce + self._nonce
        self._server_first = f"r={nonce},s={encode_base64(salt)},i={iterations}"
        return self._server_first.encode()

    def _verify(self, token: bytes, first: ClientFirst) -> bytes:
        attributes, without_proof = read_final(token, ("c", "r"))
        proof = decode_base64(attributes.get("p", ""))
        header = decode_base64(attributes["c"])
        keys = self._keys or _nobody(self._mechanism)
        auth_message = f"{first.bare},{self._server_first},{without_proof}"
        valid = is_proof_valid(self._mechanism, keys, auth_message, proof)
        if not (
            valid
            and self._keys is not None
            and attributes["r"] == first.nonce + self._nonce
            and header.startswith((b"n,", b"y,"))
        ):
            raise AuthenticationFailed(
                "Authentication failed during authentication due to invalid credentials with "
                f"SASL mechanism {self._mechanism}"
            )
        self.user = first.name
        signature = server_signature(self._mechanism, keys.server_key, auth_message)
        return f"v={encode_base64(signature)}".encode()


def _nobody(mechanism: str) -> ScramKeys:
    """Return keys that no password has, so that an unknown user takes the same time."""
    size = hashlib.new(HASHES[mechanism]).digest_size
    return ScramKeys(b"", bytes(size), bytes(size), MIN_ITERATIONS)
