"""The bundled broker: Kafka's protocol and Kafka's files, on one node, in plain Python.

:class:`Broker` runs it inside of the current process; ``onceflow broker`` runs it as a daemon.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceflow.broker_lite.testing.in_process import Broker
    from onceflow.broker_lite.testing.virtual_clock import VirtualClock

__all__ = ["Broker", "VirtualClock"]


def __getattr__(name: str) -> object:
    # Loaded at the first use: the daemon needs nothing of `testing`.
    if name in __all__:
        import onceflow.broker_lite.testing as testing

        return getattr(testing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
