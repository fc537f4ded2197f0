"""The console's web server: pages for a browser, and what they ask as JSON.

It changes nothing in the cluster, except that dead letters are replayed where that is switched on,
for requests that carry the token. It answers requests whose Host is loopback or a name that it was
told, so that a page of another site cannot reach it through a
name of its own (DNS rebinding). The pages load nothing from elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onceflow.console import questions
from onceflow.console.batches import BatchAdmin
from onceflow.console.history import History
from onceflow.console.messages import MESSAGES_MAX, read_page
from onceflow.console.schemas import Decode, decode_all
from onceflow.console.workers import Workers
from onceflow.sdk import TopicPartition
from onceflow.sdk.errors import (
    ClusterAuthorizationFailedError,
    ConfigError,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from onceflow.sdk.serde import to_json

STATIC: Final = Path(__file__).parent / "static"
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1", "[::1]")
HEADERS: Final = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]
DIGITS_MAX: Final = 19
"""Digits of the largest offset."""
PAGE_MESSAGES: Final = 100
"""Messages of a page that does not say how many."""

NOT_ALLOWED: Final = (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
Ask = Callable[[Request], Awaitable[object]]

_logger = logging.getLogger("onceflow.console")


class BadQueryError(ValueError):
    """A part of the address is not what it must be; the text names it and says what to write."""


@dataclass(frozen=True, slots=True)
class Writing:
    """What the console may change.

    Attributes:
        token: What requests must carry.
        replay: Replays the dead letters of a topic, or only counts them, in a thread.
    """

    token: str = field(repr=False)
    replay: Callable[[str, bool], list[dict[str, object]]]


class NotAllowedError(Exception):
    """The request may not change anything; the text says what is missing."""


def application(
    admin: BatchAdmin,
    *,
    names: Sequence[str] = (),
    sample_ms: int = 5_000,
    workers: Workers | None = None,
    decode: Decode | None = None,
    writing: Writing | None = None,
) -> ASGIApp:
    """Make the console's application.

    Args:
        admin: A client of the cluster that is not started yet.
        names: How requests may call this machine, beside loopback.
        sample_ms: How often the lag of all groups and the end of all topics are asked.
        workers: Workers of processors, whose pages are shown.
        decode: Reads keys and values with schemas of a registry.
        writing: What may be changed; None for nothing.
    """
    console = _Console(admin, sample_ms, workers or Workers(()), decode, writing)
    asks: dict[str, Ask] = {
        "/api/overview": lambda _: questions.overview(admin),
        "/api/topics": console.topics,
        "/api/topics/{topic}": lambda request: questions.topic(admin, request.path_params["topic"]),
        "/api/topics/{topic}/messages": console.messages,
        "/api/groups": lambda _: questions.groups(admin),
        "/api/groups/{group:path}": console.group,
        "/api/transactions": lambda _: questions.transactions(admin),
        "/api/processors": console.processors,
        "/api/writing": console.writing,
    }
    routes = [Route(path, _answered(ask)) for path, ask in asks.items()]
    replay = _answered(console.replay)
    routes.append(Route("/api/topics/{topic}/replay", replay, methods=["POST"]))
    hosts = [*LOOPBACK, *names]
    return Starlette(
        routes=[*routes, Mount("/", StaticFiles(directory=STATIC, html=True))],
        middleware=[
            Middleware(_Headers),
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
        ],
        lifespan=console.lifespan,
    )


class _Console:
    def __init__(
        self,
        admin: BatchAdmin,
        sample_ms: int,
        workers: Workers,
        decode: Decode | None,
        writing: Writing | None,
    ) -> None:
        self._admin = admin
        self._workers = workers
        self._decode = decode
        self._writing = writing
        self._sample_ms = sample_ms
        self._lags = History()
        self._ends = History()

    @contextlib.asynccontextmanager
    async def lifespan(self, _: Starlette) -> AsyncIterator[None]:
        """Run the client and the sampling of lags as long as the server runs."""
        async with self._admin:
            sampling = asyncio.create_task(self._sample())
            try:
                yield
            finally:
                sampling.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sampling

    async def topics(self, _: Request) -> object:
        """All topics with their throughput."""
        rows = await questions.topics(self._admin)
        return [row | {"offsets_a_second": self._ends.rate(str(row["topic"]))} for row in rows]

    async def messages(self, request: Request) -> object:
        """A page of messages of one partition."""
        query = request.query_params
        partition = TopicPartition(
            request.path_params["topic"], _whole("partition", query.get("partition", "0"))
        )
        limit = _whole("limit", query.get("limit", str(PAGE_MESSAGES)), least=1, most=MESSAGES_MAX)
        offset = await self._offset(partition, query.get("from", "latest"), limit)
        page = await read_page(self._admin, partition, offset, limit)
        if self._decode is not None:
            await asyncio.to_thread(decode_all, page.messages, partition.topic, self._decode)
        return page._asdict()

    async def processors(self, _: Request) -> object:
        """What the workers do."""
        return await self._workers.ask(int(time.time() * 1000))

    async def writing(self, _: Request) -> object:
        """Whether anything may be changed."""
        return {"replay": self._writing is not None}

    async def replay(self, request: Request) -> object:
        """Replay the dead letters of a topic; with ``dry_run=1`` count them."""
        if self._writing is None:
            raise NotAllowedError("the console was started without --write")
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not secrets.compare_digest(given.encode(), self._writing.token.encode()):
            raise NotAllowedError("this needs the token that the console printed at its start")
        topic, dry_run = request.path_params["topic"], request.query_params.get("dry_run") == "1"
        rows = await asyncio.to_thread(self._writing.replay, topic, dry_run)
        return {"dry_run": dry_run, "sent": rows}

    async def group(self, request: Request) -> object:
        """One group with the history of its lag."""
        name = request.path_params["group"]
        return await questions.group(self._admin, name) | {"history": self._lags.of(name)}

    async def _offset(self, partition: TopicPartition, word: str, limit: int) -> int:
        """Where a page begins: an offset, a time as ``@milliseconds``, "earliest" or "latest"."""
        ends = await self._admin.list_offsets({partition: "earliest"})
        start = ends[partition].offset
        if word == "earliest":
            return start
        ends = await self._admin.list_offsets({partition: "latest"})
        end = ends[partition].offset
        if word == "latest":
            return max(start, end - limit)
        if word.startswith("@"):
            time_ms = _whole("from", word[1:])
            found = (await self._admin.list_offsets({partition: time_ms}))[partition].offset
            return end if found < 0 else found
        return min(end, max(start, _whole("from", word)))

    async def _sample(self) -> None:
        """Ask the lag of all groups and the end of all topics again and again."""
        while True:
            try:
                names = [each.group_id for each in await self._admin.list_groups()]
                lags = await questions.group_lags(self._admin, names)
                ends = await questions.topic_ends(self._admin)
            except Exception as error:  # noqa: BLE001 - the next sample may succeed
                _logger.warning("lag and throughput could not be asked: %s", error)
            else:
                now_ms = int(time.time() * 1000)
                sums = {
                    name: sum(lag for lag in found.values() if lag is not None)
                    for name, found in lags.items()
                    if found
                }
                self._lags.add(now_ms, sums)
                self._ends.add(now_ms, ends)
            await asyncio.sleep(self._sample_ms / 1000)


def _answered(ask: Ask) -> Callable[[Request], Awaitable[Response]]:
    """Answer with JSON; errors name what is wrong, with the status that fits."""

    async def answer(request: Request) -> Response:
        try:
            return _json(await ask(request))
        except (BadQueryError, ConfigError) as error:
            return _json({"error": str(error)}, 400)
        except NotAllowedError as error:
            return _json({"error": str(error)}, 403)
        except UnknownTopicOrPartitionError as error:
            return _json({"error": str(error)}, 404)
        except NOT_ALLOWED as error:
            return _json({"error": str(error)}, 403)
        except KafkaError as error:
            return _json({"error": f"{type(error).__name__}: {error}"}, 502)

    return answer


def _json(value: object, status: int = 200) -> Response:
    return Response(to_json(value), status, media_type="application/json")


def _whole(name: str, text: str, *, least: int = 0, most: int = 2**63 - 1) -> int:
    is_number = text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX
    if not (is_number and least <= int(text) <= most):
        raise BadQueryError(f"{name}={text[:40]!r}: must be a whole number from {least} to {most}")
    return int(text)


class _Headers:
    """Puts the headers that keep other sites away on each answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        await self._app(scope, receive, with_headers)
