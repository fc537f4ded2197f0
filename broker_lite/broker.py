"""The state that handlers share, and how one broker is put together from its parts.

It opens the logs, makes the coordinators, gives all of it to the handlers, and schedules the
periodic work of the logs. The caller passes clock, randomness and storage.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from onceflow.broker_lite.cluster_metadata import SCRAM_SECTION, ClusterMetadata
from onceflow.broker_lite.features import (
    ELIGIBLE_LEADER_REPLICAS,
    GROUP_VERSION,
    Features,
    known_features,
)
from onceflow.broker_lite.log import LogManager, Storage
from onceflow.broker_lite.placement import Node, Placement, SingleNode
from onceflow.broker_lite.profiles import Profile, profile_of
from onceflow.broker_lite.purgatory import Deferred, Purgatory, Timers
from onceflow.broker_lite.quotas import ClientQuotas, QuotaEnforcement
from onceflow.broker_lite.registry import lazy_handlers
from onceflow.broker_lite.served_requests import SERVED
from onceflow.broker_lite.settings.dynamic_config import DynamicConfig
from onceflow.broker_lite.settings.topic_config import log_config, usable_overrides
from onceflow.broker_lite.slices import SEGMENT_STEPS, in_slices
from onceflow.broker_lite.topics import INTERNAL_TOPICS, PRODUCER_ID_BLOCK_FILE, TopicRegistry
from onceflow.sdk.settings.declare import INT64_MAX

if TYPE_CHECKING:
    from random import Random

    from onceflow.broker_lite.coordinators.classic.coordinator import GroupCoordinator
    from onceflow.broker_lite.coordinators.transactions.coordinator import TransactionCoordinator
    from onceflow.broker_lite.dispatch import Interceptor
    from onceflow.broker_lite.fetch_sessions import FetchSessions
    from onceflow.broker_lite.registry import HandlerRegistry
    from onceflow.broker_lite.request_context import RequestContext
    from onceflow.broker_lite.security.authorizer import Authorizer
    from onceflow.broker_lite.security.scram_users import ScramUsers
    from onceflow.broker_lite.services import Served
    from onceflow.broker_lite.settings.broker_config import BrokerConfig
    from onceflow.broker_lite.settings.listeners import Listener

logger: logging.Logger = logging.getLogger("onceflow.broker_lite.broker")

RECOVERY_POINTS_MS = 1000
"""Interval of the check whether a recovery point moved."""

REMOVALS_MS = 1000
"""Interval of the check whether renamed files may be deleted."""

COMPACTION_PAUSE_MS = 1
"""Time between two steps of a compaction."""


class BrokerState:
    """One broker while it is open: what handlers use (`Services`), and what runs it.

    Attributes:
        config: Settings of the broker in force; replaced when some are changed.
        authorizer: Decides what clients may do; None allows everything.
        cluster_id: Base64 form of a random uuid, from ``meta.properties``.
        cluster_metadata: The cluster's metadata beside topics, which survive restarts.
        node_id: Id of the first node, which is usually the only one.
        listeners: The bound listeners, by node id and name of the listener.
        dynamic_config: Settings that were changed at run time.
        features: Levels of the cluster's features.
        topics: Topics by name and by id.
        log_manager: The logs on storage.
        timers: Timers of the broker.
        placement: The nodes, and the partitions that each of them leads.
        profile: The release of Kafka whose versions and features the broker offers; None for all.
        purgatory: Parked operations.
        quotas: Quotas of clients, and each client's use of them.
        random: Source of uuids and member ids.
        work_clock_ns: Time spent on requests, for `request_percentage`; it stands still without a
            server, or with a clock that is moved by hand.
        unsent_bytes: Bytes of answers that their peers have not read yet.
        registry: The served requests.
        interceptor: Called before the handlers in tests; None otherwise.
    """

    __slots__ = (
        "_coordinators",
        "_fetch_sessions",
        "_opened_ms",
        "_scram_users",
        "answered_bytes",
        "authorizer",
        "cluster_id",
        "cluster_metadata",
        "config",
        "dynamic_config",
        "features",
        "interceptor",
        "listeners",
        "log_manager",
        "node_id",
        "placement",
        "profile",
        "purgatory",
        "quotas",
        "random",
        "received_bytes",
        "registry",
        "request_counts",
        "timers",
        "topics",
        "unsent_bytes",
        "work_clock_ns",
    )

    config: BrokerConfig
    cluster_id: str
    cluster_metadata: ClusterMetadata
    dynamic_config: DynamicConfig
    features: Features
    node_id: int
    topics: TopicRegistry
    log_manager: LogManager
    timers: Timers
    purgatory: Purgatory
    quotas: QuotaEnforcement
    random: Random
    registry: HandlerRegistry

    def __init__(
        self, config: BrokerConfig, rng: Random, placement: Placement | None = None
    ) -> None:
        self.profile: Profile | None = profile_of(config.onceflow_profile)
        if self.profile is not None:
            level = self.profile.level("transaction.version", config.onceflow_transaction_version)
            config = config.replace(onceflow_transaction_version=level)
            if self.profile.level(GROUP_VERSION, 1) < 1:
                # Releases 3.7 to 3.9 announce the consumer protocol's requests, and refuse them.
                config = config.replace(group_coordinator_rebalance_protocols=("classic",))
        self.config = config
        self.node_id = config.node_id
        self.random = rng
        self.timers = Timers()
        self.purgatory = Purgatory(self.timers)
        self._fetch_sessions: FetchSessions | None = None
        self.placement: Placement = placement or SingleNode(Node(config.node_id))
        self.interceptor: Interceptor | None = None
        self.authorizer: Authorizer | None = None
        self._coordinators: tuple[GroupCoordinator, TransactionCoordinator] | None = None
        self._opened_ms = 0
        self._scram_users: ScramUsers | None = None
        self.listeners: dict[tuple[int, str], Listener] = {}
        self.unsent_bytes: int = 0
        self.received_bytes: int = 0
        self.answered_bytes: int = 0
        self.request_counts: dict[int, int] = dict.fromkeys(SERVED, 0)
        self.work_clock_ns: Callable[[], int] = lambda: 0

    def served(self) -> dict[int, Served]:
        """See `Services`."""
        return self.registry.served()

    def advertised(self, context: RequestContext, node_id: int | None = None) -> tuple[str, int]:
        """See `Services`."""
        connection = context.connection
        wanted = connection.node_id if node_id is None else node_id
        listener = self.listeners.get((wanted, connection.listener))
        host, port = ("", 0) if listener is None else listener.advertised
        return host or connection.local_address[0], port

    def load_coordinators(self, now_ms: int) -> None:
        """Make the coordinators and load their topics.

        If there is nothing to load, the first request to a coordinator makes them.

        Args:
            now_ms: Wall milliseconds of the start.
        """
        self._opened_ms = now_ms
        if coordinators_have_work(self.log_manager):
            _ = self.groups

    def _opened_coordinators(self) -> tuple[GroupCoordinator, TransactionCoordinator]:
        if self._coordinators is None:
            from onceflow.broker_lite.coordinators.build import build_coordinators, load

            self._coordinators = build_coordinators(self)
            try:
                load(self, self._opened_ms)
            except BaseException:
                self._coordinators = None  # A half-loaded state must not serve requests.
                raise
        return self._coordinators

    @property
    def has_coordinators(self) -> bool:
        """Whether the coordinators are made: they had topics to load, or a client has asked."""
        return self._coordinators is not None

    @property
    def groups(self) -> GroupCoordinator:
        """Group coordinator."""
        return self._opened_coordinators()[0]

    @property
    def transactions(self) -> TransactionCoordinator:
        """Transaction coordinator."""
        return self._opened_coordinators()[1]

    @property
    def fetch_sessions(self) -> FetchSessions:
        """Fetch sessions of consumers."""
        if self._fetch_sessions is None:
            from onceflow.broker_lite.fetch_sessions import FetchSessions

            self._fetch_sessions = FetchSessions(
                self.config.max_incremental_fetch_session_cache_slots,
                self.config.min_incremental_fetch_session_eviction_ms,
                self.random,
            )
        return self._fetch_sessions

    @property
    def scram_users(self) -> ScramUsers:
        """Users of SASL SCRAM; read at the first use, as most brokers have none."""
        if self._scram_users is None:
            from onceflow.broker_lite.security.scram_users import ScramUsers

            first_users = self.config.onceflow_sasl_scram_credentials
            self._scram_users = ScramUsers(self.cluster_metadata, first_users)
        return self._scram_users

    def clock_set(self, forward_ms: int, ahead_ms: int) -> None:
        """Move timers after the clock was set, so that no timeout or retention ends too early.

        Open transactions are the exception: their begin is stored, and they time out by the
        system's clock, as in Apache Kafka.

        Args:
            forward_ms: By how much ``now_ms`` jumped forward.
            ahead_ms: How far ``now_ms`` is ahead of the system's clock now.
        """
        self.timers.shift(forward_ms)
        self.timers.ahead_ms = ahead_ms
        if self._coordinators is not None:
            self.groups.clock_set(forward_ms)

    def settle(self, now_ms: int) -> None:
        """Run woken operations; called after every request and timer run."""
        self.purgatory.settle(now_ms)
        self.start_flush()

    def start_flush(self) -> None:
        """Start the flush that answers wait for, with durability ``group``."""
        if self.log_manager.shared_flush is not None:
            self.log_manager.shared_flush.start()

    def close(self, now_ms: int, *, clean: bool = True) -> None:
        """Stop the coordinators and close the logs.

        Args:
            now_ms: Wall milliseconds.
            clean: Sync everything, so that the next start need not check the logs.
        """
        if self._coordinators is not None:
            self.groups.close()
            self.transactions.close()
        self.log_manager.close(clean=clean)


def open_broker(
    storage: Storage,
    config: BrokerConfig,
    rng: Random,
    now_ms: int,
    *,
    placement: Placement | None = None,
) -> BrokerState:
    """Load a broker from storage, ready for requests.

    Args:
        storage: The data folder, which this locks.
        config: Settings.
        rng: Source of ids.
        now_ms: Wall milliseconds.
        placement: The nodes and what each leads; by default one node that leads everything.

    Raises:
        ConfigError: Settings that do not fit together.
        StorageLockedError: Another broker uses the same storage.
        DataFolderError: The storage belongs to another node, or its metadata is damaged.
    """
    state = BrokerState(config, rng, placement)
    state.registry = lazy_handlers()
    profile = state.profile
    if profile is not None:
        state.registry = state.registry.limited_to(profile.versions)
    state.log_manager = LogManager(
        storage,
        now_ms=now_ms,
        node_id=config.node_id,
        new_uuid=lambda: uuid.UUID(int=rng.getrandbits(128), version=4),
        config_for=lambda overrides: log_config(overrides, state.config),
        usable=usable_overrides,
        cluster_id=config.onceflow_cluster_id or None,
    )
    try:
        state.cluster_metadata = ClusterMetadata(storage)
        if config.authorizer_class_name:
            from onceflow.broker_lite.security.authorizer import Authorizer

            state.authorizer = Authorizer(config, state.cluster_metadata)
        if config.onceflow_sasl_scram_credentials or state.cluster_metadata.section(SCRAM_SECTION):
            _ = state.scram_users
        state.dynamic_config = DynamicConfig(state.cluster_metadata, state.config, config.node_id)
        state.config = state.dynamic_config.current
        state.log_manager.refresh_configs()
        state.quotas = QuotaEnforcement(ClientQuotas(state.cluster_metadata), state.config)
        state.features = Features(state.cluster_metadata, known_features(state.config))
        _follow_features(state)
        _load(state, now_ms)
    except BaseException:
        state.log_manager.close(clean=False)
        raise
    _start_upkeep(state, now_ms)
    return state


def _follow_features(state: BrokerState) -> None:
    """Adapt settings to the levels of features, now and after each change."""

    def apply(name: str, level: int) -> None:
        if name == ELIGIBLE_LEADER_REPLICAS:
            state.dynamic_config.set_cluster_min_insync(level > 0)

    apply(ELIGIBLE_LEADER_REPLICAS, state.features.level(ELIGIBLE_LEADER_REPLICAS))
    state.features.on_change.append(apply)


def coordinators_have_work(manager: LogManager) -> bool:
    """Whether a data folder has work for coordinators: their topics, or repairs after a crash."""
    topics = manager.topics()
    return (
        any(name in topics for name in INTERNAL_TOPICS)
        or (bool(topics) and not manager.clean_start)
        or manager.read_small_file(PRODUCER_ID_BLOCK_FILE) is not None
    )


def _load(state: BrokerState, now_ms: int) -> None:
    """Load topics and coordinators, and make repairs after a crash."""
    manager = state.log_manager
    state.cluster_id = manager.cluster_id
    state.topics = TopicRegistry(manager, state.config, state.random, state.purgatory, now_ms)
    state.load_coordinators(now_ms)
    topics = state.topics

    def apply_config(config: BrokerConfig) -> None:
        state.config = config
        topics.apply_config(config)

    state.dynamic_config.on_change.append(apply_config)


def _start_upkeep(state: BrokerState, now_ms: int) -> None:
    """Schedule the periodic work of the logs."""
    config = state.config
    manager = state.log_manager

    retention: list[Deferred[int] | int] = []

    def apply_retention(now_ms: int) -> None:
        if retention and isinstance(retention[-1], Deferred) and not retention[-1].completed:
            return  # The last run has not ended yet.
        work = manager.retaining(now_ms - state.timers.ahead_ms)
        retention[:] = [in_slices(state.timers, work, lambda: 0, now_ms, SEGMENT_STEPS)]

    def remove_due(now_ms: int) -> None:
        manager.remove_due(now_ms - state.timers.ahead_ms)

    repeat(state.timers, config.log_retention_check_interval_ms, apply_retention, now_ms)
    repeat(state.timers, REMOVALS_MS, remove_due, now_ms)
    repeat(state.timers, config.log_flush_offset_checkpoint_interval_ms, manager.checkpoint, now_ms)
    repeat(state.timers, RECOVERY_POINTS_MS, manager.note_recovery_points, now_ms)

    def flush_due(now_ms: int) -> None:
        for log in manager.partitions():
            log.flush_if_due(now_ms)

    if config.log_flush_scheduler_interval_ms < INT64_MAX:
        repeat(state.timers, config.log_flush_scheduler_interval_ms, flush_due, now_ms)
    _start_compaction(state, now_ms)


def _start_compaction(state: BrokerState, now_ms: int) -> None:
    """Compact logs in small steps, between which the broker serves requests."""

    def run(now_ms: int) -> None:
        try:
            more = state.log_manager.compact(now_ms - state.timers.ahead_ms)
        except OSError as error:  # As in `repeat`: a full disk must not end the periodic work.
            logger.error("compaction: %s", error)
            more = False
        except Exception:
            logger.exception("compaction failed")
            more = False
        # With a pause: a timer that is due now would run in the same round of timers.
        pause_ms = COMPACTION_PAUSE_MS if more else state.config.log_cleaner_backoff_ms
        state.timers.schedule(now_ms + pause_ms, run)

    state.timers.schedule(now_ms + state.config.log_cleaner_backoff_ms, run)


def repeat(timers: Timers, interval_ms: int, work: Callable[[int], object], now_ms: int) -> None:
    """Run ``work(now_ms)`` every ``interval_ms``; a failure is logged and does not end it."""

    def run(now_ms: int) -> None:
        try:
            work(now_ms)
        except OSError as error:  # A full disk must not end the periodic work.
            logger.error("upkeep of the logs: %s", error)
        except Exception:
            logger.exception("upkeep of the logs failed")
        timers.schedule(now_ms + interval_ms, run)

    timers.schedule(now_ms + interval_ms, run)
