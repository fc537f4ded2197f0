"""The broker of a daemon for tests: with nodes, a control endpoint, or a capture.

The command line passes :func:`open_for_tests` to the daemon, which imports no test code itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from onceflow.broker_lite.testing.in_process import Broker

if TYPE_CHECKING:
    from onceflow.broker_lite.daemon.daemon import DaemonOptions
    from onceflow.broker_lite.net.serving import Serving
    from onceflow.broker_lite.settings.broker_config import BrokerConfig
    from onceflow.broker_lite.settings.listeners import Listener


class BrokerForTests:
    """A broker in process with the interface that the daemon needs.

    Args:
        broker: A started broker.
        has_control: Whether the broker has a control endpoint.

    Attributes:
        serving: None: metrics are served by brokers that are not for tests.
    """

    serving: Serving | None = None

    def __init__(self, broker: Broker, *, has_control: bool) -> None:
        self._broker = broker
        self.cluster_id: str = broker.state.cluster_id
        self.remarks: Sequence[str] = (
            [f"onceflow control ready on {broker.control_url}"] if has_control else []
        )

    @property
    def addresses(self) -> str:
        """Where it listens; with the listener's name if there are several."""
        broker = self._broker
        if len(broker.listener_names) == 1:
            return broker.bootstrap_servers
        return ",".join(
            f"{name}://{address}"
            for name in broker.listener_names
            for address in broker.bootstrap_servers_of(name).split(",")
        )

    @property
    def failure(self) -> OSError | None:
        """Why the disk failed, or None."""
        return self._broker.disk.failure

    def when_disk_failed(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` after the broker was stopped because its disk failed."""
        self._broker.disk.when_failed(callback)

    async def stop(self) -> None:
        """Stop cleanly, with the control endpoint and the capture."""
        await self._broker.close_async()


async def open_for_tests(
    options: DaemonOptions, listeners: Sequence[Listener], config: BrokerConfig
) -> BrokerForTests:
    """Open a broker with the options of the command line.

    Args:
        options: Options of the command line.
        listeners: Where to listen.
        config: Settings.

    Raises:
        OSError: An address is taken, or the data folder cannot be used.
        KafkaError: The settings or the folder do not fit.
    """
    broker = Broker(
        options.data,
        host=listeners[0].host,
        port=listeners[0].port,
        settings=config,
        nodes=options.nodes,
        control=options.control,
        journal_file=options.journal_file,
    )
    await broker.start_async()
    return BrokerForTests(broker, has_control=options.control is not None)
