"""The bundled broker: Kafka's protocol and Kafka's files, on one node, in plain Python.

:class:`Broker` runs it inside of the current process; ``onceflow broker`` runs it as a daemon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onceflow.broker_lite.daemon.daemon import DaemonOptions, OpenBroker
    from onceflow.broker_lite.settings.broker_config import BrokerConfig
    from onceflow.broker_lite.settings.listeners import Listener
    from onceflow.broker_lite.testing.in_process import Broker
    from onceflow.broker_lite.testing.virtual_clock import VirtualClock

__all__ = ["Broker", "VirtualClock"]


async def open_for_tests(
    options: DaemonOptions, listeners: Sequence[Listener], config: BrokerConfig
) -> OpenBroker:
    """Open a broker that has what only tests need; programs pass this to the daemon's command."""
    from onceflow.broker_lite.testing import daemon_broker

    return await daemon_broker.open_for_tests(options, listeners, config)


def __getattr__(name: str) -> object:
    # Loaded at the first use: the daemon needs nothing of `testing`.
    if name in __all__:
        import onceflow.broker_lite.testing as testing

        return getattr(testing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
