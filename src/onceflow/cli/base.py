"""Base classes of all commands: errors without a traceback, exit status, "did you mean".

Loads click only, so that ``onceflow --help`` starts quickly. How a client's error becomes a
message and an exit status is decided in ``failures``, which is imported when one occurs.
"""

from __future__ import annotations

from typing import Any, Final

import click

INTERRUPTED: Final = 130
"""Exit status after Ctrl-C, as of a shell: 128 and the number of SIGINT."""


class Failure(click.ClickException):
    """An error that ends the command.

    Args:
        message: What happened, and on further lines the next step.
        exit_code: Exit status of the process.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc] # click declares it for the class

    def __reduce__(self) -> tuple[type[Failure], tuple[str, int], dict[str, object]]:
        """Pickle with both arguments and the notes."""
        return type(self), (self.message, self.exit_code), self.__dict__


class Command(click.Command):
    """A command that reports errors of clients by message and exit status."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Make a command with ``-h`` as a short form of ``--help``."""
        options["context_settings"] = {
            "help_option_names": ["-h", "--help"],
            **(options.get("context_settings") or {}),
        }
        super().__init__(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises:
            Failure: A client raised an error.
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            from onceflow.cli.failures import failure_of  # Late: loads the SDK's errors.

            failure = failure_of(error)
            if failure is None:
                raise
            raise failure from error


class Group(click.Group):
    """A group of commands; an unknown name is answered with the nearest ones."""

    command_class: type[click.Command] | None = Command

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Make a group with ``-h`` as a short form of ``--help``."""
        options["context_settings"] = {
            "help_option_names": ["-h", "--help"],
            **(options.get("context_settings") or {}),
        }
        super().__init__(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        """Find the command, which may import its module, and run it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # Outside of a command click would say that it failed.
            raise click.exceptions.Exit(INTERRUPTED) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the commands, in the order in which the module declares them."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments begin with.

        Raises:
            UsageError: There is no such command; the nearest ones are named.
        """
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            import difflib  # Late: only for the message.

            known = self.list_commands(ctx)
            nearest = difflib.get_close_matches(name, known, n=2)
            remedy = (
                f"did you mean {' or '.join(nearest)}?"
                if nearest
                else f"there are {', '.join(known)}"
            )
            ctx.fail(f"no such command {name!r}; {remedy}")
        return super().resolve_command(ctx, args)
