"""The task that keeps a consumer in its group.

It carries out the member's steps on a separate connection, since the coordinator answers in order
and may hold JoinGroup for minutes. The member and the consumer decide which partitions may be read
or committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from onceflow.sdk.aio import unclosed
from onceflow.sdk.aio.connection.pool import COORDINATOR, ConnectionPool
from onceflow.sdk.aio.waker import Waker
from onceflow.sdk.core.group.classic_member import GroupMember
from onceflow.sdk.core.group.consumer_member import ConsumerMember
from onceflow.sdk.core.group.membership import EXPELLED, Membership
from onceflow.sdk.core.group.steps import (
    Exchange,
    FindCoordinator,
    GroupSettings,
    LookUpTopics,
    NameTopics,
    Step,
    Wait,
    leaving_in,
)
from onceflow.sdk.errors import BrokerConnectionError, CommitFailedError, KafkaError
from onceflow.sdk.model.partitions import ConsumerGroupMetadata
from onceflow.sdk.protocol.api.cluster import CoordinatorType
from onceflow.sdk.protocol.api.consumer_groups import ConsumerGroupHeartbeatResponse
from onceflow.sdk.protocol.api.groups import HeartbeatResponse, LeaveGroupRequest
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for
from onceflow.sdk.protocol.schema import Request, Response

logger: logging.Logger = logging.getLogger("onceflow.sdk.group")

GROUP_CONNECTION: Final = "group"
"""Name of the connection for JoinGroup, SyncGroup and heartbeats."""


class GroupRunner:
    """Drives one member.

    Attributes:
        member: The member; of the consumer protocol if the settings have a member id.
    """

    def __init__(
        self, pool: ConnectionPool, settings: GroupSettings, on_change: Callable[[], None]
    ) -> None:
        """Make the member; it joins the group after `start`, at the first poll.

        Args:
            pool: Connections and metadata.
            settings: The member's settings.
            on_change: Called when a poll may have something to do.
        """
        self.member: Membership = (
            ConsumerMember(settings) if settings.member_id else GroupMember(settings)
        )
        self._pool = pool
        self._group_id = settings.group_id
        self._on_change = on_change
        # One heartbeat of the consumer protocol at a time: it lists the member's partitions, so an
        # old one that arrives late could free a partition that the member still reads. A classic
        # heartbeat has no such list, and must not wait for JoinGroup, which takes minutes.
        self._turn: contextlib.AbstractAsyncContextManager[object] = (
            asyncio.Lock() if settings.member_id else contextlib.nullcontext()
        )
        self._waker = Waker()
        self._task: asyncio.Task[None] | None = None
        self._crash: KafkaError | None = None
        self._stays = settings.group_instance_id is not None  # Static members stay in the group.
        self._unclosed: unclosed.MemberWatch | None = None

    def start(self) -> None:
        """Start the task; calling it again does nothing."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(
                self._run(), name=f"onceflow-group-{self._group_id}"
            )
            if not self._stays:
                self._unclosed = unclosed.watch_member(self, self.member, self._group_id)

    def wake(self) -> None:
        """Wake the task: the application changed something that the member must act on."""
        self._waker.wake()

    def take_failure(self) -> KafkaError | None:
        """Return the error that a poll must raise."""
        return self._crash or self.member.take_failure()

    async def close(self, timeout_ms: int, leave_group: bool | None = None) -> None:
        """Leave the group and stop the task.

        Args:
            timeout_ms: Longest wait for the coordinator's answer.
            leave_group: See `Membership.closing_request`.
        """
        if self._unclosed is not None:
            self._unclosed.detach()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        request = self.member.closing_request(leave_group)
        if request is None or timeout_ms <= 0:
            return
        # Not on the group's connection, where a JoinGroup may still wait.
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await self._ask(request, COORDINATOR, timeout_ms)

    async def _ask(self, request: Request, connection: str, timeout_ms: int | None) -> Response:
        node_id = await self._pool.find_coordinator(self._group_id, CoordinatorType.GROUP)
        if isinstance(request, LeaveGroupRequest):
            await self._pool.connect(node_id, connection)
            request = leaving_in(request, self._pool.api_version(node_id, LeaveGroupRequest) or 0)
        return await self._pool.request(
            node_id, request, timeout_ms=timeout_ms, connection=connection
        )

    # --- the task ---

    async def _run(self) -> None:
        try:
            while True:
                async with self._turn:
                    step = self.member.next_step(self._pool.now_ms())
                    if not isinstance(step, Wait):
                        await self._carry_out(step)
                if isinstance(step, Wait):
                    delay_ms = None
                    if step.until_ms is not None:
                        delay_ms = max(1, step.until_ms - self._pool.now_ms())
                    await self._waker.wait(delay_ms)
                else:
                    self._on_change()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # A bug in this library: polls raise it instead of waiting for ever.
            logger.exception("group %s: the membership task failed", self._group_id)
            self._crash = KafkaError(f"internal error of the group membership: {error!r}")
            self._crash.__cause__ = error
            self._on_change()

    async def _carry_out(self, step: Step) -> None:
        try:
            if isinstance(step, FindCoordinator):
                self._pool.forget_coordinator(self._group_id, CoordinatorType.GROUP)
                await self._pool.find_coordinator(self._group_id, CoordinatorType.GROUP)
                self.member.on_coordinator()
            elif isinstance(step, LookUpTopics):
                cluster = await self._pool.refresh_metadata(step.topics)
                counts = {t: cluster.partition_count(t) for t in step.topics}
                known = {topic: count for topic, count in counts.items() if count is not None}
                self.member.on_partitions_of_group(known, self._pool.now_ms())
            elif isinstance(step, NameTopics):
                await self._name_topics(step)
            elif isinstance(step, Exchange):
                reply = await self._ask(step.request, GROUP_CONNECTION, step.timeout_ms)
                self.member.on_response(reply, self._pool.now_ms())
        except KafkaError as error:
            self.member.on_failure(error, self._pool.now_ms())

    async def _name_topics(self, step: NameTopics) -> None:
        if any(self._pool.metadata.topic_name(topic_id) is None for topic_id in step.topic_ids):
            await self._pool.refresh_metadata(step.topics or None, all_topics=not step.topics)
        view = self._pool.metadata
        found = {topic_id: view.topic_name(topic_id) for topic_id in step.topic_ids}
        names = {topic_id: name for topic_id, name in found.items() if name is not None}
        self.member.on_topic_names(names, self._pool.now_ms())

    # --- membership ---

    async def ensure_membership(self, expected: ConsumerGroupMetadata | None) -> None:
        """Ask the coordinator whether this member is valid; see the consumer's method."""
        async with self._turn:
            await self._ensure_membership(expected)

    async def _ensure_membership(self, expected: ConsumerGroupMetadata | None) -> None:
        member = self.member
        if not member.is_member:
            raise CommitFailedError(
                f"this consumer is no member of group {self._group_id!r} any more: poll to join "
                "it again"
            )
        held = member.metadata()
        if expected is not None and expected != held:
            raise CommitFailedError(
                f"the membership in group {self._group_id!r} changed: generation "
                f"{expected.generation_id} became {held.generation_id}"
            )
        node_id = await self._pool.find_coordinator(self._group_id, CoordinatorType.GROUP)
        reply = await self._pool.request(node_id, member.probe_request(), connection=COORDINATOR)
        if not isinstance(reply, HeartbeatResponse | ConsumerGroupHeartbeatResponse):
            raise BrokerConnectionError("the coordinator sent a response of another kind")
        if member.is_member and member.metadata() == held:
            member.on_response(reply, self._pool.now_ms())
            self.wake()
            self._on_change()
        code = reply.error_code
        if code in EXPELLED:
            raise CommitFailedError(
                f"group {self._group_id!r} does not know this member or its generation any more "
                f"({ErrorCode(code).name})"
            )
        if code not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            raise error_for(code, f"Heartbeat in group {self._group_id!r}")
