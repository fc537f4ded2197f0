"""Errors of sinks that keep offsets beside their rows."""

from __future__ import annotations

from onceflow.sdk.errors import FatalError, KafkaError, RecordError, RetriableError


class SinkFencedError(KafkaError):
    """A newer owner has claimed the partition in the sink; nothing of this batch was written."""


class SinkOffsetsMovedError(FatalError):
    """The sink's stored offset is not the one at which this batch begins; nothing was written.

    Raised when the stored offsets were changed by hand while their owner was running.
    """


class SinkTopicReplacedError(FatalError):
    """The stored offset is of a deleted topic with this name; nothing was claimed."""


class SinkUnavailableError(RetriableError):
    """The sink cannot be reached, or did not answer in time; nothing of the call was stored."""


class SinkOutcomeUnknownError(KafkaError):
    """The sink's commit got no answer; claim the partitions again to learn the stored offsets."""


class SinkSharedError(FatalError):
    """Two live programs claim the same partitions in one sink; give each its own ``group_id``."""


class SinkRowError(RecordError):
    """The sink cannot store a row; nothing of its batch was written."""
