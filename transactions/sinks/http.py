"""A sink that sends each row to an HTTP server under an idempotency key.

A server has no transaction to share, so exactly-once needs two parts: the server does the work of a
key once (draft-ietf-httpapi-idempotency-key-header), and another sink stores the offsets. The sink
sends the rows, then stores the offsets. If the process dies in between, the next owner sends the
same rows under the same keys: a key is made of group, topic, partition, offset and the row's number
within its record. So the program must make the same rows of a record each time.

Needs urllib3 (``pip install 'onceflow[http]'``).
"""

from __future__ import annotations

import copy
import time
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeAlias
from urllib.parse import urlsplit

import tenacity

from onceflow.sdk.errors import ConfigError, IllegalStateError, SerializationError
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.serde import to_json
from onceflow.transactions.sinks import ledger
from onceflow.transactions.sinks.errors import (
    SinkOutcomeUnknownError,
    SinkRowError,
    SinkUnavailableError,
)
from onceflow.transactions.sinks.ledger import NO_IDS, Batch, Entries
from onceflow.transactions.sinks.sink import CopiedSink, Observer, Sink, Steps

try:
    import urllib3
except ImportError as _missing:
    raise ImportError("urllib3 is missing: pip install 'onceflow[http]'") from _missing

Sent: TypeAlias = tuple[str, bytes]
"""Key and body of a request."""

_NAMESPACE = uuid.UUID("5f3e1c52-7f0b-5d0c-9a5d-2b7a0f0e6d11")
# Repeat after Request Timeout, Conflict (a request with this key is under way), Too Early, Too Many
# Requests, and failures of the server or of a gateway.
_AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
# Bad Request, Gone, Payload Too Large, Unsupported Media Type, Unprocessable Content
_ROW = frozenset({400, 410, 413, 415, 422})
_LONGEST_WAIT_S = 5.0


class _AgainError(Exception):
    """The same request may succeed later.

    Attributes:
        wait_s: Seconds to wait, as the server asked; 0 if it did not.
    """

    wait_s = 0.0


class Http:
    """Sends rows as requests with a JSON body and an idempotency key.

    The server must answer a repeated key without doing the work again. Pass the record of each row
    to ``write`` (``session.write(row, of=record)``). Rows of one input partition are sent in order,
    one after the other; with several connections, partitions are sent at the same time.

    Args:
        url: Address of the requests.
        offsets: The sink that stores the offsets, such as ``Sqlite("offsets.db")``; it gets no
            rows.
        method: Method of the requests.
        headers: Further headers, such as ``Authorization``.
        key_header: Header that carries the key, a UUID.
        connections: How many requests may be under way at once.
        timeout_ms: Limit of each write: of all its requests together, with repetitions.
        observer: Called at each step, for tests.

    Raises:
        ConfigError: The URL is not an HTTP address, or a number is not positive.
    """

    def __init__(
        self,
        url: str,
        offsets: Sink,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        key_header: str = "Idempotency-Key",
        connections: int = 4,
        timeout_ms: int = 30_000,
        observer: Observer | None = None,
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("url", url, "must be an address such as https://host/path")
        if parts.username is not None:
            remedy = "must hold no user name: give headers={'Authorization': ...}"
            raise ConfigError("url", parts.hostname, remedy)
        for name, value in (("connections", connections), ("timeout_ms", timeout_ms)):
            if value <= 0:
                raise ConfigError(name, value, "must be positive")
        self.needs_records: bool = True
        self.keeps_letters: bool = bool(getattr(offsets, "keeps_letters", False))
        self._url = url
        self._place = f"{parts.scheme}://{parts.netloc}{parts.path}"
        self._offsets = offsets
        self._method = method
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        self._key_header = key_header
        self._connections = connections
        self._timeout_ms = timeout_ms
        self._steps = Steps(observer)
        self._group_id = ""
        self._pool: urllib3.PoolManager | None = None

    needs_table: bool = False

    def copy(self, table: str | None = None) -> Self:
        """Return an unopened sink like this one.

        Args:
            table: Not used: a server is no table.
        """
        made = copy.copy(self)
        made._pool = None
        if isinstance(self._offsets, CopiedSink):
            made._offsets = self._offsets.copy()
        return made

    def open(self, group_id: str) -> None:
        """See ``Sink.open``."""
        self._group_id = group_id
        self._offsets.open(group_id)
        self._pool = urllib3.PoolManager(maxsize=self._connections, retries=False)

    def claim(
        self,
        partitions: Sequence[TopicPartition],
        owner: str,
        topic_ids: Mapping[str, str] = NO_IDS,
    ) -> Entries:
        """See ``Sink.claim``."""
        return self._offsets.claim(partitions, owner, topic_ids)

    def stored(self, partitions: Sequence[TopicPartition]) -> Entries:
        """See ``Sink.stored``."""
        return self._offsets.stored(partitions)

    def write(self, batch: Batch, timeout_ms: int | None = None) -> None:
        """See ``Sink.write``.

        After an error some rows may have been sent; by their keys, sending them again does no harm.
        """
        limit_ms = self._timeout_ms if timeout_ms is None else min(timeout_ms, self._timeout_ms)
        end = time.monotonic() + limit_ms / 1000
        with self._steps("offsets read"):
            # A replaced owner sends nothing. If it is replaced after this check, the keys protect
            # the server, and the offsets are checked again when they are stored.
            found = self._offsets.stored(list(batch.moves))
            ledger.advance(found, batch)
            queues = self._requests(batch, found)
        with self._steps("rows"):
            self._send(queues, end)
        left_ms = max(1, int((end - time.monotonic()) * 1000))
        try:
            with self._steps("commit"):
                self._offsets.write(Batch(batch.owner, batch.moves, letters=batch.letters), left_ms)
        except OSError as error:
            raise SinkOutcomeUnknownError(f"{self._place}: offsets: {error}") from error

    def _requests(self, batch: Batch, found: Entries) -> list[list[Sent]]:
        """Return the requests of each input partition, in order.

        Raises:
            SinkRowError: A row cannot be written as JSON, or its record was not given.
        """
        queues: dict[TopicPartition, list[Sent]] = defaultdict(list)
        counts: dict[tuple[TopicPartition, int], int] = defaultdict(int)
        records = batch.records or [None] * len(batch.rows)
        for row, record in zip(batch.rows, records, strict=True):
            if record is None:
                raise SinkRowError(
                    "a row without its record has no idempotency key; call write(row, of=record)"
                )
            partition = TopicPartition(record.topic, record.partition)
            number = counts[partition, record.offset]
            counts[partition, record.offset] += 1
            topic = found[partition].topic_id if partition in found else ""
            name = [self._group_id, topic or record.topic, partition.partition, record.offset]
            key = uuid.uuid5(_NAMESPACE, to_json([*name, number]).decode())
            try:
                queues[partition].append((str(key), to_json(row)))
            except SerializationError as error:
                raise SinkRowError(
                    f"{partition} offset {record.offset}: row {row!r:.200} {error}; nothing was "
                    "sent"
                ) from error
        return list(queues.values())

    def _send(self, queues: Sequence[Sequence[Sent]], end: float) -> None:
        if self._connections == 1 or len(queues) == 1:
            for queue in queues:
                self._send_in_order(queue, end)
            return
        with ThreadPoolExecutor(self._connections, "onceflow-http") as threads:
            running = [threads.submit(self._send_in_order, queue, end) for queue in queues]
        for each in running:
            each.result()

    def _send_in_order(self, queue: Sequence[Sent], end: float) -> None:
        for key, body in queue:
            again = tenacity.Retrying(
                retry=tenacity.retry_if_exception_type(_AgainError),
                wait=_wait,
                stop=lambda state: time.monotonic() + _wait(state) >= end,
                reraise=True,
            )
            try:
                again(self._request, key, body, end)
            except _AgainError as error:
                raise SinkUnavailableError(
                    f"{self._place}: {error}, until the time was over; the offsets did not move. "
                    f"Rows are sent again under the same keys; raise timeout_ms "
                    f"({self._timeout_ms}) or commit fewer rows at once"
                ) from error

    def _request(self, key: str, body: bytes, end: float) -> None:
        """Send one request.

        Raises:
            _AgainError: No answer, or one that may change later.
            SinkRowError: The server refuses this row.
            ConfigError: The server refuses every row.
            IllegalStateError: The sink is not open.
        """
        if self._pool is None:
            raise IllegalStateError("the HTTP sink is not open; call open() first")
        timeout = urllib3.Timeout(total=max(0.001, end - time.monotonic()))
        headers = {**self._headers, self._key_header: key}
        try:
            answer = self._pool.request(
                self._method, self._url, body=body, headers=headers, timeout=timeout, redirect=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise _AgainError(f"no answer: {error}") from error
        if 200 <= answer.status < 300:
            return
        told = f"answered {answer.status}: {answer.data[:200].decode('utf-8', 'replace')}"
        if answer.status in _AGAIN:
            again = _AgainError(told)
            wait = answer.headers.get("Retry-After", "")
            again.wait_s = float(wait) if wait.isdecimal() else 0.0
            raise again
        if answer.status in _ROW:
            row = body[:200].decode("utf-8", "replace")  # The cut may divide a character.
            raise SinkRowError(f"{self._place} {told}; row {row}; correct the row")
        raise ConfigError("url", self._place, f"{told}; correct address, method or headers")

    def close(self) -> None:
        """See ``Sink.close``."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.clear()
        self._offsets.close()


def _wait(state: tenacity.RetryCallState) -> float:
    """Return the seconds to wait: as the server asks, or doubling from 0.1."""
    assert state.outcome is not None
    error = state.outcome.exception()
    asked_s = error.wait_s if isinstance(error, _AgainError) else 0.0
    doubled_s = 0.05 * 2.0 ** min(state.attempt_number, 10)
    return float(min(max(asked_s, doubled_s), _LONGEST_WAIT_S))
