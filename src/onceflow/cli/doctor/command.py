"""The command ``onceflow doctor``.

Decides how findings are printed, and the exit status: 0 where nothing is found, 1 otherwise.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from onceflow.cli.base import Command
from onceflow.cli.connect import SLOT_VARIABLE, Connection, connected
from onceflow.cli.output import json_option, print_json
from onceflow.cli.values import duration_ms

if TYPE_CHECKING:
    from onceflow.cli.doctor.findings import Finding, Skipped
    from onceflow.processors.app import App


@click.command(
    cls=Command,
    epilog="Example: onceflow doctor --app my_module:app --bootstrap localhost:9092",
)
@click.option("--app", "target", metavar="MODULE:APP", help="Check a processor app, too.")
@click.option("--group", "groups", multiple=True, help="Check this group and its topics only.")
@click.option("--topic", "topics", multiple=True, help="Check these topics only.")
@click.option(
    "--open-for",
    metavar="DURATION",
    default="1m",
    show_default=True,
    help="How long a transaction may be open.",
)
@json_option
@connected
def doctor(
    connection: Connection,
    target: str | None,
    groups: tuple[str, ...],
    topics: tuple[str, ...],
    open_for: str,
    as_json: bool,
) -> None:
    """Look for known faults of a cluster, an app or a running group.

    Without --app, --group and --topic it looks at everything that this user may see. It changes
    nothing. What could not be checked is named with the reason, on standard error.

    Exit status: 0 when nothing was found, 1 when something was.
    """
    from onceflow.cli.doctor.checks import CHECKS
    from onceflow.cli.doctor.facts import Facts, Wish
    from onceflow.cli.doctor.findings import examine
    from onceflow.sdk import Admin

    wish = Wish(groups, topics, duration_ms(open_for))
    app, misconfigured = (None, "") if target is None else _application(connection, target)
    settings = connection.settings if app is None else app.settings.client
    with Admin(config=settings.admin()) as admin:
        found, skipped = examine(CHECKS, Facts(connection, admin, wish, app, misconfigured))
    _show(found, skipped, as_json)
    if found:
        raise SystemExit(1)


def _application(connection: Connection, target: str) -> tuple[App | None, str]:
    """Import an application and give it the settings of the command line, as ``run`` does.

    Returns:
        The application, and why its settings were refused; one of the two is empty.
    """
    from onceflow.cli.run import load_app
    from onceflow.sdk.errors import ConfigError

    try:
        app = load_app(target)
        changes = {
            "client": connection.settings if connection.is_given else None,
            "bootstrap_servers": connection.bootstrap,
            "slot": os.environ.get(SLOT_VARIABLE),
        }
        app.configure(**{name: value for name, value in changes.items() if value is not None})
    except ConfigError as error:
        return None, str(error)
    return app, ""


def _show(found: list[Finding], skipped: list[Skipped], as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "findings": [each._asdict() for each in found],
                "skipped": [each._asdict() for each in skipped],
            }
        )
        return
    for finding in found:
        click.echo(f"{finding.where}: {finding.what} [{finding.check}]")
        click.echo(f"  why:  {finding.why}")
        click.echo(f"  next: {finding.remedy}")
    for each in skipped:
        click.echo(f"not checked: {each.check}: {each.reason}", err=True)
    faults = "no fault" if not found else f"{len(found)} fault{'s' if len(found) > 1 else ''}"
    click.echo(f"{faults} found", err=bool(found))
