"""A Kafka transaction and one of PostgreSQL that commit together.

Needs psycopg 3 (``pip install 'onceflow[postgres]'``).
"""

from onceflow.transactions.two_phase.decisions import (
    Decisions,
    InDoubt,
    list_in_doubt,
    resolve_in_doubt,
)
from onceflow.transactions.two_phase.errors import ParticipantError
from onceflow.transactions.two_phase.session import TwoPhaseSession

__all__ = [
    "TwoPhaseSession",
    "Decisions",
    "InDoubt",
    "list_in_doubt",
    "resolve_in_doubt",
    "ParticipantError",
]
