"""Blocking calls, written from ``sdk/aio/admin/configs.py``; do not edit, run ``make fix``.

The blocking admin client's calls of the subject configs.
The tool is ``tools/blocking_faces.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from onceflow.sdk.aio.admin.admin import AsyncAdmin
from onceflow.sdk.aio.admin.configs import Resource
from onceflow.sdk.model.admin import ConfigEntry, ConfigResource, ResourceType
from onceflow.sdk.sync.portal import Portal


class ConfigCalls:
    """The blocking admin client's calls of the subject configs."""

    _async: AsyncAdmin
    _portal: Portal

    def describe_configs(
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
        return self._portal.call(
            lambda: self._async.describe_configs(resources, timeout_ms=timeout_ms)
        )

    def alter_configs(
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
        self._portal.call(
            lambda: self._async.alter_configs(
                changes, validate_only=validate_only, timeout_ms=timeout_ms
            )
        )

    def list_config_resources(
        self, types: Collection[ResourceType] = (), *, timeout_ms: int | None = None
    ) -> list[ConfigResource]:
        """Return the resources that have settings (KIP-1142), of some types or of all.

        Args:
            types: Kinds of resources; empty for all.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        return self._portal.call(
            lambda: self._async.list_config_resources(types, timeout_ms=timeout_ms)
        )
