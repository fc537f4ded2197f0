"""The pytest plugin ``onceflow``: brokers, topics, records and assertions for tests.

It is installed with the package, and imports and starts nothing before a test uses a fixture.
``in_process`` has the broker, ``committed`` compares records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from onceflow.broker_lite.testing.committed import KafkaRecords
    from onceflow.broker_lite.testing.in_process import Broker
    from onceflow.sdk import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, Producer

MARKER = "kafka_broker"
TOPIC_NAME_MAX = 200


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "kafka_broker(**options): arguments of onceflow.broker_lite.Broker for the broker of the "
        "test",
    )


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Explain the differences of committed records, line by line."""
    if op != "==":
        return None
    import sys

    committed = sys.modules.get("onceflow.broker_lite.testing.committed")
    if committed is None or not isinstance(left, committed.CommittedRecords):
        return None
    return committed.explain(left, right)  # type: ignore[no-any-return]


def _options(request: pytest.FixtureRequest) -> dict[str, Any]:
    options: dict[str, Any] = {}
    markers = list(request.node.iter_markers(MARKER))
    for marker in reversed(markers):  # the marker nearest to the test wins
        if marker.args:
            raise pytest.UsageError("kafka_broker takes options by name: nodes=3, profile='2.8'")
        options.update(marker.kwargs)
    _check_options(options)
    return options


def _check_options(options: dict[str, Any]) -> None:
    """Raise UsageError for an option that the broker does not have."""
    import difflib
    import inspect

    from onceflow.broker_lite.testing.in_process import Broker

    known = list(inspect.signature(Broker).parameters)
    for name in options:
        if name not in known:
            nearest = difflib.get_close_matches(name, known, n=1)
            remedy = f"did you mean {nearest[0]}?" if nearest else f"it has {', '.join(known)}"
            raise pytest.UsageError(f"kafka_broker has no option {name!r}: {remedy}")


@pytest.fixture
def kafka_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A broker in memory for one test, with the options of the marker ``kafka_broker``."""
    from onceflow.broker_lite.testing.in_process import Broker

    with Broker(**_options(request)) as broker:
        yield broker


@pytest.fixture(scope="session")
def shared_kafka_broker() -> Iterator[Broker]:
    """A broker in memory for the whole run; ``kafka_topic`` gives each test its own topics."""
    from onceflow.broker_lite.testing.in_process import Broker

    with Broker() as broker:
        yield broker


@pytest.fixture
def kafka(request: pytest.FixtureRequest) -> Broker:
    """The broker of this test: the shared one, or its own if the test has the marker
    ``kafka_broker`` or the fixture of that name."""
    own = "kafka_broker" in request.fixturenames or request.node.get_closest_marker(MARKER)
    name = "kafka_broker" if own else "shared_kafka_broker"
    broker: Broker = request.getfixturevalue(name)
    return broker


@pytest.fixture
def kafka_bootstrap_servers(kafka: Broker) -> str:
    """``HOST:PORT`` of the broker of this test."""
    return kafka.bootstrap_servers


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest, kafka: Broker) -> Callable[..., str]:
    """A function that makes topics: ``kafka_topic("orders", partitions=3)`` returns the name.

    The name consists of the test's name and the given one, so that tests on a shared broker do not
    meet, and logs show which test a topic belongs to.
    """
    prefix = re.sub(r"[^a-zA-Z0-9.-]+", "-", request.node.name).strip("-.")
    made: dict[str, int] = {}

    def make(name: str = "topic", *, partitions: int = 1, **configs: object) -> str:
        number = made[name] = made.get(name, 0) + 1
        suffix = name if number == 1 else f"{name}-{number}"
        topic = f"{prefix[: TOPIC_NAME_MAX - len(suffix)]}-{suffix}"
        taken = kafka.topic_names()
        if topic in taken:  # the same test ran before on this broker
            topic = f"{topic}-{len(taken)}"
        kafka.create_topic(
            topic,
            partitions=partitions,
            configs={key.replace("_", "."): str(value) for key, value in configs.items()},
        )
        return topic

    return make


@pytest.fixture
def kafka_records(kafka: Broker) -> Iterator[KafkaRecords]:
    """Sends and reads records: ``put(topic, b"v")``, ``committed(topic)``."""
    from onceflow.broker_lite.testing.committed import KafkaRecords

    with KafkaRecords(kafka) as records:
        yield records


@pytest.fixture
def kafka_producer(kafka: Broker) -> Iterator[Callable[..., Producer]]:
    """A function that makes producers for the broker of this test; they are closed after it."""
    from onceflow.sdk import Producer

    with ExitStack() as stack:

        def make(**config: Any) -> Producer:
            config.setdefault("bootstrap_servers", kafka.bootstrap_servers)
            return stack.enter_context(Producer(**config))

        yield make


@pytest.fixture
def kafka_admin(kafka: Broker) -> Iterator[Admin]:
    """An admin client of the broker of this test."""
    from onceflow.sdk import Admin

    with Admin(bootstrap_servers=kafka.bootstrap_servers) as admin:
        yield admin


def _complete(config: dict[str, Any], broker: Broker, topics: tuple[str, ...]) -> None:
    """Add defaults with which a consumer reads all existing records."""
    import uuid

    config.setdefault("bootstrap_servers", broker.bootstrap_servers)
    config.setdefault("auto_offset_reset", "earliest")
    if topics:  # a subscription needs a group
        config.setdefault("group_id", f"test-{uuid.uuid4()}")


@pytest.fixture
def kafka_consumer(kafka: Broker) -> Iterator[Callable[..., Consumer]]:
    """A function that makes consumers for the broker of this test; they are closed after it.

    By default each reads from the earliest offset, in a new group.
    """
    from onceflow.sdk import Consumer

    with ExitStack() as stack:

        def make(*topics: str, **config: Any) -> Consumer:
            _complete(config, kafka, topics)
            return stack.enter_context(Consumer(*topics, **config))

        yield make


class AsyncClients:
    """Makes clients for asyncio; use it in ``async with`` within the test.

    Args:
        broker: The broker of this test.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> AsyncClients:
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.aclose()

    async def producer(self, **config: Any) -> AsyncProducer:
        """Start a producer; it is closed at the end of the block."""
        from onceflow.sdk import AsyncProducer

        config.setdefault("bootstrap_servers", self._broker.bootstrap_servers)
        return await self._stack.enter_async_context(AsyncProducer(**config))

    async def admin(self, **config: Any) -> AsyncAdmin:
        """Start an admin client; it is closed at the end of the block."""
        from onceflow.sdk import AsyncAdmin

        config.setdefault("bootstrap_servers", self._broker.bootstrap_servers)
        return await self._stack.enter_async_context(AsyncAdmin(**config))

    async def consumer(self, *topics: str, **config: Any) -> AsyncConsumer:
        """Start a consumer, by default from the earliest offset and in a new group."""
        from onceflow.sdk import AsyncConsumer

        _complete(config, self._broker, topics)
        return await self._stack.enter_async_context(AsyncConsumer(*topics, **config))


@pytest.fixture
def kafka_async(kafka: Broker) -> AsyncClients:
    """Clients for asyncio: ``async with kafka_async: producer = await kafka_async.producer()``.

    The broker runs in its own thread, so that they work with any plugin for async tests.
    """
    return AsyncClients(kafka)
