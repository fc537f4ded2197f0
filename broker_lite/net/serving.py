"""A broker that is served: the logs opened, the listeners bound, and both closed again.

The daemon and the broker in process both run through here, so that what tests see is what runs in
production. The caller may put hooks between the parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onceflow.broker_lite.broker import BrokerState, open_broker
from onceflow.broker_lite.net.server import Server

if TYPE_CHECKING:
    from random import Random

    from onceflow.broker_lite.log import Storage
    from onceflow.broker_lite.net.taps import WireTaps
    from onceflow.broker_lite.placement import Placement
    from onceflow.broker_lite.settings.broker_config import BrokerConfig
    from onceflow.broker_lite.settings.listeners import Listener


@dataclass(frozen=True, slots=True)
class Hooks:
    """What tests put between the parts of a broker.

    Attributes:
        placement: The nodes and what each leads; None for one node that leads everything.
        opened: Called with the broker before it listens.
        taps: See and change the bytes of connections.
        listeners_of: Gives, for each listener of the settings, the nodes that open it and the
            address that each takes; None for the first node and the address as it is.
    """

    placement: Placement | None = None
    opened: Callable[[BrokerState], None] | None = None
    taps: WireTaps | None = None
    listeners_of: Callable[[Listener], Iterable[tuple[int, Listener]]] | None = None


NO_HOOKS = Hooks()


class Serving:
    """One broker between its start and its stop; made by :meth:`open`.

    Attributes:
        state: The open broker.
        server: Its listeners and connections.
        listeners: The listeners of the first node, with their ports.
    """

    def __init__(self, state: BrokerState, server: Server, listeners: tuple[Listener, ...]) -> None:
        self.state: BrokerState = state
        self.server: Server = server
        self.listeners: tuple[Listener, ...] = listeners

    @classmethod
    async def open(
        cls,
        storage: Storage,
        config: BrokerConfig,
        listeners: Sequence[Listener],
        clock: Callable[[], int],
        rng: Random,
        hooks: Hooks = NO_HOOKS,
    ) -> Serving:
        """Open the logs, then listen.

        Args:
            storage: Where the logs are; is locked until :meth:`stop`.
            config: Settings.
            listeners: Where to listen; port 0 takes any free one.
            clock: Returns wall milliseconds.
            rng: Source of ids.
            hooks: What stands between the parts.

        Raises:
            OSError: An address cannot be bound, or the folder cannot be used.
            ConfigError: Settings that do not fit together.
            StorageLockedError: Another broker works on the same storage.
            DataFolderError: The storage belongs to another node, or its metadata is damaged.
        """
        now_ms = clock()
        state = open_broker(storage, config, rng, now_ms, placement=hooks.placement)
        try:
            if hooks.opened is not None:
                hooks.opened(state)
            server = Server(state, clock, taps=hooks.taps)
            bound = await server.start(listeners, hooks.listeners_of)
        except BaseException:
            state.close(now_ms, clean=False)
            raise
        return cls(state, server, bound)

    @property
    def failure(self) -> OSError | None:
        """Why the disk failed; None while all is well."""
        return self.state.log_manager.failure

    def when_disk_failed(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` on the running loop once the disk failed, or if it failed already."""
        loop = asyncio.get_running_loop()

        def failed(error: OSError) -> None:
            loop.call_soon_threadsafe(callback)

        self.state.log_manager.on_failure = failed
        if self.failure is not None:
            callback()

    async def stop(self, *, clean: bool = True) -> None:
        """Close the listeners, every connection, and the logs.

        Args:
            clean: Send what was answered and write everything out, so that the next start needs no
                recovery. After a failure of the disk nothing is written out.
        """
        await self.server.stop(abort=not clean)
        self.state.close(self.server.clock(), clean=clean and self.failure is None)
