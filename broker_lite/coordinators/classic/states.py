"""States of a classic consumer group, as a table.

It holds the names and which state may follow which; ``rebalance`` and ``coordinator`` decide when a
group changes its state.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from types import MappingProxyType


class GroupState(enum.Enum):
    """State of a classic group; the value is Kafka's name, as in DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_S = GroupState

LEGAL_PREDECESSORS: Mapping[GroupState, frozenset[GroupState]] = MappingProxyType(
    {
        _S.EMPTY: frozenset({_S.PREPARING_REBALANCE}),
        _S.PREPARING_REBALANCE: frozenset({_S.STABLE, _S.COMPLETING_REBALANCE, _S.EMPTY}),
        _S.COMPLETING_REBALANCE: frozenset({_S.PREPARING_REBALANCE}),
        _S.STABLE: frozenset({_S.COMPLETING_REBALANCE}),
        _S.DEAD: frozenset(_S) - {_S.DEAD},
    }
)
"""Which states a state may be entered from."""
