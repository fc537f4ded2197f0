"""Goal: whatever a token provider does, connections fail for a while and nothing hangs or piles up.

Method: `Authenticator` with providers that raise, hang or are slow, under a limit of a few
milliseconds; what hangs is released by the test, never by time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from onceflow.sdk import SecurityConfig
from onceflow.sdk.aio.connection.authentication import Authenticator
from onceflow.sdk.core.flow import Send
from onceflow.sdk.errors import BrokerConnectionError
from onceflow.sdk.settings.config import ClientConfig


def authenticator(provider: Callable[[], object], limit_ms: int = 10_000) -> Authenticator:
    security = SecurityConfig(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=provider,  # type: ignore[arg-type]
    )
    return Authenticator(ClientConfig(request_timeout_ms=limit_ms, security=security))


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds blocking providers; open at the end, so that no thread stays."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize(
    "raised", [asyncio.CancelledError, StopIteration, TimeoutError, SystemExit, RuntimeError]
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_whatever_a_provider_raises_is_a_connection_that_failed(
    raised: type[BaseException], is_async: bool
) -> None:
    def plain() -> str:
        raise raised("hunter2")

    async def awaited() -> str:
        raise raised("hunter2")

    with pytest.raises(BrokerConnectionError, match="sasl_oauth_token_provider failed") as caught:
        await authenticator(awaited if is_async else plain).begin()
    assert "hunter2" not in str(caught.value)


async def test_a_hanging_thread_is_told_and_not_joined_by_others(gate: threading.Event) -> None:
    calls: list[str] = []

    def hangs() -> str:
        calls.append(threading.current_thread().name)
        gate.wait()
        return "token"

    auth = authenticator(hangs, limit_ms=5)
    for _ in range(5):
        with pytest.raises(BrokerConnectionError, match="not returned within 5 ms"):
            await auth.begin()
    assert len(calls) == 1  # one thread, however often it is tried
    gate.set()
    while True:  # its answer is used once it is there
        try:
            flow = await auth.begin()
        except BrokerConnectionError:
            continue
        break
    assert isinstance(next(flow), Send)
    assert len(calls) == 1
    await auth.close()


async def test_a_hanging_coroutine_is_cancelled_and_called_again() -> None:
    ended: list[str] = []

    async def hangs_once() -> str:
        if not ended:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")
        return "token"

    auth = authenticator(hangs_once, limit_ms=5)
    with pytest.raises(BrokerConnectionError, match="not returned"):
        await auth.begin()
    assert isinstance(next(await auth.begin()), Send)
    assert ended == ["cancelled"]


async def test_connections_at_the_same_time_share_a_call_and_one_that_gives_up_takes_it_from_nobody(
    gate: threading.Event,
) -> None:
    loop, called, calls = asyncio.get_running_loop(), asyncio.Event(), [0]

    def slow() -> str:
        calls[0] += 1
        loop.call_soon_threadsafe(called.set)
        gate.wait()
        return "token"

    auth = authenticator(slow)
    waiting = [asyncio.create_task(auth.begin()) for _ in range(3)]
    await called.wait()
    waiting[0].cancel()
    gate.set()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert [isinstance(next(flow), Send) for flow in results[1:]] == [True, True]  # type: ignore[call-overload]
    assert calls == [1]


async def test_closing_leaves_no_task_of_a_provider_that_hangs() -> None:
    before = asyncio.all_tasks()

    called = asyncio.Event()

    async def hangs() -> str:
        called.set()
        await asyncio.Event().wait()
        return "token"

    auth = authenticator(hangs)
    waiting = asyncio.create_task(auth.begin())
    await called.wait()
    await auth.close()
    with pytest.raises(BrokerConnectionError):
        await waiting
    assert asyncio.all_tasks() == before
