"""Settings of an application, checked when it is declared, before any network access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

from onceflow.processors.ledger.at_least_once import AtLeastOnceConfig
from onceflow.sdk import AdminConfig, ConsumerConfig
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.special_values import BROKER_DEFAULT
from onceflow.sdk.settings.config import NamedAssignor
from onceflow.sdk.settings.declare import instance, switch, text, whole, words
from onceflow.transactions.config import SessionConfig, SessionSettings

if TYPE_CHECKING:
    from onceflow.processors.keywords import AppKeywords

NOT_OF_APPS: Final[Mapping[str, str]] = {
    "transactional_id": "the application sets it to its name and slot, one for each worker",
    "group_instance_id": "the application sets it to its name and slot, one for each worker",
    "key_serializer": "the application encodes outputs by their types and format=",
    "value_serializer": "the application encodes outputs by their types and format=",
    "key_deserializer": "the application decodes inputs by the annotations and format=",
    "value_deserializer": "the application decodes inputs by the annotations and format=",
}
"""Settings of clients that an application sets itself, with the reason for the error text."""

RESTORED_RECORDS = 10_000
"""Most records of changelogs that one poll returns."""


class AppSettings(SessionSettings, in_kafka=False, kind="application"):
    """Settings of an application; ``App`` takes these and its clients' settings by name."""

    application_server: str = text(
        "",
        "Where this worker answers queries of its state, as `host:port`; the others tell it to who "
        "asks them. `onceflow run --query-port` sets it. Kafka Streams' `application.server`.",
    )
    num_standby_replicas: int = whole(
        0,
        "Copies of each task's state that other workers keep up to date, in other state "
        "directories, so that one of them takes over without a long restoration. Kafka Streams' "
        "`num.standby.replicas`.",
        0,
    )
    acceptable_recovery_lag: int = whole(
        10_000,
        "Offsets by which a copy of state may be behind when its worker takes over the task at "
        "once (KIP-441).",
        0,
    )
    max_warmup_replicas: int = whole(
        2,
        "Copies that are made at one time so that tasks can move to workers that have nothing of "
        "their state yet (KIP-441).",
        1,
    )
    processing_guarantee: str = text(
        "exactly_once_v2",
        "What a failure does to the records under way. `exactly_once_v2`: outputs, "
        "state and offsets are one transaction. `at_least_once`: offsets are committed when "
        "outputs and changes of state are acknowledged, without a transaction; after a failure "
        "records come again, with outputs and changes of state that were made before.",
        choices=("exactly_once_v2", "at_least_once"),
    )
    uncaught_error: str = text(
        "stop",
        "What follows an error that ends a worker, such as a record that fails under the policy "
        "to stop. `stop`: `run` raises it. `replace`: a new worker takes its place and continues "
        "from the committed offsets.",
        choices=("stop", "replace"),
    )
    replacements_max: int = whole(
        3, "Most workers that take the place of another within `replacement_window_ms`.", 1
    )
    replacement_window_ms: int = whole(
        600_000, "Time within which replaced workers are counted.", 1
    )
    state_dir: Path = instance(
        Path(".onceflow"),
        "Directory for state and for the identity of this host's processes. A relative path is "
        "resolved when the application is made.",
        Path,
    )
    slot: str | None = text(
        None,
        "Name of this process within the group, for hosts without a durable disk. The default is "
        "an id stored in `state_dir`, with the lowest number that no live process there has.",
    )
    commit_records: int = whole(10_000, "Most records in one transaction.", 1)
    commit_bytes: int = whole(
        64 * 1024 * 1024, "Most bytes of uncommitted state of one task, before a commit.", 1
    )
    create_inputs: bool = switch(
        False, "Create missing input topics with `partitions`, instead of stopping."
    )
    partitions: int = whole(
        BROKER_DEFAULT,
        "Partition count for topics whose count nothing else determines; -1 for the broker's.",
        BROKER_DEFAULT,
    )
    replication_factor: int = whole(
        BROKER_DEFAULT, "For created topics; -1 for the broker's default.", BROKER_DEFAULT
    )
    aborts_max: int = whole(
        20, "Aborts in a row, without a rebalance, after which the worker gives up.", 1
    )
    shutdown_timeout_ms: int = whole(10_000, "Time between the first signal and a forced end.", 1)
    leave_on_sigterm: bool = switch(
        False,
        "Whether SIGTERM gives the partitions to other workers at once. By default the group keeps "
        "them for the next start of this slot until the session times out, so that a rolling "
        "restart moves no partition.",
    )
    on_state_gap: str = text(
        "stop",
        "What a worker does when state, changelog and committed offsets do not belong together: "
        "`stop` ends with the difference and the remedy, `continue` uses the state that is left.",
        choices=("stop", "continue"),
    )
    dropped_states: Sequence[str] = words(
        (), "States that were removed on purpose, as `function.state`."
    )
    max_task_idle_ms: int = whole(
        0,
        "How long a task with several inputs waits for new records of an input that it has read "
        "to its end. It always waits for records that the broker has already, unless this is -1 "
        "(KIP-695).",
        -1,
    )
    max_future_ms: int = whole(
        3_600_000,
        "How far a record's timestamp may be ahead of the clock and still advance stream time.",
        0,
    )

    def __init__(self, **settings: Unpack[AppKeywords]) -> None:
        """See ``SessionSettings``.

        Args:
            **settings: Settings by name.

        Raises:
            ConfigError: A value cannot work.
        """
        state_dir = settings.get("state_dir", type(self).state_dir)
        if isinstance(state_dir, str | Path):
            # Stores open when partitions are assigned; the working directory may differ by then.
            settings["state_dir"] = Path(state_dir).absolute()
        super().__init__(**settings)

    def _check(self) -> None:
        for name in ("partitions", "replication_factor"):
            if getattr(self, name) == 0:
                raise ConfigError(name, 0, "must be at least 1, or -1 for the broker's default")
        for kind in ("producer", "consumer"):
            for name in self.client.values(kind):
                if name in NOT_OF_APPS:
                    raise ConfigError(name, "...", f"{NOT_OF_APPS[name]}; leave it out")
        if self.repeats and str(self.client.values("producer").get("acks")) == "0":
            raise ConfigError(
                "acks",
                0,
                "processing_guarantee='at_least_once' commits what is acknowledged, and acks=0 "
                "acknowledges nothing: use 'all', or 1",
            )
        given_to = [
            k for k in ("producer", "consumer", "admin") if self.client.values(k).get("security")
        ]
        if given_to and "admin" not in given_to:
            raise ConfigError(
                "security",
                "...",
                f"given to {' and '.join(given_to)} alone, but an application also makes an admin "
                "client: give security= to the App, or client= with it",
            )
        if self.places_tasks:
            self._check_placing()
        host, _, port = self.application_server.rpartition(":")
        if self.application_server and not (host and port.isdigit()):
            raise ConfigError("application_server", self.application_server, "must be host:port")
        self.session_config("app", ["check"], "0")  # raises what session and clients would refuse

    def session_config(
        self,
        app: str,
        topics: Sequence[str],
        slot: str,
        joining: NamedAssignor | None = None,
        from_start: Sequence[str] = (),
        placing: NamedAssignor | None = None,
    ) -> SessionConfig:
        """Return the session's settings.

        Args:
            app: Name of the application.
            topics: Input topics.
            slot: Name of this worker.
            joining: Assignor that gives all inputs of a task to one worker; None if tasks have
                one input.
            from_start: Input topics to read from their beginning, whatever ``start_from`` says.
            placing: Assignor that also knows where state is; None without copies of state.

        Raises:
            ConfigError: A setting of the session or of one of its clients is invalid.
        """
        # As a static member (KIP-345), a restarted worker takes the killed one's place at once and
        # not after the session timeout.
        consumer: dict[str, object] = {
            "group_id": self.group_of(app),
            "group_instance_id": f"{app}-{slot}",
        }
        if placing is not None:
            consumer |= self._placed(placing, joining)
        elif joining is not None:
            consumer |= self._joined(joining)
        shared = {name: getattr(self, name) for name in SessionSettings.declared}
        shared["client"] = self.client.updated(consumer=consumer)
        own = {"topics": topics, "slot": slot, "topics_from_start": from_start}
        kind = AtLeastOnceConfig if self.repeats else SessionConfig
        return kind.build({**shared, **own})

    def _joined(self, joining: NamedAssignor) -> dict[str, object]:
        """Return the setting that gives equal partition numbers of all inputs to one worker."""
        found = self.client.values("consumer")
        if found.get("group_protocol") == "consumer":
            name, default = "group_remote_assignor", "range"
            given: object = found.get(name, default)
            fits = given == default
        else:
            name = "partition_assignment_strategy"
            given = found.get(name, (joining,))
            fits = given in ((joining,), ("range",), ["range"])
        if not fits:
            raise ConfigError(
                name,
                given,
                "one worker must get all inputs of a task; leave it out, or set 'range'",
            )
        return {name: given}

    def _placed(self, placing: NamedAssignor, joining: NamedAssignor | None) -> dict[str, object]:
        """Return the setting by which the workers place tasks where their state is."""
        self._check_placing()
        # The second one is for the time when some members of the group have no copies yet.
        return {"partition_assignment_strategy": (placing, joining or "cooperative-sticky")}

    def _check_placing(self) -> None:
        found = self.client.values("consumer")
        for name, fitting in (
            ("group_protocol", "classic"),
            ("partition_assignment_strategy", None),
        ):
            if found.get(name, fitting) != fitting:
                raise ConfigError(
                    name,
                    found[name],
                    "with num_standby_replicas or application_server (--query-port) the workers "
                    "place tasks themselves, which needs the classic group protocol and their own "
                    "assignor; leave it out",
                )

    def group_of(self, app: str) -> str:
        """Return the consumer group: the setting, or the application's name."""
        group_id = self.client.values("consumer").get("group_id")
        return app if group_id is None else str(group_id)

    def admin_config(self) -> AdminConfig:
        """Return the settings of the client that describes and creates topics."""
        limit = {"default_api_timeout_ms": self.operation_timeout_ms}
        return AdminConfig.build({**limit, **self.client.values("admin")})

    def restoring_config(self) -> ConsumerConfig:
        """Return the settings of the consumer that reads changelogs."""
        return self.client.reader(
            default_api_timeout_ms=self.operation_timeout_ms,
            isolation_level="read_committed",
            auto_offset_reset="none",  # a gap must not pass unnoticed
            max_poll_records=RESTORED_RECORDS,
        )

    @property
    def places_tasks(self) -> bool:
        """Whether the workers tell each other what they hold and where they answer."""
        return bool(self.num_standby_replicas or self.application_server)

    @property
    def repeats(self) -> bool:
        """Whether records may be processed again, without a transaction around each time."""
        return self.processing_guarantee == "at_least_once"

    @property
    def output_bytes_max(self) -> int:
        """Largest output that the producer accepts, with room for the batch around it."""
        return self.session_config("app", ["check"], "0").producer.max_request_size - 1_024
