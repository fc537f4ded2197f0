"""The request for the coordinator of a group or transactional id, and its answer.

It makes the request in the form that a broker knows, and reads the answer. The caller chooses the
broker and decides on repetitions.
"""

from __future__ import annotations

from onceflow.sdk.core.connection.handshake import BrokerVersions
from onceflow.sdk.core.connection.metadata import Node
from onceflow.sdk.errors import BrokerConnectionError
from onceflow.sdk.protocol.api.cluster import (
    CoordinatorType,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from onceflow.sdk.protocol.error_codes import error_for
from onceflow.sdk.protocol.schema import Response

BY_LIST_FROM = 4
"""First version of FindCoordinator that takes several keys (KIP-699)."""


def coordinator_request(
    versions: BrokerVersions, key: str, kind: CoordinatorType
) -> FindCoordinatorRequest:
    """Return the request in the form that a broker knows.

    Args:
        versions: Versions that the broker offers.
        key: Group name or transactional id.
        kind: Kind of the key.
    """
    if (versions.pick(FindCoordinatorRequest) or 0) >= BY_LIST_FROM:
        return FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    return FindCoordinatorRequest(key_type=kind, key=key)


def read_coordinator(reply: Response) -> Node:
    """Return the coordinator in an answer.

    Args:
        reply: The answer about one key.

    Raises:
        BrokerError: The answer is an error.
        BrokerConnectionError: The answer has another type.
    """
    if not isinstance(reply, FindCoordinatorResponse):
        raise BrokerConnectionError("the broker sent a response of another kind")
    if reply.coordinators:
        found = reply.coordinators[0]
        code, message = found.error_code, found.error_message
        node = Node(found.node_id, found.host, found.port)
    else:
        code, message = reply.error_code, reply.error_message
        node = Node(reply.node_id, reply.host, reply.port)
    if code:
        raise error_for(code, message or "")
    return node
