"""Authenticating a connection: nonces, tokens of the user's provider, and when to do it again.

What is said is decided in ``onceflow.sdk.core.sasl``.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import secrets

from onceflow.sdk.core.flow import Flow
from onceflow.sdk.core.sasl import (
    RENEW_PAUSE_MS,
    RENEW_SHARE_MAX,
    RENEW_SHARE_MIN,
    authenticate_plain,
    authenticate_scram,
    authenticate_token,
)
from onceflow.sdk.errors import BrokerConnectionError, KafkaError
from onceflow.sdk.security import OAuthToken, SecurityConfig

NONCE_BYTES = 24


async def authentication_flow(security: SecurityConfig) -> Flow[int]:
    """The conversation that authenticates a connection.

    Args:
        security: Mechanism and credentials.

    Returns:
        A flow that gives the session's lifetime in milliseconds, 0 for without an end.

    Raises:
        KafkaError: The token provider failed.
    """
    if security.sasl_mechanism == "OAUTHBEARER":
        token = await _fetch_token(security)
        return authenticate_token(token.value, token.extensions)
    username, password = security.sasl_username or "", security.sasl_password or ""
    if security.sasl_mechanism == "PLAIN":
        return authenticate_plain(username, password)
    nonce = secrets.token_urlsafe(NONCE_BYTES)
    return authenticate_scram(security.sasl_mechanism or "", username, password, nonce)


async def _fetch_token(security: SecurityConfig) -> OAuthToken:
    provider = security.sasl_oauth_token_provider
    assert provider is not None
    try:
        if inspect.iscoroutinefunction(provider):
            found = await provider()
        else:
            found = await asyncio.to_thread(provider)
            if inspect.isawaitable(found):
                found = await found
    except KafkaError:
        raise
    except (Exception, SystemExit) as error:  # The user's code; asked again after the back-off.
        # Its text may hold a secret, so only its kind is told; the cause is attached.
        raise BrokerConnectionError(
            f"sasl_oauth_token_provider failed: {type(error).__name__}"
        ) from error
    return found if isinstance(found, OAuthToken) else OAuthToken(found)


def renewal_delay_ms(lifetime_ms: int) -> int:
    """When a session of this length is to be renewed, from its beginning."""
    share = random.uniform(RENEW_SHARE_MIN, RENEW_SHARE_MAX)
    return max(RENEW_PAUSE_MS, int(lifetime_ms * share))
