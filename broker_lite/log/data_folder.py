"""Reads the files in the root of a data folder: whose it is, and its topics' settings.

It decides whether the folder may be used; the checkpoints beside these files belong to the log
manager.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from onceflow.broker_lite.log import checkpoints
from onceflow.broker_lite.log.log_errors import DataFolderError
from onceflow.broker_lite.log.storage import Storage


def settle_meta(
    storage: Storage, node_id: int, cluster_id: str | None, new_uuid: Callable[[], uuid.UUID]
) -> str:
    """Read ``meta.properties``, or write it in a new folder; return the cluster id.

    Args:
        storage: The data folder.
        node_id: This node.
        cluster_id: Cluster that the folder must belong to; None takes the folder's, or a new one.
        new_uuid: Source of ids.

    Raises:
        DataFolderError: The folder belongs to another cluster or node, or names none.
    """
    data = storage.read_bytes(checkpoints.META_FILE)
    try:
        known = {} if data is None else checkpoints.parse_properties(data)
    except ValueError:
        known = {}
    known_cluster = known.get("cluster.id")
    if data is not None and not known_cluster:
        raise DataFolderError(
            f"{checkpoints.META_FILE} names no cluster.id: restore it from a copy, or delete "
            "it, and the folder gets a new one"
        )
    if cluster_id is not None and known_cluster not in (None, cluster_id):
        raise DataFolderError(
            f"the data folder belongs to cluster {known_cluster}, not {cluster_id}: use "
            f"another folder, or that cluster id"
        )
    if known.get("node.id", str(node_id)) != str(node_id):
        raise DataFolderError(
            f"the data folder belongs to node {known['node.id']}, not {node_id}: use "
            f"another folder, or that node.id"
        )
    settled = known_cluster or cluster_id or checkpoints.render_uuid(new_uuid())
    if data is None:
        values = {
            "version": "1",
            "cluster.id": settled,
            "node.id": str(node_id),
            "directory.id": checkpoints.render_uuid(new_uuid()),
        }
        storage.replace(checkpoints.META_FILE, checkpoints.render_properties(values), durable=True)
    return settled


def read_overrides(
    storage: Storage, usable: Callable[[Mapping[str, str]], dict[str, str]]
) -> dict[str, dict[str, str]]:
    """Return the settings of topics, as text by topic and name.

    In a folder that Apache Kafka has used so far, they come from its metadata log.

    Args:
        storage: The data folder.
        usable: Returns those of a topic's settings in Kafka that this broker has.

    Raises:
        DataFolderError: The file is damaged.
    """
    data = storage.read_bytes(checkpoints.TOPIC_CONFIGS_FILE)
    if data is None and storage.names(checkpoints.METADATA_FOLDER):
        from onceflow.broker_lite.log.kafka_metadata import topic_settings

        found = {topic: usable(settings) for topic, settings in topic_settings(storage).items()}
        taken = {topic: settings for topic, settings in found.items() if settings}
        data = checkpoints.render_topic_configs(taken)
        storage.replace(checkpoints.TOPIC_CONFIGS_FILE, data, durable=True)
    try:
        return {} if data is None else checkpoints.parse_topic_configs(data)
    except (ValueError, TypeError) as error:
        # With the default settings, retention could remove records that a topic must keep.
        raise DataFolderError(
            f"{checkpoints.TOPIC_CONFIGS_FILE} is damaged ({error}): restore it from a copy, "
            "or delete it, and every topic has the broker's settings"
        ) from None
