"""SaslHandshake and SaslAuthenticate: the authentication of a connection.

Decides the order of the requests (KIP-152, KIP-368, trap 70). The client first chooses a mechanism,
then sends its tokens. Before the authentication is complete, only ApiVersions and these two are
answered. An authenticated client may authenticate again as the same user with the same mechanism.
After SaslHandshake 0 the tokens have no Kafka headers.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.registry import handles
from onceflow.broker_lite.request_context import (
    CloseConnection,
    ConnectionState,
    RawToken,
    RequestContext,
)
from onceflow.broker_lite.security.plain import AuthenticationFailed
from onceflow.sdk.protocol.api.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.services import Services

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.security")

REAUTHENTICATION_PAUSE_MS = 1_000
"""Shortest time between two authentications of a connection, as in Kafka."""


@handles(SaslHandshakeRequest)
def sasl_handshake(
    state: Services, context: RequestContext, request: SaslHandshakeRequest, now_ms: int
) -> SaslHandshakeResponse:
    """Begin an authentication with the mechanism that the client chose."""
    connection = context.connection
    security, sasl = connection.security, connection.sasl
    if security is None or not security.mechanisms:
        return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
    if sasl.exchange is not None:
        raise CloseConnection("SaslHandshake in the middle of an authentication")
    mechanisms = list(security.mechanisms)
    if sasl.user is not None and not connection.must_authenticate:
        last_ms = sasl.began_again_ms
        if last_ms is not None and now_ms - last_ms < REAUTHENTICATION_PAUSE_MS:
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        sasl.began_again_ms = now_ms
        connection.must_authenticate = True
    if request.mechanism not in mechanisms:
        connection.failed = True
        return SaslHandshakeResponse(
            error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=mechanisms
        )
    sasl.is_mechanism_changed = sasl.user is not None and request.mechanism != sasl.mechanism
    if not sasl.is_mechanism_changed:
        sasl.mechanism = request.mechanism
    sasl.exchange = security.begin(request.mechanism)
    connection.raw_tokens = context.api_version == 0
    return SaslHandshakeResponse(error_code=0, mechanisms=mechanisms)


@handles(SaslAuthenticateRequest)
def sasl_authenticate(
    state: Services, context: RequestContext, request: SaslAuthenticateRequest, now_ms: int
) -> SaslAuthenticateResponse | Deferred[SaslAuthenticateResponse]:
    """Check a token; a refusal is delayed a little, and ends the connection."""
    connection = context.connection
    if connection.sasl.exchange is None:
        if connection.must_authenticate:
            raise CloseConnection("SaslAuthenticate before SaslHandshake")
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslHandshake must come first.",
        )
    try:
        answer = _take_token(connection, bytes(request.auth_bytes), now_ms)
    except AuthenticationFailed as error:
        connection.failed = True
        refusal = SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=str(error)
        )
        return _later(state, refusal, now_ms)
    lifetime_ms = 0
    if connection.session_expires_ms is not None and not connection.must_authenticate:
        lifetime_ms = connection.session_expires_ms - now_ms
    return SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=lifetime_ms)


def take_raw_token(connection: ConnectionState, token: bytes, now_ms: int) -> RawToken:
    """Check a token without a Kafka header, and answer in the same way.

    Raises:
        CloseConnection: The token is refused; this form has no error answer.
    """
    try:
        return RawToken(_take_token(connection, token, now_ms))
    except AuthenticationFailed as error:
        raise CloseConnection(str(error)) from None


def _take_token(connection: ConnectionState, token: bytes, now_ms: int) -> bytes:
    """Continue the exchange; when it is complete, the client is authenticated.

    Raises:
        AuthenticationFailed: The credentials are wrong, or user or mechanism changed.
    """
    security, sasl = connection.security, connection.sasl
    assert security is not None
    assert sasl.exchange is not None
    exchange = sasl.exchange
    try:
        if sasl.is_mechanism_changed:
            raise AuthenticationFailed(
                "Cannot change the SASL mechanism during re-authentication; it was "
                f"{sasl.mechanism}."
            )
        answer = exchange.step(token, now_ms)
        user = exchange.user
        if user is None:
            return answer
        if sasl.user not in (None, user):
            raise AuthenticationFailed(
                f"Cannot change principals during re-authentication from User:{sasl.user} to "
                f"User:{user}."
            )
    except AuthenticationFailed as error:
        sasl.exchange = None
        logger.warning(
            "connection %d from %s: %s", connection.connection_id, connection.client_host, error
        )
        raise
    lifetime_ms = security.session_lifetime_ms(sasl.mechanism, exchange.expires_ms, now_ms)
    connection.session_expires_ms = None if lifetime_ms is None else now_ms + lifetime_ms
    sasl.exchange = None
    sasl.user = user
    connection.principal = f"User:{user}"
    connection.must_authenticate = connection.raw_tokens = False
    return answer


def _later(
    state: Services, response: SaslAuthenticateResponse, now_ms: int
) -> SaslAuthenticateResponse | Deferred[SaslAuthenticateResponse]:
    """Delay a refusal, so that a client cannot try passwords quickly."""
    delay_ms = state.config.connection_failed_authentication_delay_ms
    if not delay_ms:
        return response
    deferred: Deferred[SaslAuthenticateResponse] = Deferred()

    def answer(now_ms: int) -> None:
        deferred.complete(response)

    timer = state.timers.schedule(now_ms + delay_ms, answer)
    deferred.on_disconnect = timer.cancel
    return deferred
