"""AsyncAdmin: topics, groups, offsets, settings and transactions of a cluster, with asyncio.

This module is the client's life. Its calls are in one module for each subject, over ``base``;
``cluster_asker`` decides which broker to ask and what to repeat, and the core makes the requests.
"""

from __future__ import annotations

from types import TracebackType
from typing import Never, Self, Unpack

from onceflow.sdk.aio.admin.cluster import AsyncClusterCalls
from onceflow.sdk.aio.admin.configs import AsyncConfigCalls
from onceflow.sdk.aio.admin.groups import AsyncGroupCalls
from onceflow.sdk.aio.admin.offsets import AsyncOffsetCalls
from onceflow.sdk.aio.admin.security import AsyncSecurityCalls
from onceflow.sdk.aio.admin.transactions import AsyncTransactionCalls
from onceflow.sdk.core.arguments import refuse_positional
from onceflow.sdk.settings.config import AdminConfig
from onceflow.sdk.settings.keywords import AdminKeywords


class AsyncAdmin(
    AsyncTransactionCalls,
    AsyncConfigCalls,
    AsyncGroupCalls,
    AsyncOffsetCalls,
    AsyncSecurityCalls,
    AsyncClusterCalls,
):
    """Administers a cluster.

    Use it as ``async with AsyncAdmin(bootstrap_servers=...) as admin``. Every call takes
    ``timeout_ms`` (default ``default_api_timeout_ms``) and retries retriable errors until then. If
    a call is about several items and some fail, the others are still done; then the first failure
    is raised as the broker's error (a subclass of `BrokerError`) with the name of its item, and the
    other failures are its notes.
    """

    def __init__(self, *given: Never, **settings: Unpack[AdminKeywords]) -> None:
        """Make an admin client; nothing is sent before `start`.

        Args:
            **settings: Fields of `onceflow.sdk.AdminConfig`.

        Raises:
            ConfigError: A setting is unknown or has a value that cannot work.
        """
        refuse_positional(given)
        super().__init__(AdminConfig.from_settings(settings))

    @property
    def config(self) -> AdminConfig:
        """The settings, defaults included."""
        return self._config

    async def start(self) -> None:
        """Connect to the cluster. Calling it again does nothing.

        Raises:
            NoBrokersAvailableError: No bootstrap server answered; lists the addresses tried.
        """
        await self._pool.start()

    async def stop(self) -> None:
        """The same as ``close``."""
        await self.close()

    async def close(self) -> None:
        """Close the connections. Calling it again does nothing."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
