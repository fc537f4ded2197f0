"""AsyncAdmin's calls for the settings of topics, brokers and groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from onceflow.sdk.aio.admin.base import AsyncAdminBase
from onceflow.sdk.aio.connection.cluster_asker import NO_SUCH_TOPIC
from onceflow.sdk.core.admin import cluster as admin_cluster
from onceflow.sdk.core.admin import topics as admin_topics
from onceflow.sdk.core.admin.arguments import (
    check_settings,
    instances,
    resource,
)
from onceflow.sdk.core.admin.topics import Outcomes
from onceflow.sdk.core.arguments import check_flag
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.admin import (
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

Resource = str | ConfigResource
"""A topic's name, or any resource."""


class AsyncConfigCalls(AsyncAdminBase):
    """Settings of topics, brokers and groups."""

    async def describe_configs(
        self, resources: Iterable[Resource], *, timeout_ms: int | None = None
    ) -> dict[Resource, dict[str, ConfigEntry]]:
        """Return all settings of topics, brokers or groups.

        Args:
            resources: Topic names, or resources of any type.
            timeout_ms: Limit.

        Returns:
            Settings by name, by resource as it was given.

        Raises:
            UnknownTopicOrPartitionError: A topic does not exist.
            BrokerError: Another refusal.
        """
        if isinstance(resources, str | ConfigResource):
            resources = [resources]
        if isinstance(resources, bytes) or not isinstance(resources, Iterable):
            remedy = "must be a list of topic names, or of ConfigResource(type, name)"
            raise ConfigError("resources", resources, remedy)
        given = {resource("resources", each): each for each in resources}

        async def ask(
            left: list[ConfigResource], left_ms: int
        ) -> Outcomes[ConfigResource, dict[str, ConfigEntry]]:
            found: Outcomes[ConfigResource, dict[str, ConfigEntry]] = {}
            for target, part in (await self._by_target(left)).items():
                flow = admin_topics.describe_configs(part, target=target)
                found |= await self._pool.run(flow, timeout_ms=left_ms)
            return found

        found = await self._asker.complete(given, ask, timeout_ms, final=NO_SUCH_TOPIC)
        return {given[of]: entries for of, entries in found.items()}

    async def alter_configs(
        self,
        changes: Mapping[Resource, Mapping[str, str | None]],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Change some settings and leave the others unchanged (KIP-339).

        Args:
            changes: New values by setting, by topic name or resource; None returns to the
                default.
            validate_only: Only check whether it could be done.
            timeout_ms: Limit.

        Raises:
            InvalidConfigError: A setting or value does not exist.
            BrokerError: Another refusal.
        """
        if not isinstance(changes, Mapping):
            remedy = "give a dictionary, as {'orders': {'retention.ms': '3600000'}}"
            raise ConfigError("changes", changes, remedy)
        wanted = {resource("changes", of): settings for of, settings in changes.items()}
        for of, settings in wanted.items():
            check_settings("changes", of.name, settings)
        check_flag("validate_only", validate_only)

        async def ask(left: list[ConfigResource], left_ms: int) -> Outcomes[ConfigResource, None]:
            found: Outcomes[ConfigResource, None] = {}
            for target, part in (await self._by_target(left)).items():
                flow = admin_topics.alter_configs(
                    {of: wanted[of] for of in part},
                    validate_only=validate_only,
                    target=target,
                )
                found |= await self._pool.run(flow, timeout_ms=left_ms)
            return found

        await self._asker.complete(wanted, ask, timeout_ms, final=NO_SUCH_TOPIC)

    async def list_config_resources(
        self, types: Collection[ResourceType] = (), *, timeout_ms: int | None = None
    ) -> list[ConfigResource]:
        """Return the resources that have settings (KIP-1142), of some types or of all.

        Args:
            types: Kinds of resources; empty for all.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        wanted = instances("types", types, ResourceType)
        found = await self._asker.ask_controller_once(
            lambda _, target: admin_cluster.list_config_resources(wanted, target), timeout_ms
        )
        return sorted(found)

    async def _by_target(
        self, resources: Iterable[ConfigResource]
    ) -> dict[int, list[ConfigResource]]:
        """Group resources by the broker to ask: a broker's settings by itself, others by any."""
        targets: dict[int, list[ConfigResource]] = {}
        for of in resources:
            own = of.type is ResourceType.BROKER and of.name.isdigit()
            node_id = int(of.name) if own else await self._asker.controller()
            targets.setdefault(node_id, []).append(of)
        return targets
