"""The client's side of SASL: each mechanism as a flow on one connection.

These are PLAIN (RFC 4616), SCRAM (RFC 5802) and OAUTHBEARER (RFC 7628) within Kafka's requests
(KIP-152), at the beginning of a connection and again before a session ends (KIP-368). With SCRAM
the client also checks the broker's proof. The caller provides nonces and tokens.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

from onceflow.sdk.core.flow import Flow, ask
from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol import scram
from onceflow.sdk.protocol.api.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from onceflow.sdk.protocol.error_codes import error_for

ITERATIONS_MAX: Final = 100_000
"""Most rounds that a broker may ask for, since they cost this process computing time."""

RENEW_SHARE_MIN: Final = 0.85
RENEW_SHARE_MAX: Final = 0.95
"""Latest part of a session at which it is renewed, as in Java's client: before it ends, and not on
all connections at once."""

RENEW_PAUSE_MS: Final = 1_050
"""A broker refuses to authenticate a connection again within a second."""


def authenticate_plain(username: str, password: str, timeout_ms: int | None = None) -> Flow[int]:
    """Authenticate by name and password, which are sent to the broker.

    Args:
        username: Name.
        password: Secret.
        timeout_ms: Limit for each answer; None takes the client's.

    Returns:
        How long the session holds in milliseconds, 0 for without an end.

    Raises:
        BrokerError: The broker does not offer the mechanism, or refuses the credentials.
    """
    yield from _choose("PLAIN", timeout_ms)
    token = b"\0".join((b"", username.encode(), password.encode()))
    return (yield from _send(token, timeout_ms)).session_lifetime_ms


def authenticate_scram(
    mechanism: str, username: str, password: str, nonce: str, timeout_ms: int | None = None
) -> Flow[int]:
    """Authenticate by a proof of the password, and check that the broker knows it too.

    Args:
        mechanism: ``SCRAM-SHA-256`` or ``SCRAM-SHA-512``.
        username: Name.
        password: Secret; it never leaves this process.
        nonce: Random text, new for each call.
        timeout_ms: Limit for each answer; None takes the client's.

    Returns:
        How long the session holds in milliseconds, 0 for without an end.

    Raises:
        BrokerError: As for PLAIN.
        RemoteProtocolError: The broker asks for too few or too many rounds, or cannot prove that
            it knows the password: it may be an impostor.
    """
    yield from _choose(mechanism, timeout_ms)
    bare = scram.client_first(username, nonce)
    first = yield from _send(f"{scram.GS2_HEADER}{bare}".encode(), timeout_ms)
    server_first = bytes(first.auth_bytes)
    full_nonce, salt, iterations = scram.read_server_first(server_first)
    if not full_nonce.startswith(nonce) or len(full_nonce) <= len(nonce):
        raise RemoteProtocolError("the broker's SCRAM nonce does not begin with the client's")
    if not scram.MIN_ITERATIONS <= iterations <= ITERATIONS_MAX:
        raise RemoteProtocolError(
            f"the broker asks for {iterations} rounds of SCRAM; "
            f"{scram.MIN_ITERATIONS} to {ITERATIONS_MAX} are allowed"
        )
    salted = scram.salted_password(mechanism, password, salt, iterations)
    final = f"c={scram.encode_base64(scram.GS2_HEADER.encode())},r={full_nonce}"
    message = f"{bare},{server_first.decode()},{final}"
    proof = scram.encode_base64(scram.client_proof(mechanism, salted, message))
    last = yield from _send(f"{final},p={proof}".encode(), timeout_ms)
    attributes, _ = scram.read_final(bytes(last.auth_bytes), ("v",))
    keys = scram.keys_of(mechanism, salted, salt, iterations)
    expected = scram.server_signature(mechanism, keys.server_key, message)
    if not hmac.compare_digest(expected, scram.decode_base64(attributes["v"])):
        raise RemoteProtocolError("the broker could not prove that it knows the password")
    return last.session_lifetime_ms


def authenticate_token(
    token: str, extensions: Mapping[str, str], timeout_ms: int | None = None
) -> Flow[int]:
    """Authenticate by a bearer token (OAUTHBEARER, KIP-255).

    Args:
        token: The token.
        extensions: Further values for the broker (KIP-342).
        timeout_ms: Limit for each answer; None takes the client's.

    Returns:
        How long the session holds in milliseconds, 0 for without an end.

    Raises:
        BrokerError: As for PLAIN.
    """
    yield from _choose("OAUTHBEARER", timeout_ms)
    pairs = "".join(f"{key}={value}\x01" for key, value in extensions.items())
    reply = yield from _send(f"n,,\x01auth=Bearer {token}\x01{pairs}\x01".encode(), timeout_ms)
    if reply.auth_bytes:
        # What the broker has against the token; it ends the exchange when it is told to.
        reason = bytes(reply.auth_bytes)[:1_000].decode(errors="replace")
        yield from _send(b"\x01", timeout_ms)
        raise error_for(58, f"the token was refused: {reason}")
    return reply.session_lifetime_ms


def _choose(mechanism: str, timeout_ms: int | None) -> Flow[None]:
    hello = yield from ask(
        SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, timeout_ms=timeout_ms
    )
    if hello.error_code:
        offered = ", ".join(hello.mechanisms) or "nothing"
        raise error_for(hello.error_code, f"{mechanism} was asked for, the broker offers {offered}")


def _send(token: bytes, timeout_ms: int | None) -> Flow[SaslAuthenticateResponse]:
    reply = yield from ask(
        SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse, timeout_ms=timeout_ms
    )
    if reply.error_code:
        raise error_for(reply.error_code, reply.error_message or "")
    return reply
