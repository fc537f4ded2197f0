"""Admin: topics, groups, offsets, settings and transactions of a cluster, with blocking calls.

The asyncio admin client runs in one background loop per client. This module holds its life; the
calls are in the modules of ``admin_calls``, which are written from the asyncio client's.
"""

from __future__ import annotations

from types import TracebackType
from typing import Final, Never, Self, Unpack

from onceflow.sdk.aio.admin.admin import AsyncAdmin
from onceflow.sdk.core.arguments import refuse_positional
from onceflow.sdk.settings.config import AdminConfig
from onceflow.sdk.settings.keywords import AdminKeywords
from onceflow.sdk.sync.admin_calls.cluster import ClusterCalls
from onceflow.sdk.sync.admin_calls.configs import ConfigCalls
from onceflow.sdk.sync.admin_calls.groups import GroupCalls
from onceflow.sdk.sync.admin_calls.offsets import OffsetCalls
from onceflow.sdk.sync.admin_calls.security import SecurityCalls
from onceflow.sdk.sync.admin_calls.topics import TopicCalls
from onceflow.sdk.sync.admin_calls.transactions import TransactionCalls
from onceflow.sdk.sync.portal import Portal

CLOSE_LIMIT_S: Final = 5.0
"""Longest wait for the connections to close."""


class Admin(
    TopicCalls,
    ConfigCalls,
    GroupCalls,
    OffsetCalls,
    TransactionCalls,
    SecurityCalls,
    ClusterCalls,
):
    """Administers a cluster; see `onceflow.sdk.AsyncAdmin` for the rules.

    Use it as ``with Admin(bootstrap_servers=...) as admin``. Calls may come from any thread.
    """

    def __init__(self, *given: Never, **settings: Unpack[AdminKeywords]) -> None:
        """Make an admin client and connect it.

        Args:
            **settings: Fields of `onceflow.sdk.AdminConfig`.

        Raises:
            ConfigError: A setting is unknown or has a value that cannot work.
            NoBrokersAvailableError: No bootstrap server answered; lists the addresses tried.
        """
        refuse_positional(given)
        self._async = AsyncAdmin(**settings)
        self._portal = Portal("admin client", self._async.close)
        try:
            self._portal.call(self._async.start)
        except BaseException:
            self._portal.close()
            raise

    @property
    def config(self) -> AdminConfig:
        """The settings, defaults included."""
        return self._async.config

    def close(self) -> None:
        """Close the connections. Calling it again does nothing."""
        if self._portal.is_closed or self._portal.is_foreign:
            # Interrupted before, or a forked child: the thread and the sockets are the parent's.
            self._portal.close()
            return
        self._portal.check_thread()
        try:
            self._portal.call(self._async.close, timeout_s=CLOSE_LIMIT_S)
        finally:
            self._portal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
