"""A raw client for tests of the broker: one socket, requests by class, answers in order.

It negotiates nothing and retries nothing, so that a test sees exactly what the broker sent.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from onceflow.broker_lite import Broker
from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.batch_header import iter_batch_headers
from onceflow.sdk.protocol.frame import FrameSplitter, decode_response_header, encode_request
from onceflow.sdk.protocol.records import decode_batch, encode_batch
from onceflow.sdk.protocol.schema import Request, Response

ResponseT = TypeVar("ResponseT", bound=Response)

DEADLINE_SECONDS = 60.0
CONTROL_BIT = 0x20


class Wire:
    """One connection to a broker."""

    def __init__(self, broker: Broker | tuple[str, int]) -> None:
        if isinstance(broker, Broker):
            host, _, port = broker.bootstrap_servers.rpartition(":")
            self._address = (host.strip("[]"), int(port))
        else:
            self._address = broker
        self._splitter = FrameSplitter(2**31 - 1)
        self._frames: list[bytes | memoryview] = []
        self._sent: list[tuple[type[Request], int, int]] = []
        self._last_correlation_id = 0

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection(*self._address)
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def send(self, request: Request, api_version: int, client_id: str | None = "test") -> None:
        """Send a request; its answer is to be taken with `receive`, in order."""
        self._last_correlation_id += 1
        self._sent.append((type(request), api_version, self._last_correlation_id))
        self.writer.writelines(
            encode_request(
                request,
                api_version=api_version,
                correlation_id=self._last_correlation_id,
                client_id=client_id,
            )
        )

    def send_bytes(self, data: bytes) -> None:
        """Send anything."""
        self.writer.write(data)

    async def receive_frame(self) -> bytes:
        """The next frame, whole."""
        while not self._frames:
            data = await asyncio.wait_for(self.reader.read(65_536), DEADLINE_SECONDS)
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            self._frames.extend(self._splitter.feed(data))
        return bytes(self._frames.pop(0))

    async def receive(self) -> Response:
        """The answer to the oldest request without one; checks its id and that nothing is left."""
        request_type, api_version, correlation_id = self._sent.pop(0)
        frame = await self.receive_frame()
        answered, end = decode_response_header(frame, request_type.api_key, api_version)
        assert answered == correlation_id
        response, end = API[request_type.api_key].response_type.decode(frame, api_version, end)
        assert end == len(frame)
        return response

    async def ask(
        self, request: Request, api_version: int, response_type: type[ResponseT]
    ) -> ResponseT:
        """Send a request and take its answer."""
        self.send(request, api_version)
        response = await self.receive()
        assert isinstance(response, response_type)
        return response

    async def closed(self) -> bool:
        """Wait until the broker closed the connection; False when it sent something instead."""
        try:
            data = await asyncio.wait_for(self.reader.read(1), DEADLINE_SECONDS)
        except ConnectionError:
            return True
        return not data


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop turn until a condition holds, within the deadline."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 - the condition is not ours to signal
            await asyncio.sleep(0)


def batch(
    *values: bytes | None,
    key: bytes | None = None,
    timestamp_ms: int = 1_700_000_000_000,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    codec: int = 0,
) -> bytes:
    """One record batch as a producer sends it."""
    return bytes(
        encode_batch(
            [(timestamp_ms, key, value, []) for value in values],
            codec=codec,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )
    )


def values_of(records: bytes | memoryview | bytearray | None) -> list[bytes | None]:
    """Values of all data records in what a Fetch answer holds."""
    data = bytes(records or b"")
    return [
        None if record.value is None else bytes(record.value)
        for position, header in iter_batch_headers(data)
        if not header.attributes & CONTROL_BIT
        for record in decode_batch(data, position)
    ]
