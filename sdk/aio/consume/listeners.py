"""Rebalance callbacks of the application, and which one a poll has to run now."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields

from onceflow.sdk.core.group.steps import RebalanceEvent, RebalanceKind
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.partitions import TopicPartition

RebalanceCallback = Callable[[list[TopicPartition]], object]
"""``callback(partitions)``; on an asynchronous consumer it may return an awaitable."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """The application's rebalance callbacks; each may be missing."""

    on_assigned: RebalanceCallback | None = None
    on_revoked: RebalanceCallback | None = None
    on_lost: RebalanceCallback | None = None

    def __post_init__(self) -> None:
        """Refuse callbacks that cannot be called, before the first rebalance needs them."""
        for field in fields(self):
            callback = getattr(self, field.name)
            if callback is not None and not callable(callback):
                raise ConfigError(
                    field.name, callback, "must be a function that takes a list of partitions"
                )

    def check_blocking(self) -> None:
        """Refuse coroutine functions, whose coroutines a blocking consumer could not run.

        Raises:
            ConfigError: There is one.
        """
        for field in fields(self):
            if inspect.iscoroutinefunction(getattr(self, field.name)):
                name = getattr(self, field.name).__name__
                remedy = "give a plain function, or use AsyncConsumer, which awaits this one"
                raise ConfigError(field.name, name, remedy)

    def for_kind(self, kind: RebalanceKind) -> RebalanceCallback | None:
        """Return the callback for an event. Lost partitions are never reported as revoked."""
        if kind is RebalanceKind.ASSIGNED:
            return self.on_assigned
        return self.on_revoked if kind is RebalanceKind.REVOKED else self.on_lost

    def pending(self, event: RebalanceEvent, shown: RebalanceEvent) -> PendingCallback | None:
        """Return the callback for an event; None for none.

        Args:
            event: What happened.
            shown: The part of it that the application may see.
        """
        callback = self.for_kind(event.kind)
        is_news = shown.partitions or event.kind is RebalanceKind.ASSIGNED
        if callback is None or not is_news:
            return None
        return PendingCallback(event, callback, list(shown.partitions))


@dataclass(frozen=True, slots=True)
class PendingCallback:
    """A callback that the face must run before the poll continues.

    Attributes:
        event: The event, to be passed back to the engine.
        callback: The function to call with `partitions`.
        partitions: Its argument.
    """

    event: RebalanceEvent
    callback: RebalanceCallback
    partitions: list[TopicPartition]


async def run_callback(pending: PendingCallback | None) -> None:
    """Run a callback that is due, if there is one, and await what it returns."""
    if pending is not None:
        result = pending.callback(pending.partitions)
        if inspect.isawaitable(result):
            await result
