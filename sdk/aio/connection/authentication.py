"""Authenticating connections: nonces, tokens of the user's provider, and when to do it again.

``onceflow.sdk.core.connection.sasl`` has the mechanisms.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import random
import secrets
from typing import Final

from onceflow.sdk.aio.connection.lookups import in_thread
from onceflow.sdk.core.connection.sasl import (
    RENEW_PAUSE_MS,
    RENEW_SHARE_MAX,
    RENEW_SHARE_MIN,
    authenticate_plain,
    authenticate_scram,
    authenticate_token,
)
from onceflow.sdk.core.flow import Flow
from onceflow.sdk.errors import BrokerConnectionError, KafkaError
from onceflow.sdk.protocol.scram import NONCE_BYTES
from onceflow.sdk.settings.config import ClientConfig
from onceflow.sdk.settings.security import OAuthToken

CLOSE_GRACE_S: Final = 0.5
"""How long a token provider may take to notice that it is cancelled."""


class Authenticator:
    """Makes the flows that authenticate the connections of one client.

    At most one call of the token provider runs at a time, and all connections that need a token
    share it. So a provider that hangs takes one thread, not one for each try.
    """

    def __init__(self, config: ClientConfig) -> None:
        """Make the object; the provider is not called yet.

        Args:
            config: Mechanism, credentials, and how long a token may take.
        """
        self._security = config.security
        self._limit_ms = config.request_timeout_ms
        self._asking: asyncio.Task[OAuthToken] | None = None
        self._asking_until_s = 0.0
        self._in_thread = False

    async def begin(self) -> Flow[int]:
        """Return the flow that authenticates a connection.

        Returns:
            A flow that returns the session's lifetime in milliseconds, 0 for no limit.

        Raises:
            KafkaError: The token provider failed, or did not return in time.
        """
        security = self._security
        mechanism = security.sasl_mechanism or ""
        if mechanism == "OAUTHBEARER":
            token = await self._token()
            return authenticate_token(token.value, token.extensions)
        username, password = security.sasl_username or "", security.sasl_password or ""
        if mechanism == "PLAIN":
            return authenticate_plain(username, password)
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        return authenticate_scram(mechanism, username, password, nonce)

    async def close(self) -> None:
        """Stop waiting for a token; a thread inside the provider ends with its call."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking}, timeout=CLOSE_GRACE_S)

    async def _token(self) -> OAuthToken:
        loop = asyncio.get_running_loop()
        task = self._asking
        is_late = loop.time() >= self._asking_until_s
        if task is not None and not task.done() and is_late and not self._in_thread:
            task.cancel()  # The thread continues: the next call waits for the same one.
            task = None
        if task is None or task.done():
            task = loop.create_task(self._ask(), name="onceflow-token")
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._asking, self._asking_until_s = task, loop.time() + self._limit_ms / 1000
        # Wait for the task without awaiting it: a caller that gives up does not cancel the token
        # for others, and a provider that raises CancelledError cancels no caller.
        await asyncio.wait({task}, timeout=max(0.0, self._asking_until_s - loop.time()))
        if not task.done():
            raise BrokerConnectionError(
                f"sasl_oauth_token_provider has not returned within {self._limit_ms} ms "
                "(request_timeout_ms); give it time limits of its own"
            )
        if task.cancelled():
            raise BrokerConnectionError("sasl_oauth_token_provider failed: CancelledError")
        return task.result()

    async def _ask(self) -> OAuthToken:
        provider = self._security.sasl_oauth_token_provider
        assert provider is not None
        try:
            if inspect.iscoroutinefunction(provider):
                found = await provider()
            else:
                self._in_thread = True
                try:
                    run = contextvars.copy_context().run
                    found = await in_thread(functools.partial(run, provider))
                finally:
                    self._in_thread = False
                if inspect.isawaitable(found):
                    found = await found
        except KafkaError:
            raise
        except (
            Exception,
            SystemExit,
        ) as error:  # The user's; called again after the back-off.
            # The error's text may hold a secret, so the message names its class only; the cause is
            # attached.
            raise BrokerConnectionError(
                f"sasl_oauth_token_provider failed: {type(error).__name__}"
            ) from error
        return found if isinstance(found, OAuthToken) else OAuthToken(found)


def renewal_delay_ms(lifetime_ms: int) -> int:
    """Return the time after which a session of this lifetime must be renewed."""
    share = random.uniform(RENEW_SHARE_MIN, RENEW_SHARE_MAX)
    return max(RENEW_PAUSE_MS, int(lifetime_ms * share))
