"""The frame of all guards, which check a client's rights before a handler runs.

A guard runs before the handler of one request. It removes the parts of the request that the client
may not do, and adds the refusals to the answer, so that handlers know nothing of ACLs. With an
authorizer, a request without a guard is refused; without one, no guard runs. The modules of this
folder know the resources of each request.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.registry import Registration
from onceflow.broker_lite.request_context import CloseConnection, RequestContext
from onceflow.broker_lite.security.acl_model import CLUSTER_NAME, OPERATIONS
from onceflow.sdk.model.acl_enums import AclOperation, AclResourceType
from onceflow.sdk.protocol.schema import Request, Response

if TYPE_CHECKING:
    from uuid import UUID

    from onceflow.broker_lite.services import Services

GUARD_MODULES = ("admin", "groups", "topics", "transactions")

T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=Request)
Verdict: TypeAlias = Response | Callable[[Response], None] | None
"""A refusal of the whole request, a function that edits the handler's answer, or None."""


class Access:
    """Rights of one client.

    Attributes:
        state: The broker.
        context: Context of the request.
        api_version: Version of the request.
    """

    __slots__ = ("_host", "_principal", "api_version", "context", "state")

    def __init__(self, state: Services, context: RequestContext) -> None:
        self.state: Services = state
        self.context: RequestContext = context
        self.api_version: int = context.api_version
        self._principal = context.principal
        self._host = context.client_host.removeprefix("/")

    def may(self, operation: int, resource_type: int, name: str) -> bool:
        """Whether it may do an operation on a resource."""
        authorizer = self.state.authorizer
        return authorizer is None or authorizer.allows(
            self._principal, self._host, operation, resource_type, name
        )

    def topic(self, operation: int, name: str) -> bool:
        """Whether it may do an operation on a topic."""
        return self.may(operation, AclResourceType.TOPIC, name)

    def group(self, operation: int, name: str) -> bool:
        """Whether it may do an operation on a group."""
        return self.may(operation, AclResourceType.GROUP, name)

    def transactional_id(self, operation: int, name: str) -> bool:
        """Whether it may do an operation on a transactional id."""
        return self.may(operation, AclResourceType.TRANSACTIONAL_ID, name)

    def cluster(self, operation: int) -> bool:
        """Whether it may do an operation on the cluster."""
        return self.may(operation, AclResourceType.CLUSTER, CLUSTER_NAME)

    def may_write_idempotently(self) -> bool:
        """Whether it may get a producer id without a transactional id (KIP-679)."""
        authorizer = self.state.authorizer
        return (
            authorizer is None
            or self.cluster(AclOperation.IDEMPOTENT_WRITE)
            or authorizer.allows_any(
                self._principal, self._host, AclOperation.WRITE, AclResourceType.TOPIC
            )
        )

    def bits(self, resource_type: AclResourceType, name: str) -> int:
        """Return the operations allowed on a resource, as the bits in answers (KIP-430)."""
        allowed = (
            each for each in OPERATIONS[resource_type] if self.may(each, resource_type, name)
        )
        return sum(1 << operation for operation in allowed)

    def name_of(self, name: str | None, topic_id: UUID) -> str | None:
        """Return the name of a topic that a request names or identifies; None for an unknown id."""
        if name:
            return name
        topic = self.state.topics.get_by_id(topic_id)
        return None if topic is None else topic.name


def split(items: Iterable[T], allowed: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Return the allowed ones and the others, each in their order."""
    good: list[T] = []
    denied: list[T] = []
    for item in items:
        (good if allowed(item) else denied).append(item)
    return good, denied


Guard: TypeAlias = Callable[[Access, RequestT], Verdict]

_GUARDS: dict[int, Guard[Request]] = {}


def guards(request_type: type[RequestT]) -> Callable[[Guard[RequestT]], Guard[RequestT]]:
    """Register the decorated function as the guard of a request kind."""

    def register(guard: Guard[RequestT]) -> Guard[RequestT]:
        assert request_type.api_key not in _GUARDS
        _GUARDS[request_type.api_key] = guard  # type: ignore[assignment] # looked up by its key
        return guard

    return register


def load_guards() -> dict[int, Guard[Request]]:
    """Import the guard modules, which register themselves, and return all guards by key."""
    for module in GUARD_MODULES:
        importlib.import_module(f"onceflow.broker_lite.guards.{module}")
    return _GUARDS


@functools.cache
def guarded(registration: Registration) -> Registration:
    """Return the registration with its guard before the handler."""
    guard = load_guards().get(registration.request_type.api_key)
    handler = registration.handler

    def handle(state: Services, context: RequestContext, request: Request, now_ms: int) -> object:
        if guard is None:
            raise CloseConnection(f"{registration.request_type.__name__} is not guarded by ACLs")
        verdict = guard(Access(state, context), request)
        if isinstance(verdict, Response):
            return verdict
        result = handler(state, context, request, now_ms)
        if verdict is None or result is None:
            return result
        if isinstance(result, Deferred):
            return _then(result, verdict)
        assert isinstance(result, Response)
        verdict(result)
        return result

    return Registration(
        registration.request_type,
        registration.min_version,
        registration.max_version,
        registration.advertised_min_version,
        handle,
    )


def _then(inner: Deferred[Response], edit: Callable[[Response], None]) -> Deferred[Response]:
    outer: Deferred[Response] = Deferred(on_disconnect=inner.disconnect)

    def finish(response: Response) -> None:
        edit(response)
        outer.complete(response)

    inner.add_done_callback(finish)
    return outer
