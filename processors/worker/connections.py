"""The clients of one worker: its access to topics, and the ledger of its present session."""

from __future__ import annotations

import logging

from onceflow.processors.assign import CoPartitioned
from onceflow.processors.calls import Calls, made
from onceflow.processors.graph.topology import Topology
from onceflow.processors.identity import Slot
from onceflow.processors.ledger.base import Ledger, LedgerOwner
from onceflow.processors.provisioning import TopicAdmin
from onceflow.processors.rights import NOT_AUTHORIZED, explain
from onceflow.processors.services import Services
from onceflow.processors.settings import AppSettings
from onceflow.processors.task_assignor import TaskAssignor
from onceflow.processors.unit import Unit
from onceflow.sdk.errors import KafkaError
from onceflow.transactions.colour import settle

logger: logging.Logger = logging.getLogger("onceflow.processors")


class Connections:
    """Makes and closes the clients of one worker.

    Args:
        topology: The application.
        settings: How it runs.
        services: Makes clients.

    Attributes:
        records_max: Most records that a poll returns.
    """

    def __init__(self, topology: Topology, settings: AppSettings, services: Services) -> None:
        self._topology = topology
        self._settings = settings
        self._services = services
        self._admin: TopicAdmin | None = None
        self._ledger: Ledger | None = None
        self.records_max: int = 1

    @property
    def admin(self) -> TopicAdmin:
        """The access to topics."""
        assert self._admin is not None
        return self._admin

    @property
    def ledger(self) -> Ledger:
        """The ledger of the present session."""
        assert self._ledger is not None
        return self._ledger

    async def open_admin(self, calls: Calls) -> None:
        """Make the access to topics, which lasts as long as the worker."""
        self._admin = await calls(made(self._services.admin))

    async def check_rights(self, calls: Calls, error: KafkaError, slot: Slot | None) -> None:
        """End the worker if the user lacks a right; other refusals pass.

        Args:
            calls: Runs what asks brokers.
            error: A refusal.
            slot: The worker's slot, if it has claimed one.

        Raises:
            RightsMissingError: The user lacks a right.
        """
        if isinstance(error, NOT_AUTHORIZED) and self._admin is not None:
            await calls(explain(error, self._topology, self._settings, slot, self._admin))

    async def open_ledger(
        self,
        calls: Calls,
        owner: LedgerOwner,
        unit: Unit,
        slot: str,
        placing: TaskAssignor | None,
    ) -> None:
        """Make a ledger and join the group.

        Args:
            calls: Runs what asks brokers.
            owner: Whom the ledger calls.
            unit: The unit that it ends.
            slot: Name of the worker's slot.
            placing: Places tasks where copies of their state are; None without copies.
        """
        topology = self._topology
        joins = any(len(part.input_topics) > 1 for part in topology.sub_topologies)
        config = self._settings.session_config(
            topology.app,
            topology.input_topics,
            slot,
            CoPartitioned(topology) if joins else None,
            [*topology.table_topics, *topology.repartition_topics],
            placing,
        )
        self.records_max = config.consumer.max_poll_records
        if topology.sink is None:
            self._ledger = self._services.ledger(config, owner, unit, calls)
        else:
            self._ledger = self._services.sink_ledger(config, owner, unit, calls, topology)
        await calls(self._ledger.open())

    async def drop_ledger(self, calls: Calls) -> None:
        """Close the ledger, to begin again with another one."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            try:
                await calls(ledger.close(self._settings.revoke_budget_ms, leave_group=True))
            except KafkaError as error:
                logger.debug("closing before beginning again: %s", error)

    def wake_poll(self) -> None:
        """Make a waiting poll return; callable from any thread."""
        ledger = self._ledger
        if ledger is not None:
            ledger.wakeup()

    async def close_ledger(self, timeout_ms: int, *, leave_group: bool) -> None:
        """Close the ledger for good.

        Args:
            timeout_ms: Longest wait.
            leave_group: Whether the partitions go to other members at once.
        """
        if self._ledger is not None:
            try:
                await self._ledger.close(timeout_ms, leave_group=leave_group)
            except KafkaError as error:
                logger.warning("closing: %s", error)

    async def close_admin(self) -> None:
        """Close the access to topics."""
        if self._admin is not None:
            await settle(self._admin.close())
