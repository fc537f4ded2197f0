"""Conversations with a broker as generators that do no I/O.

A flow yields ``Send`` or ``Sleep`` and returns a result. Whoever drives it (the asyncio pool, a
blocking loop, a test) answers a ``Send`` with the response, or throws the error that came instead,
and answers a ``Sleep`` with None. This module decides the shape only, not what is said.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from onceflow.sdk.errors import RemoteProtocolError
from onceflow.sdk.protocol.api.cluster import CoordinatorType
from onceflow.sdk.protocol.schema import Request, Response

T = TypeVar("T")
R = TypeVar("R", bound=Response)


@dataclass(frozen=True, slots=True)
class Coordinator:
    """The broker that coordinates a group or a transactional id, found when needed.

    Attributes:
        key: Group name or transactional id.
        key_type: Which of the two it is.
    """

    key: str
    key_type: CoordinatorType


Target: TypeAlias = int | Coordinator | None
"""A node id, a coordinator, or None for any broker."""


@dataclass(frozen=True, slots=True)
class Send:
    """Ask a broker.

    Attributes:
        request: What to ask.
        target: Whom to ask.
        max_version: Highest version to use although the broker may offer more; None for no limit.
        timeout_ms: Limit for this request; None takes the client's.
    """

    request: Request
    target: Target = None
    max_version: int | None = None
    timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait before the next step.

    Attributes:
        delay_ms: How long.
    """

    delay_ms: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop what is known of a coordinator, so that the next Send finds it again.

    Attributes:
        coordinator: The one that turned out to be wrong.
    """

    coordinator: Coordinator


Step: TypeAlias = Send | Sleep | Forget
Flow: TypeAlias = Generator[Step, Response | None, T]


def ask(
    request: Request,
    response_type: type[R],
    target: Target = None,
    *,
    max_version: int | None = None,
    timeout_ms: int | None = None,
) -> Flow[R]:
    """Send a request and narrow the reply to its type.

    Args:
        request: What to ask.
        response_type: What must come back.
        target: Whom to ask.
        max_version: Highest version to use.
        timeout_ms: Limit for the answer.

    Returns:
        The response.

    Raises:
        RemoteProtocolError: The driver answered with something else.
    """
    reply = yield Send(request, target, max_version, timeout_ms)
    if not isinstance(reply, response_type):
        raise RemoteProtocolError(f"expected {response_type.__name__}, got {type(reply).__name__}")
    return reply
