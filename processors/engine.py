"""Runs one processor's handler on one record at a time: all of the record, or nothing.

Outputs and state writes are collected while the handler runs and kept only when it returned and
everything is encoded; that is the record's savepoint. What happens after a failure follows the
processor's policy. The engine neither reads, commits nor waits: the runner does, and the test
driver in its place.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import cast

from onceflow.processors.context import Context, Inherit, Output
from onceflow.processors.errors import (
    DeclarationError,
    DeserializationError,
    HandlerCancelledError,
    ProcessingError,
    StateKeyError,
    TooManyDeadLettersError,
    UndeliverableOutputError,
)
from onceflow.processors.outputs import Lane, OutputBuffer
from onceflow.processors.policies import (
    DeadLetterMeter,
    OnError,
    ThrottledWarnings,
    brief,
    dead_letter_headers,
)
from onceflow.processors.signatures import Argument, ArgumentKind
from onceflow.processors.state import State, finish_states
from onceflow.processors.tasks import Task
from onceflow.processors.topology import ProcessorSpec
from onceflow.processors.values import Decoder, decoder_for, encoder_for
from onceflow.sdk.errors import RecordTooLargeError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.sdk.model.record_checks import check_timestamp, check_topic_name, to_headers

logger: logging.Logger = logging.getLogger("onceflow.processors")

Wait = Callable[[int], Awaitable[bool]]
"""Waits some milliseconds; False when the record is not ours any more and is to be left alone."""

_PLAIN = frozenset({bytes, str, int, float, bool, dict})

Encoded = tuple[Lane, bytes | None, bytes | None, Output | None]


class _Call:
    """One attempt at one record: what its arguments are made from."""

    __slots__ = ("context", "record", "states", "task")

    def __init__(self, record: ConsumerRecord, task: Task, context: Context | None) -> None:
        self.record = record
        self.task = task
        self.context = context
        self.states: list[State[object]] = []


Binder = Callable[[_Call], object]


def _check_output(output: Output) -> None:
    """Refuse what the producer would refuse, while it still is this record's failure alone."""
    to_headers(output.headers)
    partition = output.partition
    if partition is not None and (not isinstance(partition, int) or partition < 0):
        raise UndeliverableOutputError(f"partition={partition!r}: must be a number from 0 on")
    if output.timestamp_ms is not None:
        check_timestamp(output.timestamp_ms)


class Engine:
    """One processor at work.

    Args:
        spec: The processor.
        buffer: Takes the outputs of records that succeeded.
        record_bytes_max: Largest key and value of an output together.
        clock: Monotonic seconds, for the pace of warnings.
    """

    def __init__(
        self,
        spec: ProcessorSpec,
        buffer: OutputBuffer,
        record_bytes_max: int = 1_000_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.spec = spec
        self.is_async: bool = spec.signature.is_async
        self._function = spec.signature.function
        self._buffer = buffer
        self._bytes_max = record_bytes_max
        self._lane = buffer.declared(spec.output_topic) if spec.output_topic else None
        self._dead_letters = (
            buffer.declared(spec.dead_letter_topic) if spec.dead_letter_topic else None
        )
        self._encode = encoder_for(spec.format)
        arguments = spec.signature.arguments
        self._binders = [self._binder(a) for a in arguments if not a.keyword_only]
        self._named = {a.name: self._binder(a) for a in arguments if a.keyword_only}
        self._decode_only = self._plain_decoder()
        self._wants_context = any(a.kind is ArgumentKind.CONTEXT for a in spec.signature.arguments)
        self._meter = DeadLetterMeter(spec.dead_letter_limits)
        self._warnings = ThrottledWarnings(logger.warning, clock)
        self._count_good = spec.on_error is OnError.DEAD_LETTER

    # Arguments -----------------------------------------------------------------------------

    def _binder(self, argument: Argument) -> Binder:
        kind, format = argument.kind, self.spec.format
        if kind is ArgumentKind.VALUE:
            decode = decoder_for(argument.annotation, format, f"value of {self.spec.name}")
            return lambda call: decode(cast("bytes | None", call.record.value))
        if kind is ArgumentKind.KEY:
            decode_key = decoder_for(argument.annotation, format, f"key of {self.spec.name}")
            return lambda call: decode_key(cast("bytes | None", call.record.key))
        if kind is ArgumentKind.HEADERS:
            return lambda call: call.record.headers
        if kind is ArgumentKind.RECORD:
            return lambda call: call.record
        if kind is ArgumentKind.CONTEXT:
            return lambda call: call.context
        return self._state_binder(argument.name)

    def _state_binder(self, name: str) -> Binder:
        spec = next(state for state in self.spec.states if state.name == name)
        decode = None
        if spec.key_type is not None:
            decode = decoder_for(spec.key_type, self.spec.format, f"key of {self.spec.name}")

        def bind(call: _Call) -> object:
            key = cast("bytes | None", call.record.key)
            if key is None:
                raise StateKeyError(
                    f"{self.spec.name} keeps state {name!r} by key, but the record has no key"
                )
            state: State[object] = State(
                call.task.states[name], key, key if decode is None else decode(key)
            )
            call.states.append(state)
            return state

        return bind

    def _open(self, record: ConsumerRecord, task: Task, attempt: int) -> _Call:
        context = Context(record, attempt, self.spec.name) if self._wants_context else None
        return _Call(record, task, context)

    def _plain_decoder(self) -> Decoder | None:
        """The decoder of a handler that takes the value and nothing else: the hot path."""
        arguments = self.spec.signature.arguments
        if len(arguments) != 1 or arguments[0].kind is not ArgumentKind.VALUE or self._named:
            return None
        return decoder_for(arguments[0].annotation, self.spec.format, f"value of {self.spec.name}")

    # One attempt ---------------------------------------------------------------------------

    def run(self, record: ConsumerRecord, task: Task, attempt: int = 1) -> None:
        """Process a record with a blocking handler; raises what the handler raises."""
        decode = self._decode_only
        if decode is not None:
            result = self._function(decode(record.value))  # type: ignore[arg-type]
            if type(result) in _PLAIN and (lane := self._lane) is not None:
                data = self._encode(result)
                key: bytes | None = record.key  # type: ignore[assignment]
                self._check_size(data, key)
                lane.add(data, key, record.timestamp_ms)
                if self._count_good:
                    self._meter.good(record.partition)
                return
            call = _Call(record, task, None)
            self._keep(call, self._encode_result(call, result))
            return
        call = self._open(record, task, attempt)
        try:
            result = self._invoke(call)
            encoded = self._encode_result(call, result)
        except BaseException:
            self._drop(call)
            raise
        self._keep(call, encoded)

    async def run_async(self, record: ConsumerRecord, task: Task, attempt: int = 1) -> None:
        """Process a record with any handler; raises what the handler raises."""
        call = self._open(record, task, attempt)
        try:
            result = self._invoke(call)
            if isinstance(result, Awaitable):
                result = await result
            if isinstance(result, AsyncIterator):
                result = [item async for item in result]
            encoded = self._encode_result(call, result)
        except asyncio.CancelledError as error:
            self._drop(call)
            worker = asyncio.current_task()
            if worker is None or worker.cancelling():
                raise
            # As an exception of the handler it follows the policy, like any other.
            raise HandlerCancelledError(
                f"{self.spec.name}: something that the handler awaited was cancelled"
            ) from error
        except BaseException:
            self._drop(call)
            raise
        self._keep(call, encoded)

    def _invoke(self, call: _Call) -> object:
        if self._named:
            named = {name: bind(call) for name, bind in self._named.items()}
            return self._function(*[bind(call) for bind in self._binders], **named)
        return self._function(*[bind(call) for bind in self._binders])

    @staticmethod
    def _drop(call: _Call) -> None:
        """The attempt failed: nothing of it stays, and its stray tasks are refused."""
        finish_states(call.states, keep=False)
        if call.context is not None:
            call.context._finish()

    def _encode_result(self, call: _Call, result: object) -> list[Encoded]:
        """Everything that the handler gave, as bytes; nothing is kept yet."""
        if call.context is None:
            if result is None:
                return []
            if type(result) in _PLAIN:
                return [self._encode_plain(call.record, result)]
        items: list[object]
        if result is None:
            items = []
        elif isinstance(result, list | Iterator):
            items = list(result)
        else:
            items = [result]
        encoded = [
            self._encode_output(call.record, item)
            if isinstance(item, Output)
            else self._encode_plain(call.record, item)
            for item in items
            if item is not None
        ]
        if call.context is not None:
            sent = call.context._finish()
            encoded[:0] = [self._encode_output(call.record, output) for output in sent]
        return encoded

    def _encode_plain(self, record: ConsumerRecord, value: object) -> Encoded:
        lane = self._lane
        if lane is None:
            raise DeclarationError(
                f"{self.spec.name} returned {type(value).__name__} but has no to= topic; "
                "declare one, or return Output(..., topic=...)"
            )
        data = self._encode(value)
        key = cast("bytes | None", record.key)
        self._check_size(data, key)
        return lane, data, key, None

    def _encode_output(self, record: ConsumerRecord, output: Output) -> Encoded:
        if output.topic is not None:
            check_topic_name(output.topic)
            lane: Lane | None = self._buffer.lane(output.topic)
        else:
            lane = self._lane
        if lane is None:
            raise DeclarationError(
                f"{self.spec.name} gave an Output without a topic and has no to= topic"
            )
        lane.check()
        _check_output(output)
        data = self._encode(output.value)
        if output.key is Inherit.KEY:
            key = cast("bytes | None", record.key)
        else:
            key = self._encode(output.key)
        self._check_size(data, key)
        return lane, data, key, output

    def _check_size(self, data: bytes | None, key: bytes | None) -> None:
        size = (len(data) if data else 0) + (len(key) if key else 0)
        if size > self._bytes_max:
            raise RecordTooLargeError(
                f"an output of {self.spec.name} has {size} bytes, the limit is {self._bytes_max}; "
                "raise max_request_size and the topic's max.message.bytes"
            )

    def _keep(self, call: _Call, encoded: list[Encoded]) -> None:
        """The record succeeded: its state writes and outputs count from here on."""
        record = call.record
        if call.states:
            finish_states(call.states, keep=True)
        for lane, value, key, output in encoded:
            if output is None:
                lane.add(value, key, record.timestamp_ms)
            else:
                timestamp_ms = output.timestamp_ms
                lane.add(
                    value,
                    key,
                    record.timestamp_ms if timestamp_ms is None else timestamp_ms,
                    output.headers,
                    output.partition,
                )
        if self._count_good:
            self._meter.good(record.partition)

    # After a failure -----------------------------------------------------------------------

    async def recover(
        self, record: ConsumerRecord, task: Task, error: Exception, wait: Wait
    ) -> bool:
        """Try a failed record again as often as declared, then follow the policy.

        Args:
            record: The record whose first attempt failed.
            task: Its task.
            error: What the first attempt raised.
            wait: Waits between attempts.

        Returns:
            True when the record is dealt with, False when ``wait`` told to leave it alone.

        Raises:
            ProcessingError: The policy is to stop, or dead letters exceed their limit.
        """
        retries = self.spec.retries
        attempt = 1
        while (
            attempt <= retries.count_max
            and isinstance(error, retries.only)
            and not isinstance(error, DeserializationError | StateKeyError | DeclarationError)
        ):
            logger.info(
                "%s: attempt %d at %s-%d@%d failed: %s",
                self.spec.name,
                attempt,
                record.topic,
                record.partition,
                record.offset,
                brief(error),
            )
            if not await wait(retries.delay_ms(attempt)):
                return False
            attempt += 1
            try:
                if self.is_async:
                    await self.run_async(record, task, attempt)
                else:
                    self.run(record, task, attempt)
            except Exception as again:  # noqa: BLE001 - any failure of a handler meets the policy
                error = again
            else:
                return True
        self.give_up(record, error, attempt)
        return True

    def give_up(self, record: ConsumerRecord, error: Exception, attempts: int) -> None:
        """Follow the policy for a record that failed for good.

        Raises:
            ProcessingError: The policy is to stop, or dead letters exceed their limit.
        """
        where = f"{record.topic}-{record.partition}@{record.offset}"
        coordinates = (record.topic, record.partition, record.offset, attempts)
        name, cause = self.spec.name, brief(error)
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        if self.spec.on_error is OnError.SKIP:
            line = f"{name}: skipped {where} after {tries}: {cause}"
            self._warnings.note(error, line)
            return
        if self.spec.on_error is OnError.STOP or self._dead_letters is None:
            raise ProcessingError(
                f"{name} failed at {where} after {tries}: {cause}. The record is "
                "not committed and comes again after a restart; to go on without it, declare "
                "dead_letter= or on_error=OnError.SKIP",
                *coordinates,
            ) from error
        exceeded = self._meter.bad(record.partition)
        if exceeded is not None:
            raise TooManyDeadLettersError(
                f"{name} stops at {where}: {exceeded}; the last failure: {cause}", *coordinates
            ) from error
        line = f"{name}: dead letter for {where} after {tries}: {cause}"
        self._warnings.note(error, line)
        self._dead_letters.add(
            cast("bytes | None", record.value),
            cast("bytes | None", record.key),
            record.timestamp_ms,
            dead_letter_headers(record, error, attempts, name),
        )
