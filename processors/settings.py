"""Settings of an application, checked when it is declared; nothing here touches the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

from onceflow.sdk import AdminConfig, ConsumerConfig
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.special_values import BROKER_DEFAULT
from onceflow.sdk.settings.config import NamedAssignor
from onceflow.sdk.settings.declare import instance, switch, text, whole, words
from onceflow.transactions.config import SessionConfig, SessionSettings

if TYPE_CHECKING:
    from onceflow.processors.keywords import AppKeywords

NOT_OF_APPS: Final[Mapping[str, str]] = {
    "transactional_id": "it is made of the application's name and slot, one for each worker",
    "group_instance_id": "it is made of the application's name and slot, one for each worker",
    "key_serializer": "outputs are encoded by their types and format=",
    "value_serializer": "outputs are encoded by their types and format=",
    "key_deserializer": "inputs are decoded by the handler's annotations and format=",
    "value_deserializer": "inputs are decoded by the handler's annotations and format=",
}
"""Settings of clients that an application decides."""

RESTORED_RECORDS = 10_000
"""Most records of changelogs that one poll returns."""


class AppSettings(SessionSettings, in_kafka=False, kind="application"):
    """How an application runs. ``App`` takes these by name, and those of its clients."""

    state_dir: Path = instance(
        Path(".onceflow"),
        "Directory for state and for the identity of this host's processes. A relative one lies "
        "in the working directory of the moment when the application is made.",
        Path,
    )
    slot: str | None = text(
        None,
        "Name of this process among those of the group, for hosts whose disks do not survive; by "
        "default the lowest number that no live process of `state_dir` has, behind an id that is "
        "kept there.",
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
        20, "Transactions aborted in a row, without a rebalance, before giving up.", 1
    )
    shutdown_timeout_ms: int = whole(10_000, "Time between the first signal and a forced end.", 1)
    leave_on_sigterm: bool = switch(
        False,
        "Whether SIGTERM gives the partitions to other workers at once. By default they wait for "
        "the next start of this slot until the session times out: a rolling restart moves nothing.",
    )
    on_state_gap: str = text(
        "stop",
        "What happens when state, changelog and committed offsets do not belong together: `stop` "
        "ends with what differs and the remedy, `continue` goes on with what there is.",
        choices=("stop", "continue"),
    )
    dropped_states: Sequence[str] = words(
        (), "States that are gone on purpose, as `function.state`."
    )
    max_task_idle_ms: int = whole(
        0,
        "Where a task has several inputs: how long one that was read to its end is waited for. "
        "Records that the broker has already are always waited for, unless this is -1 (KIP-695).",
        -1,
    )
    max_future_ms: int = whole(
        3_600_000,
        "How far a record's timestamp may be ahead of the clock to move stream time on.",
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
            # Stores are opened when partitions come; by then the process may be somewhere else.
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
        self.session_config("app", ["check"], "0")  # what the session and its clients would refuse

    def session_config(
        self,
        app: str,
        topics: Sequence[str],
        slot: str,
        joining: NamedAssignor | None = None,
        from_start: Sequence[str] = (),
    ) -> SessionConfig:
        """The session's settings.

        Args:
            app: Name of the application.
            topics: Input topics.
            slot: Name of this worker.
            joining: Assignor that gives the inputs of a task to one worker, where tasks have
                several inputs.
            from_start: Input topics that begin at their beginning, whatever ``start_from`` says.

        Raises:
            ConfigError: The settings of the session, or of one of its clients, cannot work.
        """
        # A successor takes a killed worker's place at once (KIP-345), not only after the session
        # timeout.
        consumer: dict[str, object] = {
            "group_id": self.group_of(app),
            "group_instance_id": f"{app}-{slot}",
        }
        if joining is not None:
            consumer |= self._joined(joining)
        shared = {name: getattr(self, name) for name in SessionSettings.declared}
        shared["client"] = self.client.updated(consumer=consumer)
        own = {"topics": topics, "slot": slot, "topics_from_start": from_start}
        return SessionConfig.build({**shared, **own})

    def _joined(self, joining: NamedAssignor) -> dict[str, object]:
        """How the group gives equal partition numbers of several topics to one worker."""
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
                "the inputs of a task have to go to one worker; leave it out, or set 'range'",
            )
        return {name: given}

    def group_of(self, app: str) -> str:
        """The consumer group: as set, or the application's name.

        Args:
            app: Name of the application.
        """
        group_id = self.client.values("consumer").get("group_id")
        return app if group_id is None else str(group_id)

    def admin_config(self) -> AdminConfig:
        """Settings of the client that looks for topics and makes them."""
        limit = {"default_api_timeout_ms": self.operation_timeout_ms}
        return AdminConfig.build({**limit, **self.client.values("admin")})

    def restoring_config(self) -> ConsumerConfig:
        """Settings of the consumer that reads changelogs."""
        return self.client.reader(
            default_api_timeout_ms=self.operation_timeout_ms,
            isolation_level="read_committed",
            auto_offset_reset="none",  # a gap must not pass unnoticed
            max_poll_records=RESTORED_RECORDS,
        )

    @property
    def output_bytes_max(self) -> int:
        """Largest output that the producer accepts, with room for the batch around it."""
        return self.session_config("app", ["check"], "0").producer.max_request_size - 1_024
