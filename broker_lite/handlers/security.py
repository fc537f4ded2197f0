"""SaslHandshake and SaslAuthenticate: a connection proves who it speaks for.

Decides the order of the conversation (KIP-152, trap 70): a mechanism is chosen first, then one
token; until then only ApiVersions is answered. Both requests are advertised only when a mechanism
is enabled. SaslHandshake version 0, after which tokens travel without Kafka's headers, is not
served; clients have used version 1 since Kafka 1.0.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from onceflow.broker_lite.dispatch import RequestContext, handles
from onceflow.broker_lite.security import AuthenticationFailed, authenticate, parse_credentials
from onceflow.sdk.protocol.api.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.broker import BrokerState

logger = logging.getLogger("onceflow.broker_lite.security")


@handles(SaslHandshakeRequest, versions=(1, 1))
def sasl_handshake(
    state: BrokerState, context: RequestContext, request: SaslHandshakeRequest, now_ms: int
) -> SaslHandshakeResponse:
    """Choose the mechanism."""
    enabled = [name for name in state.config.sasl_enabled_mechanisms.split(",") if name]
    connection = context.connection
    if not enabled or connection.sasl_mechanism is not None:
        code = ErrorCode.ILLEGAL_SASL_STATE
    elif request.mechanism not in enabled:
        code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    else:
        code = ErrorCode.NONE
        connection.sasl_mechanism = request.mechanism
    return SaslHandshakeResponse(error_code=code, mechanisms=enabled)


@handles(SaslAuthenticateRequest)
def sasl_authenticate(
    state: BrokerState, context: RequestContext, request: SaslAuthenticateRequest, now_ms: int
) -> SaslAuthenticateResponse:
    """Check the token; also again on an authenticated connection, for the same name (KIP-368)."""
    connection = context.connection
    if connection.sasl_mechanism is None:
        return SaslAuthenticateResponse(
            error_code=ErrorCode.ILLEGAL_SASL_STATE,
            error_message="SaslHandshake must come first.",
            auth_bytes=b"",
        )
    connection.sasl_mechanism = None
    try:
        name = authenticate(
            bytes(request.auth_bytes),
            parse_credentials(state.config.onceflow_sasl_plain_credentials),
        )
        if not connection.must_authenticate and connection.principal != f"User:{name}":
            raise AuthenticationFailed("Cannot change principals during re-authentication.")
    except AuthenticationFailed as error:
        logger.warning(
            "connection %d from %s: %s", connection.connection_id, connection.client_host, error
        )
        connection.must_authenticate = True
        return SaslAuthenticateResponse(
            error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            error_message=str(error),
            auth_bytes=b"",
        )
    connection.principal = f"User:{name}"
    connection.must_authenticate = False
    return SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b"")
