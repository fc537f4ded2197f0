"""Group and transaction coordinators of the light broker."""

from onceflow.broker_lite.coordinators.build import abort_hanging, build_coordinators
from onceflow.broker_lite.coordinators.group_coordinator import GroupCoordinator
from onceflow.broker_lite.coordinators.settings import GroupSettings, TransactionSettings
from onceflow.broker_lite.coordinators.transaction import TransactionCoordinator

__all__ = [
    "GroupCoordinator",
    "GroupSettings",
    "TransactionCoordinator",
    "TransactionSettings",
    "abort_hanging",
    "build_coordinators",
]
