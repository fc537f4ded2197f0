"""The command ``onceflow completion``: scripts by which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from onceflow.cli.base import Command
from onceflow.cli.output import json_option, print_json


@click.command(cls=Command, epilog='Example: eval "$(onceflow completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
@click.pass_context
def completion(ctx: click.Context, shell: str, as_json: bool) -> None:
    """Print the script that makes a shell complete commands and options.

    Put the line of the example into the shell's start file.
    """
    found = get_completion_class(shell)
    assert found is not None, "the three shells are click's own"
    script = found(ctx.find_root().command, {}, "onceflow", "_ONCEFLOW_COMPLETE").source()
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        click.echo(script)
