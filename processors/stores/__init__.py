"""Byte maps in memory and in LMDB."""

from onceflow.processors.stores.memory import MemoryMap

__all__ = ["MemoryMap"]
