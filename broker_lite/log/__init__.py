"""Partition logs on disk or in memory, in Kafka's own formats."""

from onceflow.broker_lite.log.log_config import LogConfig
from onceflow.broker_lite.log.log_errors import (
    AppendError,
    DataFolderError,
    LogError,
    ReadError,
    StorageLockedError,
)
from onceflow.broker_lite.log.log_manager import LogManager
from onceflow.broker_lite.log.log_results import AppendResult, ReadResult
from onceflow.broker_lite.log.memory_storage import MemoryStorage
from onceflow.broker_lite.log.partition_log import PartitionLog
from onceflow.broker_lite.log.producer_state import ProducerSnapshot
from onceflow.broker_lite.log.storage import Buffer, LogFile, RealStorage, Storage

__all__ = [
    "AppendError",
    "AppendResult",
    "Buffer",
    "DataFolderError",
    "LogConfig",
    "LogError",
    "LogFile",
    "LogManager",
    "MemoryStorage",
    "PartitionLog",
    "ProducerSnapshot",
    "ReadError",
    "ReadResult",
    "RealStorage",
    "Storage",
    "StorageLockedError",
]
