"""A broker without sockets: frames go straight to the dispatcher, time is a number.

For tests of handlers where the wire itself is not the point.
"""

from __future__ import annotations

import random

from onceflow.broker_lite.broker import BrokerState, open_broker
from onceflow.broker_lite.dispatch import Dispatcher, PendingAnswer
from onceflow.broker_lite.log import MemoryStorage, Storage
from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.request_context import ConnectionState
from onceflow.broker_lite.settings.broker_config import BrokerConfig
from onceflow.broker_lite.settings.listeners import Listener, SecurityProtocol
from onceflow.broker_lite.testing.in_process_defaults import IN_PROCESS_DEFAULTS
from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.frame import decode_response_header, encode_request, encode_response
from onceflow.sdk.protocol.schema import Request, Response

START_MS = 1_700_000_000_000


class SocketlessBroker:
    """A broker on memory, with one connection and a clock that is moved by hand."""

    def __init__(
        self,
        settings: dict[str, object] | None = None,
        storage: Storage | None = None,
        seed: int = 1,
    ) -> None:
        self.now_ms = START_MS
        config = BrokerConfig.from_properties(settings or {}, defaults=IN_PROCESS_DEFAULTS)
        self.state: BrokerState = open_broker(
            storage or MemoryStorage(), config, random.Random(seed), self.now_ms
        )
        plain = Listener("PLAINTEXT", SecurityProtocol.PLAINTEXT, "127.0.0.1", 9092)
        self.state.listeners[1, "PLAINTEXT"] = plain
        self.connection = ConnectionState(1, "/127.0.0.1", "PLAINTEXT")
        self._dispatcher = Dispatcher(self.state, self.connection)

    def dispatch(self, request: Request, api_version: int) -> PendingAnswer:
        """Send a request through its bytes; give what the handler gave."""
        frame = b"".join(
            encode_request(request, api_version=api_version, correlation_id=7, client_id="test")
        )[4:]
        answer = self._dispatcher.dispatch(frame, self.now_ms)
        self.state.settle(self.now_ms)
        return answer

    def ask(self, request: Request, api_version: int) -> Response | None:
        """Send a request and read its answer back from its bytes; None when there is none yet."""
        answer = self.dispatch(request, api_version)
        result = answer.result
        if isinstance(result, Deferred):
            taken: list[Response] = []
            result.add_done_callback(taken.append)
            if not taken:
                return None
            result = taken[0]
        return None if result is None else reread(result, answer)

    def advance(self, duration_ms: int) -> None:
        """Move time and run what became due."""
        self.now_ms += duration_ms
        self.state.timers.run_due(self.now_ms)
        self.state.settle(self.now_ms)

    def close(self) -> None:
        """Stop cleanly."""
        self.state.close(self.now_ms)


def reread(response: Response, answer: PendingAnswer) -> Response:
    """Encode an answer as the server does and read it back, leaving nothing over."""
    frame = b"".join(
        encode_response(
            response, api_version=answer.api_version, correlation_id=answer.correlation_id
        )
    )[4:]
    correlation_id, end = decode_response_header(frame, response.api_key, answer.api_version)
    assert correlation_id == answer.correlation_id
    decoded, end = API[response.api_key].response_type.decode(frame, answer.api_version, end)
    assert end == len(frame)
    return decoded
