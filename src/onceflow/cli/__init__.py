"""The ``onceflow`` command: assembles the commands that the areas offer and decides nothing else.

Each command's module is imported when the command is used, so that ``onceflow --help`` is quick
and the broker can be started without loading the clients.
"""

from __future__ import annotations

import gc
import importlib
import platform
import sys
from collections.abc import Mapping
from typing import Any

import click

from onceflow import __version__
from onceflow.cli.base import Group

COMMANDS: Mapping[str, tuple[str, str]] = {
    "broker": ("onceflow.broker_lite.daemon.commands", "Start the bundled broker."),
    "run": ("onceflow.cli.run", "Run a processor app (MODULE:APP)."),
    "relay": ("onceflow.cli.relay", "Send the rows of an outbox in PostgreSQL to topics."),
    "topics": ("onceflow.cli.topics", "List, create, describe, alter and delete topics."),
    "groups": ("onceflow.cli.groups", "Show groups and their lag, reset their offsets."),
    "produce": ("onceflow.cli.produce", "Send lines, JSON records or files to a topic."),
    "consume": ("onceflow.cli.consume", "Print the records of topics."),
    "txns": ("onceflow.cli.txns", "Show transactions, find hanging ones, fence producers."),
    "configs": ("onceflow.cli.configs", "Show and change settings of topics, brokers, groups."),
    "cluster": ("onceflow.cli.cluster", "Show brokers, features, the quorum and disks."),
    "acls": ("onceflow.cli.acls", "List, add and remove rules of who may do what."),
    "users": ("onceflow.cli.users", "List users with SCRAM passwords, set and remove passwords."),
    "quotas": ("onceflow.cli.quotas", "Show and change quotas of users, clients and addresses."),
    "dlq": ("onceflow.cli.dlq", "List, show and replay dead letters."),
    "doctor": ("onceflow.cli.doctor.command", "Look for known faults of a cluster, app or group."),
    "state": ("onceflow.cli.state", "Show, export and reset the local state of processor apps."),
    "log": ("onceflow.cli.log", "Dump and verify the files of a data folder, without a broker."),
    "console": ("onceflow.cli.console", "Show a cluster in the browser."),
    "completion": ("onceflow.cli.completion", "Print the script that completes commands."),
}
"""Name of the command -> module that holds a click command of that name, and its one line."""


EPILOG = """
Example: onceflow topics list --bootstrap localhost:9092

\b
Exit status: 0 done, 1 refused or failed, 2 wrong call or setting, 3 not found,
4 no broker answered in time, 5 not authenticated or not authorized,
6 needs --yes or --force, 130 interrupted.
"""


def open_broker_for_tests(*arguments: Any) -> Any:
    """Open a broker that has what only tests need; the daemon itself imports nothing of that."""
    from onceflow.broker_lite import open_for_tests

    return open_for_tests(*arguments)


class LazyGroup(Group):
    """A click group whose commands are imported when they are asked for."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Run as a program; a call from Python goes to :meth:`main`."""
        if sys.argv[1:2] == ["broker"]:
            from onceflow.broker_lite.daemon import early_stop

            early_stop.watch()
        return super().__call__(*arguments, **options)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command and give the command, or None for an unknown name."""
        if cmd_name not in COMMANDS:
            return None
        gc.disable()  # Modules stay: to look for garbage among them only takes time.
        try:
            module = importlib.import_module(COMMANDS[cmd_name][0])
        finally:
            gc.enable()
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command), f"{module.__name__}.{cmd_name} is no command"
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table, without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


def _show_version(ctx: click.Context) -> None:
    from onceflow.sdk.protocol.record_kernel import COMPILED

    engine = "compiled" if COMPILED else "plain Python"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    click.echo(f"onceflow, version {__version__} ({engine}, {python})")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    help="Kafka from Python, exactly once.",
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "obj": open_broker_for_tests},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda ctx, _, wanted: _show_version(ctx) if wanted else None,
    help="Show the version, and whether the modules that handle records are compiled.",
)
def main() -> None:
    """Kafka from Python, exactly once."""
