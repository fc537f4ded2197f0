"""Calls the command ``onceflow`` in this process, as a shell would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner, Result

from onceflow.cli import main


@dataclass(frozen=True)
class CommandLine:
    """The command line with the address of one cluster.

    Attributes:
        bootstrap: Addresses of its brokers.
    """

    bootstrap: str

    def call(
        self,
        *arguments: str,
        status: int | None = 0,
        input: str | bytes | None = None,
        environ: Mapping[str, str | None] | None = None,
    ) -> Result:
        """Run a command and check its exit status.

        Args:
            arguments: The command's words.
            status: Exit status that is expected; None for any.
            input: Standard input.
            environ: Environment variables besides the address.
        """
        variables = {"ONCEFLOW_BOOTSTRAP_SERVERS": self.bootstrap, **(environ or {})}
        result = CliRunner().invoke(
            main, arguments, input=input, env=variables, prog_name="onceflow"
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert status in (None, result.exit_code), result.output
        return result

    def json(self, *arguments: str) -> Any:
        """Run a command with ``--json`` and return the document that it prints."""
        return json.loads(self.call(*arguments, "--json").stdout)

    def error(self, *arguments: str, status: int) -> str:
        """Run a command that fails with a status, and return what it says."""
        return self.call(*arguments, status=status).stderr
