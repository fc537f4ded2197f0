"""Figures of clients for Prometheus; needs ``pip install 'onceflow[prometheus]'``."""

from onceflow.sdk.observe.prometheus import ClientCollector, Measured

__all__ = ["ClientCollector", "Measured"]
