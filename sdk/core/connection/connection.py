"""One connection to a broker, without I/O: correlation ids, answers in order, deadlines.

It converts requests to bytes and bytes to answers. It decides when the peer counts as dead (no
answer within a request's time, FC-49) or as broken (an answer without a request). It has no socket
and no clock.
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
"""Most unanswered requests of one connection; more means that the caller has no limit."""


class Answer(NamedTuple):
    """A response and the request that it belongs to.

    Attributes:
        correlation_id: Number of the request.
        response: The decoded response.
        api_version: Version of the request and the response.
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
    """Sends requests and receives answers strictly in order.

    Attributes:
        last_used_ms: When something was last sent or received, on the caller's clock.
        muted_until_ms: Time until which the broker throttles this client (KIP-219).
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
            api_version: Version to use.
            now_ms: The present time.
            timeout_ms: How long the answer may take.
            expects_answer: False for Produce with ``acks=0``, which is never answered.

        Returns:
            The correlation id, and the parts to be written in this order.

        Raises:
            LocalProtocolError: Too many requests wait for an answer.
            UnsupportedVersionError: The version cannot express the request.
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
        """Handle bytes from the peer.

        Args:
            data: The bytes.
            now_ms: The present time.

        Returns:
            The answers that are complete with them.

        Raises:
            RemoteProtocolError: The bytes are not the expected answer; drop the connection.
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
        """Latest deadline of the waiting requests; None if none waits."""
        return max((p.deadline_ms for p in self._pending), default=None)

    def next_deadline_ms(self) -> int | None:
        """Earliest deadline of the waiting requests; None if none waits."""
        return min((p.deadline_ms for p in self._pending), default=None)

    def overdue(self, now_ms: int) -> str | None:
        """Describe a request that waits for too long.

        Args:
            now_ms: The present time.

        Returns:
            A short description, or None. An overdue request means a dead connection.
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
            version = 0  # the only answer whose version may differ from that of its request
    response, _ = request_type.response_type.decode(frame, version, end)
    return Answer(correlation_id, response, version)
