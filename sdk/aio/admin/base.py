"""What all calls of the admin client stand on: its settings, its connections, who is asked.

It decides nothing about requests; the calls of each subject are in the modules beside it.
"""

from __future__ import annotations

from typing import Final

from onceflow.sdk.aio.connection.cluster_asker import ClusterAsker
from onceflow.sdk.aio.connection.pool import ConnectionPool
from onceflow.sdk.settings.config import AdminConfig

TOPICS_IDLE_MS: Final = 300_000
"""Topics that no call named for so long are forgotten, as with producers (KIP-526's default of
``metadata.max.idle.ms``). Otherwise an administrator's process would ask for deleted ones for ever.
"""


class AsyncAdminBase:
    """Settings and connections of one admin client.

    Args:
        config: The settings.
    """

    def __init__(self, config: AdminConfig) -> None:
        self._config = config
        self._pool = ConnectionPool(config, topics_idle_ms=TOPICS_IDLE_MS)
        self._asker = ClusterAsker(self._pool)
