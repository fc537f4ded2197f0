"""Where byte maps are kept: in memory or in LMDB."""

from onceflow.processors.stores.memory import MemoryMap

__all__ = ["MemoryMap"]
