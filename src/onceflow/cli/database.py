"""The option that names a database of PostgreSQL, for commands that connect to one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from onceflow.cli.base import Failure
from onceflow.cli.connect import DSN_VARIABLE

PASSWORD_FREE = (
    "a password there can be read by everybody on this machine; put it into the variable "
    f"{DSN_VARIABLE} or PGPASSWORD, or into the file ~/.pgpass"
)


def with_database(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the option ``--dsn``; it gets ``dsn``.

    Args:
        function: The command's function.
    """

    @click.option(
        "--dsn",
        envvar=DSN_VARIABLE,
        required=True,
        metavar="ADDRESS",
        help="The database, such as postgresql://user@host:5432/shop or 'host=... dbname=...', "
        f"without a password. [variable: {DSN_VARIABLE}]",
    )
    @functools.wraps(function)
    def with_dsn(*arguments: Any, dsn: str, **options: Any) -> Any:
        try:
            from onceflow.transactions.postgres_client import has_password, psycopg
        except ImportError as error:
            raise Failure(f"{error}\nNext: pip install 'onceflow[postgres]'", 2) from error
        source = click.get_current_context().get_parameter_source("dsn")
        if source is ParameterSource.COMMANDLINE and has_password(dsn):
            raise click.UsageError(f"--dsn: {PASSWORD_FREE}")
        try:
            return function(*arguments, dsn=dsn, **options)
        except psycopg.OperationalError as error:
            told = " ".join(str(error).split())
            raise Failure(f"the database cannot be used: {told}\nNext: check --dsn", 4) from error

    return with_dsn
