"""Outbox and inbox in PostgreSQL: records that commit with the rows of a service, each once.

The relay sends what services have put into the outbox's table to topics. The inbox remembers the
messages that a consumer has handled. Needs psycopg 3 (``pip install 'onceflow[postgres]'``).
"""

from onceflow.transactions.outbox.inbox import Inbox
from onceflow.transactions.outbox.relay import OutboxRelay, RelayFigures
from onceflow.transactions.outbox.table import Outbox, OutboxRowError

__all__ = ["Outbox", "OutboxRelay", "RelayFigures", "OutboxRowError", "Inbox"]
