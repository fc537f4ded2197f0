"""How every command connects: one set of options, a settings file, a profile, the environment.

A profile is a settings file in the user's configuration folder, found by its name. Names and
values of settings are those of `onceflow.sdk.ClientSettings`; this module decides only which
places are read, and in which order they win.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from onceflow.sdk import Admin, Consumer, Producer
    from onceflow.sdk.settings.sources import ClientSettings

POLL_MS: Final = 200
"""Longest wait of a poll; after each, a command looks whether it has reached the end."""
SLOT_VARIABLE: Final = "ONCEFLOW_SLOT"
"""The slot of the worker that ``onceflow run`` runs."""
DSN_VARIABLE: Final = "ONCEFLOW_DSN"
"""The database of commands that connect to one."""
SWITCHES: Final = frozenset({"ONCEFLOW_CONFIG", "ONCEFLOW_PROFILE", SLOT_VARIABLE, DSN_VARIABLE})
"""Variables of the command line itself, which are not settings of clients."""
REGISTRY_PREFIX: Final = "ONCEFLOW_SCHEMA_REGISTRY_"
"""Beginning of variables that are settings of a schema registry's client."""


class Connection:
    """The settings of one call of the command line; makes clients of them.

    Args:
        bootstrap: Addresses from the command line, or None.
        config: Settings file, or None.
        profile: Name of a profile, or None.
        environ: Environment variables.
    """

    def __init__(
        self,
        bootstrap: str | None,
        config: Path | None,
        profile: str | None,
        environ: Mapping[str, str],
    ) -> None:
        self.bootstrap = bootstrap
        self.config = config
        self.profile = profile
        self.registry_environ: dict[str, str] = {
            name: value for name, value in environ.items() if name.startswith(REGISTRY_PREFIX)
        }
        self.environ: dict[str, str] = {
            name: value
            for name, value in environ.items()
            if name not in SWITCHES and name not in self.registry_environ
        }

    @property
    def settings_file(self) -> Path | None:
        """The settings file, given or of the profile.

        Raises:
            ConfigError: There is no such profile.
        """
        return self.config if self.profile is None else profile_path(self.profile, os.environ)

    @functools.cached_property
    def settings(self) -> ClientSettings:
        """Settings of all clients: file or profile, then environment, then ``--bootstrap``.

        Raises:
            ConfigError: A file, name or value cannot be used; names the place.
        """
        from onceflow.sdk import ClientSettings

        settings = ClientSettings.load(file=self.settings_file, environ=self.environ)
        if self.bootstrap is not None:
            settings = settings.updated({"bootstrap_servers": self.bootstrap})
        return settings

    @property
    def is_given(self) -> bool:
        """Whether any place names a setting."""
        from onceflow.sdk.settings.sources import KINDS

        return any(self.settings.values(kind) for kind in KINDS)

    def admin(self) -> Admin:
        """Connect an admin client."""
        from onceflow.sdk import Admin

        return Admin(config=self.settings.admin())

    def producer(self, **settings: object) -> Producer:
        """Connect a producer; keyword arguments win."""
        from onceflow.sdk import Producer

        return Producer(config=self.settings.producer(**settings))

    def consumer(self, **settings: object) -> Consumer[object, object]:
        """Connect a consumer of a group; keyword arguments win."""
        from onceflow.sdk import Consumer

        return Consumer(config=self.settings.consumer(**settings))

    def reader(self, **settings: object) -> Consumer[object, object]:
        """Connect a consumer outside of any group; keyword arguments win."""
        from onceflow.sdk import Consumer

        return Consumer(config=self.settings.reader(**settings))

    def partitions(self, consumer: Consumer[object, object], topic: str) -> set[int]:
        """Return the partition numbers of a topic.

        Args:
            consumer: Asks for them.
            topic: The topic.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic.
            TopicAuthorizationFailedError: This user may not see it.
        """
        found = consumer.partitions_for_topic(topic)
        if not found:
            with self.admin() as admin:  # It tells a missing right from a missing topic.
                described = admin.describe_topics([topic])[topic]
            found = {info.partition for info in described.partitions}
        return set(found)


def profile_path(name: str, environ: Mapping[str, str]) -> Path:
    """Return the settings file of a profile.

    Args:
        name: The profile's name.
        environ: Environment variables; ``XDG_CONFIG_HOME`` moves the folder.

    Raises:
        ConfigError: There is no such profile; the folder's profiles are named.
    """
    from onceflow.sdk.errors import ConfigError

    home = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    folder = home / "onceflow"
    found = {
        path.stem: path
        for suffix in ("*.properties", "*.toml")
        for path in sorted(folder.glob(suffix))
    }
    if name not in found:
        there = f"there are {', '.join(sorted(found))}" if found else "there are no profiles yet"
        raise ConfigError("profile", name, f"write {folder / name}.toml or .properties; {there}")
    return found[name]


def connected(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that name a cluster; it gets a `Connection` as first argument.

    Args:
        function: The command's function.
    """

    @click.option("--bootstrap", metavar="HOST:PORT[,...]", help="Addresses of brokers.")
    @click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar="ONCEFLOW_CONFIG",
        help="Settings with TLS and SASL, *.toml or Java's properties.",
    )
    @click.option(
        "--profile",
        envvar="ONCEFLOW_PROFILE",
        help="Settings file by name: ~/.config/onceflow/NAME.toml or .properties.",
    )
    @functools.wraps(function)
    def with_connection(
        *arguments: Any,
        bootstrap: str | None,
        config: Path | None,
        profile: str | None,
        **options: Any,
    ) -> Any:
        if config is not None and profile is not None:
            raise click.UsageError("--config and --profile both name a file; give one of the two")
        connection = Connection(bootstrap, config, profile, os.environ)
        return function(connection, *arguments, **options)

    return with_connection
