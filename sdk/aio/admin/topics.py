"""AsyncAdmin's calls for topics: create, delete, describe, more partitions, fewer records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from onceflow.sdk.aio.admin.base import AsyncAdminBase
from onceflow.sdk.aio.connection.cluster_asker import NO_SUCH_TOPIC
from onceflow.sdk.core.admin import topics as admin_topics
from onceflow.sdk.core.admin.arguments import (
    name_list,
    new_topics,
    numbers_by_name,
    numbers_by_partition,
)
from onceflow.sdk.core.admin.topics import Outcomes
from onceflow.sdk.core.arguments import check_flag
from onceflow.sdk.core.flow import Flow
from onceflow.sdk.model.acl_enums import AclOperation
from onceflow.sdk.model.admin import TopicDescription
from onceflow.sdk.model.partitions import (
    NewTopic,
    TopicPartition,
)
from onceflow.sdk.protocol.api.admin import DeleteTopicsRequest
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for


class AsyncTopicCalls(AsyncAdminBase):
    """Topics, partitions and the start of logs."""

    async def create_topics(
        self,
        topics: Iterable[NewTopic | str],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[str, UUID]:
        """Create topics and wait until the brokers show them.

        Args:
            topics: What to create; a name alone takes the broker's defaults.
            validate_only: Only check whether it could be done.
            timeout_ms: Limit.

        Returns:
            Id by topic.

        Raises:
            TopicAlreadyExistsError: One exists.
            InvalidTopicError: A name is not allowed.
            BrokerError: Another refusal.
        """
        by_name = new_topics(topics)
        check_flag("validate_only", validate_only)

        async def ask(names: list[str], left_ms: int) -> Outcomes[str, UUID]:
            flow = admin_topics.create_topics(
                [by_name[name] for name in names],
                left_ms,
                validate_only=validate_only,
                target=await self._asker.controller(),
            )
            return await self._pool.run(flow, timeout_ms=left_ms)

        created = await self._asker.complete(by_name, ask, timeout_ms)
        if not validate_only:
            await self._asker.wait_visible(dict.fromkeys(created, 1))
        return created

    async def delete_topics(self, topics: Iterable[str], *, timeout_ms: int | None = None) -> None:
        """Delete topics with all their records.

        Args:
            topics: Topic names.
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            UnknownTopicOrPartitionError: One does not exist.
            BrokerError: Another refusal.
        """

        async def ask(names: list[str], left_ms: int) -> Outcomes[str, None]:
            node_id = await self._asker.controller()
            await self._pool.connect(node_id, "default")
            version = self._pool.api_version(node_id, DeleteTopicsRequest) or 0
            flow = admin_topics.delete_topics(names, left_ms, by_state=version >= 6, target=node_id)
            return await self._pool.run(flow, timeout_ms=left_ms)

        await self._asker.complete(
            name_list("topics", topics), ask, timeout_ms, final=NO_SUCH_TOPIC
        )

    async def create_partitions(
        self,
        totals: Mapping[str, int],
        *,
        validate_only: bool = False,
        timeout_ms: int | None = None,
    ) -> None:
        """Raise topics to new totals of partitions, and wait until the brokers show them.

        Afterwards records with a key may go to another partition than before.

        Args:
            totals: New number of partitions by topic; never lower than before.
            validate_only: Only check whether it could be done.
            timeout_ms: Limit.

        Raises:
            InvalidPartitionsError: A total is not above the present one.
            BrokerError: Another refusal.
        """
        totals = numbers_by_name("totals", totals, "{'orders': 6}")
        check_flag("validate_only", validate_only)

        async def ask(names: list[str], left_ms: int) -> Outcomes[str, None]:
            flow = admin_topics.create_partitions(
                {name: totals[name] for name in names},
                left_ms,
                validate_only=validate_only,
                target=await self._asker.controller(),
            )
            return await self._pool.run(flow, timeout_ms=left_ms)

        await self._asker.complete(totals, ask, timeout_ms, final=NO_SUCH_TOPIC)
        if not validate_only:
            await self._asker.wait_visible(totals)

    async def list_topics(
        self, *, include_internal: bool = False, timeout_ms: int | None = None
    ) -> list[str]:
        """Return the names of all topics that this client may see, sorted.

        Args:
            include_internal: Also those of the broker itself, such as ``__consumer_offsets``.
            timeout_ms: Limit, default ``default_api_timeout_ms``.
        """
        check_flag("include_internal", include_internal)
        self._asker.check(timeout_ms)
        view = await self._pool.refresh_metadata(all_topics=True, timeout_ms=timeout_ms)
        return sorted(
            name
            for name, topic in view.topics.items()
            if topic.error_code == 0 and (include_internal or not topic.is_internal)
        )

    async def describe_topics(
        self,
        topics: Iterable[str],
        *,
        include_authorized_operations: bool = False,
        timeout_ms: int | None = None,
    ) -> dict[str, TopicDescription]:
        """Return partitions, leaders and id of topics.

        Args:
            topics: Topic names.
            include_authorized_operations: Also ask what this client may do with them (KIP-430).
            timeout_ms: Limit, default ``default_api_timeout_ms``.

        Raises:
            UnknownTopicOrPartitionError: One does not exist.
            BrokerError: Another refusal.
        """
        check_flag("include_authorized_operations", include_authorized_operations)

        async def ask(names: list[str], left_ms: int) -> Outcomes[str, TopicDescription]:
            view = await self._pool.refresh_metadata(names, remember=False, timeout_ms=left_ms)
            operations: dict[str, frozenset[AclOperation] | None] = {}
            if include_authorized_operations:
                flow = admin_topics.topic_operations(names, await self._asker.controller())
                operations = await self._pool.run(flow, timeout_ms=left_ms)
            found: Outcomes[str, TopicDescription] = {}
            for name in names:
                topic = view.topics.get(name)
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
                if topic is None or code:
                    found[name] = error_for(code, f"topic {name!r}")
                    continue
                infos = tuple(view.partition_infos(name))
                found[name] = TopicDescription(
                    name, topic.topic_id, infos, topic.is_internal, operations.get(name)
                )
            return found

        return await self._asker.complete(
            name_list("topics", topics), ask, timeout_ms, final=NO_SUCH_TOPIC
        )

    async def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, int]:
        """Delete records from the start of partitions.

        Args:
            before: First offset to keep, by partition; -1 deletes up to the high watermark.
            timeout_ms: Limit.

        Returns:
            Where each log starts now.

        Raises:
            OffsetOutOfRangeError: An offset is beyond the high watermark.
            BrokerError: Another refusal.
        """
        before = numbers_by_partition("before", before)

        def flow(
            node_id: int, part: list[TopicPartition], left_ms: int
        ) -> Flow[Outcomes[TopicPartition, int]]:
            return admin_topics.delete_records(node_id, {p: before[p] for p in part}, left_ms)

        return await self._asker.ask_leaders(before, flow, timeout_ms)
