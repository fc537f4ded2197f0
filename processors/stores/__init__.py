"""Stores of committed state: in memory or in LMDB, with a changelog topic behind either."""

from onceflow.processors.stores.base import StoreIdentity, TaskStore
from onceflow.processors.stores.memory import MemoryTaskStore

__all__ = ["TaskStore", "StoreIdentity", "MemoryTaskStore"]
