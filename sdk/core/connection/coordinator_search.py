"""The question for the coordinator of a group or transactional id, and its answer.

It decides in which form the question is asked and what the answer means. Which broker is asked,
and whether again, is decided elsewhere.
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
    """The question in the form that a broker knows.

    Args:
        versions: What the broker offers.
        key: Group name or transactional id.
        kind: Which of the two.
    """
    if (versions.pick(FindCoordinatorRequest) or 0) >= BY_LIST_FROM:
        return FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    return FindCoordinatorRequest(key_type=kind, key=key)


def read_coordinator(reply: Response) -> Node:
    """The coordinator that a broker named.

    Args:
        reply: The answer to one question.

    Raises:
        BrokerError: The broker could not tell.
        BrokerConnectionError: It is the answer to something else.
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
