"""The client of queries: asks the worker that owns a state, over HTTP.

It knows the addresses of some workers; from there on answers tell which worker owns what.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Sequence
from typing import Final, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from onceflow.processors.errors import (
    NotOwnerError,
    QueryError,
    StateNotReadyError,
    StateTypeError,
    UnknownStateError,
)
from onceflow.processors.models import from_msgpack
from onceflow.processors.queries import Query
from onceflow.processors.values import Format, encoder_for
from onceflow.processors.windows import WindowValue
from onceflow.sdk import murmur2_partition
from onceflow.sdk.errors import ConfigError

V = TypeVar("V")

PAUSE_S: Final = 0.1
"""Wait before a query is repeated, while the group is rebalancing or a worker is away."""
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
MSGPACK: Final = "application/msgpack"


class Reply(msgspec.Struct, omit_defaults=True):
    """An answer on the wire, as MessagePack.

    Attributes:
        found: Whether there is a value.
        value: The value, as MessagePack.
        partition: Where it is.
        partitions: How many there are; 0 in an error that comes before that is known.
        error: Name of the error, or empty.
        message: What the error says.
        owner: Which worker has it.
    """

    found: bool = False
    value: msgspec.Raw = msgspec.Raw(b"\xc0")
    partition: int = 0
    partitions: int = 0
    error: str = ""
    message: str = ""
    owner: str = ""


class StateClient:
    """Reads committed state of a running application; may be shared by threads.

    ::

        client = StateClient(["10.0.0.1:7070", "10.0.0.2:7070"])
        seen = client.get("count.seen", "bob", int)

    Args:
        servers: Addresses of workers, ``host:port``, as of ``--query-port``. One that answers is
            enough.
        timeout_ms: Longest time of a query, with all that it is repeated for.

    Raises:
        ConfigError: No address, or one without a port.
    """

    def __init__(self, servers: Sequence[str], timeout_ms: int = 10_000) -> None:
        if isinstance(servers, str) or not servers:
            raise ConfigError("servers", servers, "must be a list of addresses, host:port")
        for server in servers:
            _address(server)
        self._seeds = list(servers)
        self._timeout_s = timeout_ms / 1000
        self._partitions: dict[str, int] = {}
        self._owners: dict[tuple[str, int], str] = {}
        self._encode = encoder_for(Format.JSON)

    def get(
        self, state: str, key: object, kind: type[V], *, partition: int | None = None
    ) -> V | None:
        """Return the committed value of a key, or None.

        Args:
            state: The state, as ``function.state``.
            key: Key of the records: bytes and text as they are, other values as JSON.
            kind: Type of the value; ``dict[K, V]`` of a ``MapState``, ``list[V]`` of a
                ``ListState``.
            partition: Where records of the key are, if their producer does not use Kafka's default
                partitioner.

        Raises:
            UnknownStateError: The application has no such state.
            StateTypeError: The value does not have the type.
            StateNotReadyError: No worker answered in time: the group is rebalancing, the state is
                being restored, or workers are away.
            QueryError: The query cannot be answered.
        """
        return self._decoded(state, key, kind, self._ask(Query(state, self._key(key), partition)))

    def windows(
        self,
        state: str,
        key: object,
        kind: type[V],
        *,
        from_ms: int = 0,
        to_ms: int | None = None,
        partition: int | None = None,
    ) -> list[WindowValue[V]]:
        """Return the open windows of a key in a range of time, the earliest first.

        A window that has closed is gone: its result is in the function's output.

        Args:
            state: The windows, as ``function.windows``.
            key: As of ``get``.
            kind: Type of the function's results.
            from_ms: Earliest start of a window; of a session, earliest end.
            to_ms: Latest start, included; None for any.
            partition: As of ``get``.

        Raises:
            QueryError: The state has no windows, or the times cannot be used.
            UnknownStateError: The application has no such state.
            StateTypeError: The values do not have the type.
            StateNotReadyError: As of ``get``.
        """
        reply = self._ask(Query(state, self._key(key), partition, from_ms, to_ms))
        several = list[WindowValue[kind]]  # type: ignore[valid-type]
        return self._decoded(state, key, several, reply) or []

    def _key(self, key: object) -> bytes:
        encoded = self._encode(key)
        if encoded is None:
            raise QueryError("key=None: state belongs to a key")
        return encoded

    def _decoded(self, state: str, key: object, kind: type[V], reply: Reply) -> V | None:
        if not reply.found:
            return None
        try:
            decoder = msgspec.msgpack.Decoder(kind, dec_hook=from_msgpack)
            return decoder.decode(reply.value)
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            raise StateTypeError(f"{state}, key {key!r}: {error}; give the state's type") from error

    def _ask(self, query: Query) -> Reply:
        state, key, partition, *_ = query
        until_s = time.monotonic() + self._timeout_s
        tried = 0
        last = ""
        while True:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                raise StateNotReadyError(
                    f"{state}: no answer within {self._timeout_s:g} s; the last one: {last}"
                )
            place = self._place(state, key, partition)
            server = self._owners.get((state, place)) if place is not None else None
            server = server or self._seeds[tried % len(self._seeds)]
            tried += 1
            try:
                reply = _request(server, query, left_s)
            except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
                last = f"{server}: {error}"
                self._owners = {at: name for at, name in self._owners.items() if name != server}
                time.sleep(min(PAUSE_S, left_s))
                continue
            if reply.partitions:
                self._partitions[state] = reply.partitions
            if not reply.error:
                self._owners[state, reply.partition] = server
                return reply
            last = f"{server}: {reply.message}"
            if reply.error == NotOwnerError.__name__:
                known = self._owners.pop((state, reply.partition), None)
                if reply.owner and reply.owner not in (server, known):
                    self._owners[state, reply.partition] = reply.owner
                    continue
            elif reply.error != StateNotReadyError.__name__:
                raise _ERRORS.get(reply.error, QueryError)(reply.message)
            time.sleep(min(PAUSE_S, left_s))

    def _place(self, state: str, key: bytes, partition: int | None) -> int | None:
        count = self._partitions.get(state)
        if partition is not None or count is None:
            return partition
        return murmur2_partition(key, count)


_ERRORS: Final = {each.__name__: each for each in (QueryError, StateTypeError, UnknownStateError)}


def _address(server: str) -> tuple[str, int]:
    host, colon, port = server.rpartition(":")
    if not (colon and host and port.isdigit()):
        raise ConfigError("servers", server, "must be host:port, such as 127.0.0.1:7070")
    return host.strip("[]"), int(port)


def _request(server: str, query: Query, timeout_s: float) -> Reply:
    """Ask one worker once."""
    host, port = _address(server)
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    where = {
        name: str(number)
        for name in ("partition", "from_ms", "to_ms")
        if (number := getattr(query, name)) is not None
    }
    # A worker that is busy says so before this side gives up.
    limit_ms = str(int(timeout_s * 900))
    asked = urlencode({"key_hex": query.key.hex(), "timeout_ms": limit_ms, **where})
    path = f"/state/{quote(query.state)}?{asked}"
    try:
        connection.request("GET", path, headers={"Accept": MSGPACK})
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX + 1)
    finally:
        connection.close()
    if len(body) > ANSWER_BYTES_MAX:
        raise QueryError(f"{query.state}: the answer has more than {ANSWER_BYTES_MAX} bytes")
    return msgspec.msgpack.decode(body, type=Reply)
