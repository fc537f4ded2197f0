"""One connection to a broker as a machine: correlation ids, answers in order, deadlines.

It turns requests into bytes and bytes into answers. It decides when the peer is to be considered
dead (no answer within a request's time, FC-49) or broken (an answer that nobody asked for). It has
no socket and no clock; what a request says and who waits for it is decided elsewhere.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from onceflow.sdk.core.connection.broker_needs import check_values, lacking_field
from onceflow.sdk.errors import LocalProtocolError, RemoteProtocolError
from onceflow.sdk.model.special_values import API_VERSIONS_KEY
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.frame import FrameSplitter, decode_response_header, encode_request
from onceflow.sdk.protocol.primitives import Buffer
from onceflow.sdk.protocol.schema import AbsentFieldError, Request, Response

IN_FLIGHT_MAX = 10_000
"""Unanswered requests that one connection holds; more means that the caller has no bound."""


class Answer(NamedTuple):
    """A response and the request that it belongs to.

    Attributes:
        correlation_id: Number of the request.
        response: The decoded response.
        api_version: Version in which it was spoken.
    """

    correlation_id: int
    response: Response
    api_version: int


class _Pending(NamedTuple):
    correlation_id: int
    request_type: type[Request]
    api_version: int
    deadline_ms: int


class Connection:
    """Requests out, answers in, strictly in order.

    Attributes:
        last_used_ms: When something was last sent or received, on the caller's clock.
        muted_until_ms: Until when the broker asked for silence (KIP-219).
    """

    __slots__ = (
        "_client_id",
        "_next_correlation_id",
        "_pending",
        "_splitter",
        "last_used_ms",
        "muted_until_ms",
    )

    def __init__(self, client_id: str, max_response_bytes: int, now_ms: int) -> None:
        self._client_id = client_id
        self._splitter = FrameSplitter(max_response_bytes)
        self._pending: deque[_Pending] = deque()
        self._next_correlation_id = 1
        self.last_used_ms: int = now_ms
        self.muted_until_ms: int = 0

    @property
    def in_flight_count(self) -> int:
        """Requests that wait for an answer."""
        return len(self._pending)

    def send(
        self,
        request: Request,
        api_version: int,
        now_ms: int,
        timeout_ms: int,
        *,
        expects_answer: bool = True,
    ) -> tuple[int, list[Buffer]]:
        """Encode a request.

        Args:
            request: The request.
            api_version: Version to speak.
            now_ms: The present time.
            timeout_ms: How long the answer may take.
            expects_answer: False for Produce with ``acks=0``, which is never answered.

        Returns:
            The correlation id, and the parts to be written in this order.

        Raises:
            LocalProtocolError: Too many requests wait.
            UnsupportedVersionError: What the request says cannot be said in that version.
        """
        if len(self._pending) >= IN_FLIGHT_MAX:
            raise LocalProtocolError(
                f"{IN_FLIGHT_MAX} requests are in flight on one connection, and no more are allowed"
            )
        correlation_id = self._next_correlation_id
        check_values(request, api_version)
        try:
            parts = encode_request(
                request,
                api_version=api_version,
                correlation_id=correlation_id,
                client_id=self._client_id,
            )
        except AbsentFieldError as error:
            raise lacking_field(type(request), error.field, api_version) from None
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        self.last_used_ms = now_ms
        if expects_answer:
            self._pending.append(
                _Pending(correlation_id, type(request), api_version, now_ms + timeout_ms)
            )
        return correlation_id, parts

    def receive(self, data: bytes, now_ms: int) -> list[Answer]:
        """Take in bytes from the peer.

        Args:
            data: What arrived.
            now_ms: The present time.

        Returns:
            The answers that are complete now.

        Raises:
            RemoteProtocolError: The bytes are no answer to what was asked; drop the connection.
        """
        self.last_used_ms = now_ms
        answers = []
        for frame in self._splitter.feed(data):
            if not self._pending:
                raise RemoteProtocolError("the broker sent a response without a request")
            pending = self._pending.popleft()
            answer = _decode(frame, pending)
            throttle_ms = getattr(answer.response, "throttle_time_ms", 0)
            if throttle_ms > 0:
                self.muted_until_ms = max(self.muted_until_ms, now_ms + throttle_ms)
            answers.append(answer)
        return answers

    def last_deadline_ms(self) -> int | None:
        """When the last waiting request runs out of time; None when nothing waits."""
        return max((p.deadline_ms for p in self._pending), default=None)

    def next_deadline_ms(self) -> int | None:
        """When the first waiting request runs out of time; None when nothing waits."""
        return min((p.deadline_ms for p in self._pending), default=None)

    def overdue(self, now_ms: int) -> str | None:
        """Say which request waits for too long.

        Args:
            now_ms: The present time.

        Returns:
            A short description, None when all is well. An overdue request means a dead connection.
        """
        for pending in self._pending:
            if pending.deadline_ms <= now_ms:
                name = pending.request_type.__name__.removesuffix("Request")
                return f"{name} request {pending.correlation_id} was not answered in time"
        return None


def _decode(frame: bytes | memoryview, pending: _Pending) -> Answer:
    request_type, version = pending.request_type, pending.api_version
    correlation_id, end = decode_response_header(frame, request_type.api_key, version)
    if correlation_id != pending.correlation_id:
        raise RemoteProtocolError(
            f"answer {correlation_id} came while {pending.correlation_id} was expected"
        )
    if request_type.api_key == API_VERSIONS_KEY:
        code = int.from_bytes(frame[end : end + 2], "big", signed=True)
        if code == ErrorCode.UNSUPPORTED_VERSION:
            version = 0  # the one answer that a broker gives in a version it was not asked in
    response, _ = request_type.response_type.decode(frame, version, end)
    return Answer(correlation_id, response, version)
