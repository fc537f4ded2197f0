"""The table of all checks."""

from __future__ import annotations

from typing import Final

from onceflow.cli.doctor import application, clients, cluster, durability, rights, transactions

CHECKS: Final = (
    *durability.CHECKS,
    *cluster.CHECKS,
    *transactions.CHECKS,
    *clients.CHECKS,
    *application.CHECKS,
    *rights.CHECKS,
)
