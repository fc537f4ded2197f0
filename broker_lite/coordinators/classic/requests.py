"""Requests of members of the classic protocol, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from onceflow.broker_lite.coordinators.classic.group import GroupProtocol

JOIN_REQUIRES_KNOWN_MEMBER_FROM = 4
"""First JoinGroup version in which a new member must first ask for its id (KIP-394)."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """A JoinGroup request as the coordinator sees it.

    Attributes:
        group_id: Group to join.
        member_id: The member's id; empty if it has none yet.
        group_instance_id: Name of a static member, or None.
        client_id: As the client named itself, else empty.
        client_host: Address with a leading slash.
        session_timeout_ms: How long the member may be silent.
        rebalance_timeout_ms: How long a rebalance may wait for it.
        protocol_type: ``consumer`` for consumers.
        protocols: Strategies in order of preference.
        api_version: Version of the request.
    """

    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]
    api_version: int


class MemberIdentity(NamedTuple):
    """Who leaves, in LeaveGroup."""

    member_id: str
    group_instance_id: str | None = None
