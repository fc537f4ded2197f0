"""Sends the outputs of a unit, in runs of one topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from onceflow.processors.errors import UndeliverableOutputError
from onceflow.processors.lanes import Run
from onceflow.sdk.errors import (
    ConfigError,
    InvalidTopicError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from onceflow.transactions.clients import Sending, SentRun
from onceflow.transactions.colour import settle

_NO_SUCH_TOPIC = (InvalidTopicError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError)


async def send_runs(
    target: Sending, runs: Sequence[Run], refused: Callable[[str, Exception], None]
) -> None:
    """Send runs in order, and note in each where it was sent.

    Args:
        target: A session or a producer.
        runs: Outputs.
        refused: Called with topic and error, if the topic does not exist or may not be written.

    Raises:
        UndeliverableOutputError: An output can never be delivered.
        KafkaError: Sending failed; or a declared topic is missing.
    """
    for run in runs:
        try:
            if run.headers:
                await settle(
                    target.send(
                        run.topic,
                        run.values[0],
                        key=run.keys[0],
                        headers=run.headers,
                        partition=run.partition,
                        timestamp_ms=None if run.timestamps_ms is None else run.timestamps_ms[0],
                    )
                )
                continue
            sent = target.send_many(
                run.topic,
                run.values,
                run.keys,
                partition=run.partition,
                timestamps_ms=run.timestamps_ms,
            )
            run.sent = cast(SentRun, await settle(sent))
        except ConfigError as error:
            raise UndeliverableOutputError(f"output to {run.topic!r}: {error}") from error
        except _NO_SUCH_TOPIC as error:
            if run.declared:
                raise
            refused(run.topic, error)
            raise UndeliverableOutputError(f"output topic {run.topic!r}: {error}") from error
