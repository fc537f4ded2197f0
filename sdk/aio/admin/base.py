"""What all calls of the admin client stand on: its settings, its connections, who is asked.

It decides nothing about requests; the calls of each subject are in the modules beside it.
"""

from __future__ import annotations

from onceflow.sdk.aio.connection.cluster_asker import ClusterAsker
from onceflow.sdk.aio.connection.pool import ConnectionPool
from onceflow.sdk.settings.config import AdminConfig


class AsyncAdminBase:
    """Settings and connections of one admin client.

    Args:
        config: The settings.
    """

    def __init__(self, config: AdminConfig) -> None:
        self._config = config
        self._pool = ConnectionPool(config)
        self._asker = ClusterAsker(self._pool)
