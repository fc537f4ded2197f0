"""Goal: an admin client without any known broker asks again, and says so when there is none.

Method: the asker over a pool that is replaced by a few lines.
"""

from __future__ import annotations

from typing import cast

import pytest

from onceflow.sdk.aio.connection.cluster_asker import ClusterAsker
from onceflow.sdk.aio.connection.pool import ConnectionPool
from onceflow.sdk.core.connection.metadata import ClusterMetadata, Node
from onceflow.sdk.errors import NoBrokersAvailableError


class Pool:
    """A cluster whose first answer names no broker."""

    def __init__(self, *answers: ClusterMetadata) -> None:
        self.metadata = ClusterMetadata()
        self._answers = iter(answers)

    def check_usable(self) -> None:
        """It is."""

    async def refresh_metadata(self, topics: tuple[str, ...]) -> ClusterMetadata:
        self.metadata = next(self._answers, self.metadata)
        return self.metadata


def cluster(controller_id: int, *node_ids: int) -> ClusterMetadata:
    nodes = {node_id: Node(node_id, "h", 1) for node_id in node_ids}
    return ClusterMetadata(nodes=nodes, controller_id=controller_id)


@pytest.mark.parametrize(
    ("view", "expected"), [(cluster(2, 1, 2), 2), (cluster(-1, 1, 2), 1), (cluster(9, 3), 3)]
)
async def test_controller_is_asked_or_any_broker(view: ClusterMetadata, expected: int) -> None:
    assert await ClusterAsker(cast(ConnectionPool, Pool(view))).controller() == expected


async def test_cluster_that_names_no_broker_is_an_error_of_ours() -> None:
    with pytest.raises(NoBrokersAvailableError):
        await ClusterAsker(cast(ConnectionPool, Pool())).controller()
