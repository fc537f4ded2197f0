"""Goal: of several servers the first one that answers is enough, however many are dead or silent,
and the error that is raised when all fail is the one that tells what to do.

Method: attempts that wait for events of the test; the silence of a server is cut short by a small
patience, and no outcome depends on how long that is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from onceflow.sdk.aio.connection import racing
from onceflow.sdk.aio.connection.racing import first_answer
from onceflow.sdk.errors import (
    BrokerConnectionError,
    ConfigError,
    IllegalSaslStateError,
    KafkaError,
    RemoteProtocolError,
    RequestTimedOutError,
)

Attempt = Callable[[], Coroutine[object, object, str]]


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racing, "PATIENCE_MS", 1)


class Servers:
    """Attempts of every kind.

    Attributes:
        begun: Names of the attempts that have begun, in order.
        given_up: Names of those that were cancelled.
    """

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.given_up: list[str] = []
        self.first_began = asyncio.Event()

    def answers(self, name: str) -> Attempt:
        async def attempt() -> str:
            self.begun.append(name)
            return name

        return attempt

    def fails(self, error: KafkaError) -> Attempt:
        async def attempt() -> str:
            self.begun.append(type(error).__name__)
            raise error

        return attempt

    def silent(self, name: str) -> Attempt:
        async def attempt() -> str:
            self.begun.append(name)
            self.first_began.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.given_up.append(name)
                raise
            return name

        return attempt


async def test_the_first_answer_is_enough() -> None:
    servers = Servers()
    assert await first_answer([servers.answers("a"), servers.answers("b")]) == "a"
    assert servers.begun == ["a"]


async def test_a_server_that_fails_makes_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(racing, "PATIENCE_MS", 3_600_000)
    servers = Servers()
    dead = [servers.fails(BrokerConnectionError("dead")) for _ in range(3)]
    assert await first_answer([*dead, servers.answers("good")]) == "good"


async def test_silent_servers_are_given_up_once_another_one_answers() -> None:
    servers = Servers()
    attempts = [servers.silent("x"), servers.silent("y"), servers.answers("good")]
    assert await first_answer(attempts) == "good"
    await asyncio.sleep(0)
    assert servers.begun == ["x", "y", "good"]
    assert sorted(servers.given_up) == ["x", "y"]


async def test_an_answer_counts_however_late_it_comes() -> None:
    servers = Servers()
    others_failed = asyncio.Event()

    async def late() -> str:
        await others_failed.wait()
        return "late"

    async def last() -> str:
        others_failed.set()
        raise BrokerConnectionError("dead")

    assert await first_answer([late, servers.fails(RequestTimedOutError()), last]) == "late"


async def test_a_caller_that_gives_up_leaves_nothing_behind() -> None:
    servers = Servers()
    asking = asyncio.ensure_future(first_answer([servers.silent("x")]))
    await servers.first_began.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.sleep(0)
    assert servers.given_up == ["x"]
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize(
    ("failures", "told"),
    [
        ([BrokerConnectionError("a"), BrokerConnectionError("b")], BrokerConnectionError),
        ([RemoteProtocolError("web"), BrokerConnectionError("b")], BrokerConnectionError),
        ([RemoteProtocolError("web"), RemoteProtocolError("web")], RemoteProtocolError),
        ([IllegalSaslStateError("no"), BrokerConnectionError("b")], IllegalSaslStateError),
        ([BrokerConnectionError("b"), ConfigError("f", 1, "x")], ConfigError),
    ],
)
async def test_what_no_repetition_mends_is_told_first(
    failures: list[KafkaError], told: type[KafkaError]
) -> None:
    servers = Servers()
    with pytest.raises(told):
        await first_answer([servers.fails(error) for error in failures])
