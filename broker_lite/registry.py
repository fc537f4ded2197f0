"""The served requests, with their handlers and versions.

A handler declares its request and version range with :func:`handles`. Nothing else lists them, so
the ApiVersions answer lists only what exists. Handlers are imported by their name, at the first
request of their kind.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, TypeVar

from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.request_context import RequestContext
from onceflow.broker_lite.services import Served, Services
from onceflow.sdk.protocol.schema import Request, Response

HANDLER_MODULES = (
    "acls",
    "admin",
    "cluster",
    "configs",
    "consumer_groups",
    "features",
    "fetch",
    "group_offsets",
    "groups",
    "offsets",
    "produce",
    "quotas",
    "replicas",
    "scram_users",
    "security",
    "topic_partitions",
    "transactions",
)
"""Modules of ``onceflow.broker_lite.handlers`` that register handlers when imported."""


RequestT = TypeVar("RequestT", bound=Request)
ResponseT = TypeVar("ResponseT", bound=Response)

Handler: TypeAlias = Callable[
    [Services, RequestContext, RequestT, int],
    "ResponseT | Deferred[ResponseT] | Deferred[ResponseT | None] | None",
]


@dataclass(frozen=True, slots=True)
class Registration:
    """One served request.

    Attributes:
        request_type: Class of the request.
        min_version: Lowest version that is served.
        max_version: Highest version that is served and advertised.
        advertised_min_version: Lowest version in the ApiVersions answer.
        handler: The function that answers.
    """

    request_type: type[Request]
    min_version: int
    max_version: int
    advertised_min_version: int
    handler: Callable[[Services, RequestContext, Request, int], object]


def _served(registration: Registration) -> Served:
    return Served(
        registration.handler.__module__.rpartition(".")[2],
        registration.advertised_min_version,
        registration.max_version,
    )


class HandlerRegistry:
    """Served requests by api key."""

    __slots__ = ("_by_key", "_lazily")

    def __init__(self, lazily: Mapping[int, Served] | None = None) -> None:
        """Make one.

        Args:
            lazily: The served requests, if handlers are imported at their first request.
        """
        self._by_key: dict[int, Registration] = {}
        self._lazily: Mapping[int, Served] = lazily or {}

    def handles(
        self,
        request_type: type[RequestT],
        *,
        versions: tuple[int, int] | None = None,
        advertised_min_version: int | None = None,
    ) -> Callable[[Handler[RequestT, ResponseT]], Handler[RequestT, ResponseT]]:
        """Register the decorated function as the handler of ``request_type``.

        Args:
            request_type: Class of the request.
            versions: Lowest and highest version served; all declared ones by default.
            advertised_min_version: Lowest version to advertise, if it differs (trap 66).

        Raises:
            ValueError: The request has a handler already, or a version is not declared.
        """
        declared_min, declared_max = request_type.versions
        min_version, max_version = versions or (declared_min, declared_max)
        if not declared_min <= min_version <= max_version <= declared_max:
            raise ValueError(
                f"{request_type.__name__} declares versions {declared_min}-{declared_max}, "
                f"not {min_version}-{max_version}"
            )

        def register(handler: Handler[RequestT, ResponseT]) -> Handler[RequestT, ResponseT]:
            api_key = request_type.api_key
            if api_key in self._by_key:
                raise ValueError(f"{request_type.__name__} has two handlers")
            self._by_key[api_key] = Registration(
                request_type,
                min_version,
                max_version,
                min_version if advertised_min_version is None else advertised_min_version,
                handler,  # type: ignore[arg-type] # looked up by its own request's key only
            )
            return handler

        return register

    def get(self, api_key: int) -> Registration | None:
        """Return the registration of a key, or None if it is not served."""
        found = self._by_key.get(api_key)
        if found is None and api_key in self._lazily:
            load_handlers((self._lazily[api_key].module,))
            found = self._by_key[api_key] = REGISTRY._by_key[api_key]
        return found

    def served(self) -> dict[int, Served]:
        """Return the content of ApiVersions, by api key; imports nothing."""
        if self._lazily:
            return dict(self._lazily)
        return {each.request_type.api_key: _served(each) for each in self.registrations()}

    def limited_to(self, versions: Mapping[int, tuple[int, int]]) -> HandlerRegistry:
        """Return a registry that serves only certain requests and versions.

        Args:
            versions: Lowest and highest version by api key; other kinds are left out.
        """
        limited = HandlerRegistry()
        for registration in self.registrations():
            api_key = registration.request_type.api_key
            low, high = versions.get(api_key, (0, -1))
            min_version = max(registration.min_version, low)
            max_version = min(registration.max_version, high)
            if min_version <= max_version:
                limited._by_key[api_key] = replace(
                    registration,
                    min_version=min_version,
                    max_version=max_version,
                    advertised_min_version=max(registration.advertised_min_version, low),
                )
        return limited

    def registrations(self) -> list[Registration]:
        """Every registration, by api key."""
        for api_key in self._lazily:
            self.get(api_key)
        return [self._by_key[api_key] for api_key in sorted(self._by_key)]


REGISTRY = HandlerRegistry()
"""Handlers of this broker; filled by :func:`load_handlers`."""

handles: Final = REGISTRY.handles


def load_handlers(modules: Iterable[str] = HANDLER_MODULES) -> HandlerRegistry:
    """Import the handler modules, which register themselves, and return the registry."""
    for module in modules:
        importlib.import_module(f"onceflow.broker_lite.handlers.{module}")
    return REGISTRY


def lazy_handlers() -> HandlerRegistry:
    """Return all handlers, each imported at its first request, so that a start takes less time."""
    from onceflow.broker_lite.served_requests import SERVED

    return HandlerRegistry({api_key: Served(*entry) for api_key, entry in SERVED.items()})
