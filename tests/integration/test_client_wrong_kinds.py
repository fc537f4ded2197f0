"""Goal: what is given to a call of a producer or consumer is taken or refused by name: never
a ``TypeError`` of a line deep inside, never without end, and never nothing.

Method: each argument of each public call gets values of every kind, the others what belongs there,
on clients of a broker in this process. What fits the declared type may do anything that is typed;
anything else must be refused with the argument's name. (Admin clients: ``test_wrong_kinds.py``.)
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from wrong_kinds import PART, arguments_of, fits, zoo

from onceflow.broker_lite import Broker
from onceflow.sdk import (
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    ConsumerGroupMetadata,
    EncodedBatch,
    Producer,
)
from onceflow.sdk.errors import ConfigError, InvalidTopicError, KafkaError, SerializationError
from onceflow.sdk.protocol.records import encode_batch

KINDS = (AsyncProducer, Producer, AsyncConsumer, Consumer)
RIGHT: dict[str, object] = {
    "batch": EncodedBatch(0, 1, bytes(encode_batch([(1, None, b"v", [])]))),
    "group_metadata": ConsumerGroupMetadata("g"),
    "key": b"k",
    "offset": 5,
    "offsets": {PART: 1},
    "partition": PART,
    "partitions": [PART],
    "timestamps_ms": {PART: 5},
    "topic": "t",
    "values": [b"x"],
}
"""What belongs in arguments that must be given."""

COLUMNS: dict[str, object] = {
    "topic": str,
    "values": Sequence[object],
    "keys": Sequence[object] | None,
    "partition": int | None,
    "timestamps_ms": Sequence[int] | int | None,
    "headers": Sequence[Sequence[tuple[str, bytes | None]]] | None,
}
"""What ``send_many`` takes, without the columns of other libraries."""

ALSO: dict[str, tuple[object, ...]] = {
    "headers": (None, {"text": None}, {"text": b"bytes"}, [None], [{}]),
    "partition": ([None],),
}
"""What is taken although the declared type does not say so."""

REFUSALS = (ConfigError, SerializationError, InvalidTopicError)
_numbers = itertools.count()


def public_calls() -> Iterator[tuple[type, str]]:
    for kind in KINDS:
        for name, call in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_") and len(inspect.signature(call).parameters) > 1:
                yield kind, name


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        running.create_topic("t")
        yield running


def is_transactional(call: str) -> bool:
    return "transaction" in call or call == "note_partitions"


async def finished(result: object) -> object:
    if inspect.isawaitable(result):
        return await asyncio.wait_for(result, 20)
    return result


async def ready(kind: type, call: str, broker: Broker) -> Any:
    """A client that is where the call belongs."""
    settings: dict[str, object] = {"bootstrap_servers": broker.bootstrap_servers}
    is_consumer = kind in (Consumer, AsyncConsumer)
    if is_consumer:
        settings |= {"group_id": f"g{next(_numbers)}", "default_api_timeout_ms": 20_000}
    else:
        settings |= {
            "max_block_ms": 20_000,
            "request_timeout_ms": 20_000,
            "delivery_timeout_ms": 40_000,
        }
        if is_transactional(call):
            settings["transactional_id"] = f"x{next(_numbers)}"
    client: Any = kind(**settings)
    if kind.__name__.startswith("Async"):
        await client.start()
    if is_consumer and call != "subscribe":
        client.assign([PART])
    await within(client, call)
    return client


async def within(client: Any, call: str) -> None:
    """Begin a transaction where the call needs one."""
    if is_transactional(call) and call not in ("begin_transaction", "init_transactions"):
        await finished(client.begin_transaction())


@pytest.mark.parametrize(("kind", "call"), list(public_calls()))
async def test_an_argument_is_taken_or_refused_by_name(
    broker: Broker, kind: type, call: str
) -> None:
    method: Callable[..., object] = getattr(kind, call)
    hints = COLUMNS if call == "send_many" else arguments_of(method)
    needed = {
        name: RIGHT[name]
        for name, parameter in inspect.signature(method).parameters.items()
        if name != "self" and parameter.default is inspect.Parameter.empty
    }
    if call == "send_many":
        needed |= {"keys": None}
    wrong = []
    client = await ready(kind, call, broker)
    for argument, hint in hints.items():
        for name, value in zoo().items():
            right = fits(value, hint) or any(value == each for each in ALSO.get(argument, ()))
            try:
                await finished(getattr(client, call)(**(needed | {argument: value})))
                outcome: object = "nothing"
            except Exception as error:  # noqa: BLE001 - it is what the test looks at
                outcome = error
            well = right and (outcome == "nothing" or isinstance(outcome, KafkaError))
            if not right:
                well = isinstance(outcome, REFUSALS) and _stem(argument) in str(outcome)
            if not well:
                wrong.append(f"{argument}={name}: {type(outcome).__name__} {outcome}")
            if call in ("close", "stop") and right:
                client = await ready(kind, call, broker)
            elif call in ("commit_transaction", "abort_transaction") and outcome == "nothing":
                await within(client, call)
    await _end(client)
    assert wrong == [], "\n".join(wrong)


def _stem(argument: str) -> str:
    return argument.removesuffix("s_ms").removesuffix("s")


async def _end(client: Any) -> None:
    try:
        await finished(client.close(2_000))
    except KafkaError:
        return  # A record that was refused by the broker, and not looked at.
