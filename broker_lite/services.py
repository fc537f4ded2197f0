"""The broker's interface for handlers and guards.

Handlers and guards use only :class:`Services`. So they do not depend on how the broker is opened
and closed, on its sockets, or on its registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from onceflow.broker_lite.coordinators.classic.coordinator import GroupCoordinator
    from onceflow.broker_lite.coordinators.transactions.coordinator import TransactionCoordinator
    from onceflow.broker_lite.features import Features
    from onceflow.broker_lite.fetch_sessions import FetchSessions
    from onceflow.broker_lite.log import LogManager
    from onceflow.broker_lite.placement import Placement
    from onceflow.broker_lite.profiles import Profile
    from onceflow.broker_lite.purgatory import Purgatory, Timers
    from onceflow.broker_lite.quotas import QuotaEnforcement
    from onceflow.broker_lite.request_context import RequestContext
    from onceflow.broker_lite.security.authorizer import Authorizer
    from onceflow.broker_lite.security.scram_users import ScramUsers
    from onceflow.broker_lite.settings.broker_config import BrokerConfig
    from onceflow.broker_lite.settings.dynamic_config import DynamicConfig
    from onceflow.broker_lite.settings.listeners import Listener
    from onceflow.broker_lite.topics import TopicRegistry


class Served(NamedTuple):
    """A served request, before its handler is imported.

    Attributes:
        module: Module of ``onceflow.broker_lite.handlers``.
        min_version: Lowest version that is advertised.
        max_version: Highest version that is served.
    """

    module: str
    min_version: int
    max_version: int


class Services(Protocol):
    """The parts of the broker that handlers use; they replace none of them."""

    @property
    def config(self) -> BrokerConfig:
        """Settings in force."""
        ...

    @property
    def dynamic_config(self) -> DynamicConfig:
        """Settings that were changed at run time."""
        ...

    @property
    def features(self) -> Features:
        """Levels of the cluster's features."""
        ...

    @property
    def profile(self) -> Profile | None:
        """The release of Kafka whose requests the broker serves; None for all."""
        ...

    @property
    def cluster_id(self) -> str:
        """Base64 form of a random uuid."""
        ...

    @property
    def topics(self) -> TopicRegistry:
        """Topics by name and by id."""
        ...

    @property
    def log_manager(self) -> LogManager:
        """The logs on storage."""
        ...

    @property
    def placement(self) -> Placement:
        """The nodes, and the partitions that each of them leads."""
        ...

    @property
    def groups(self) -> GroupCoordinator:
        """The group coordinator."""
        ...

    @property
    def transactions(self) -> TransactionCoordinator:
        """The transaction coordinator."""
        ...

    @property
    def fetch_sessions(self) -> FetchSessions:
        """Fetch sessions of consumers."""
        ...

    @property
    def authorizer(self) -> Authorizer | None:
        """Decides what clients may do; None allows everything."""
        ...

    @property
    def scram_users(self) -> ScramUsers:
        """Users of SASL SCRAM."""
        ...

    @property
    def quotas(self) -> QuotaEnforcement:
        """Quotas of clients, and each client's use of them."""
        ...

    @property
    def purgatory(self) -> Purgatory:
        """Parked operations."""
        ...

    @property
    def timers(self) -> Timers:
        """Timers of the broker."""
        ...

    @property
    def listeners(self) -> Mapping[tuple[int, str], Listener]:
        """The bound listeners, by node id and name of the listener."""
        ...

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that their peers have not read yet."""
        ...

    def served(self) -> Mapping[int, Served]:
        """Return the content of ApiVersions, by api key."""
        ...

    def advertised(self, context: RequestContext, node_id: int | None = None) -> tuple[str, int]:
        """Return host and port of a node for an answer; never a wildcard address (trap 67).

        They are those of the listener that the peer uses (KIP-103).

        Args:
            context: Context of the request.
            node_id: The node, by default the one that got the request.
        """
        ...
