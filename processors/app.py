"""An application: processors declared by decorator, and the ways to run them.

Declaring needs no network and no files. Everything that happens at run time is in ``runner``; this
module only chooses how it is driven: blocking, or beside an event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Unpack, cast

from onceflow.processors.calls import DirectCalls, ThreadCalls
from onceflow.processors.decorators import F, build_spec
from onceflow.processors.errors import DeclarationError, ForcedShutdown
from onceflow.processors.policies import DeadLetterLimits, OnError, Retries
from onceflow.processors.runner import Runner, Services
from onceflow.processors.settings import AppSettings
from onceflow.processors.signals import ShutdownSignals
from onceflow.processors.topology import (
    ProcessorSpec,
    StoreKind,
    Topology,
    check_name,
    check_topology,
)
from onceflow.processors.values import Format
from onceflow.sdk import ClientSettings
from onceflow.transactions.colour import run_blocking

if TYPE_CHECKING:
    from onceflow.processors.keywords import AppKeywords
    from onceflow.sdk.settings.sources import ClientSource

NO_LIMITS = DeadLetterLimits()

EXIT_FORCED = 130
"""Exit status after a forced shutdown, as after an interrupt in a shell."""


class App:
    """A stream processing application.

    ::

        app = App("shout", bootstrap_servers="localhost:9092")

        @app.processor("words", to="loud-words")
        def shout(word: str) -> str:
            return word.upper()

        app.run()

    Every process that runs it is one worker; the group spreads the partitions over them.

    Args:
        name: Names the group, the transactional ids and the changelog topics: keep it.
        bootstrap_servers: Addresses as ``host:port``; default ``localhost:9092``.
        **settings: Settings of applications, and of the sessions, producers and consumers under
            them, such as ``client``, ``security``, ``commit_interval_ms`` or ``linger_ms``:
            docs/configuration.md. ``client`` is for every client that the application makes, also
            for topics and changelogs: ``ClientSettings``, Kafka's names, or the path of a file.

    Raises:
        ConfigError: A setting cannot work.
        DeclarationError: The name cannot be part of a topic name.
    """

    def __init__(
        self,
        name: str,
        bootstrap_servers: str | Sequence[str] | None = None,
        **settings: Unpack[AppKeywords],
    ) -> None:
        check_name("application name", name)
        self.name = name
        address = {} if bootstrap_servers is None else {"bootstrap_servers": bootstrap_servers}
        self.settings: AppSettings = AppSettings.build({**settings, **address})
        self._specs: list[ProcessorSpec] = []
        self._runner: Runner | None = None
        self._stop_asked = False

    def processor(
        self,
        topic: str,
        *,
        to: str | None = None,
        name: str | None = None,
        dead_letter: str | None = None,
        retries: int | Retries = 0,
        on_error: OnError | str | None = None,
        limits: DeadLetterLimits = NO_LIMITS,
        format: Format | str = Format.JSON,
        store: StoreKind | str = StoreKind.LMDB,
    ) -> Callable[[F], F]:
        """Declare a function as the processor of a topic.

        What the function returns is what is written: a value goes to ``to`` under the record's
        key, a list or whatever is yielded gives several, an ``Output`` names topic, key, headers
        or partition itself, None writes nothing.

        Args:
            topic: Input topic.
            to: Topic of returned values.
            name: Name of the processor, the function's by default; names the changelogs.
            dead_letter: Topic of records that fail for good; makes that the policy.
            retries: Further attempts at a record that fails: a number, or ``Retries``.
            on_error: What follows the last attempt: ``stop`` (default) or ``skip``.
            limits: How many dead letters are too many.
            format: ``json`` or ``msgpack`` for structured values.
            store: ``lmdb`` or ``memory`` for committed state.

        Returns:
            A decorator that returns the function unchanged.

        Raises:
            DeclarationError: A parameter cannot be filled, a type has no codec, or the topic has
                a processor already.
        """

        def declare(function: F) -> F:
            spec = build_spec(
                function,
                app=self.name,
                input_topic=topic,
                to=to,
                name=name,
                dead_letter=dead_letter,
                retries=retries,
                on_error=on_error,
                limits=limits,
                format=format,
                store=store,
            )
            check_topology(self.name, [*self._specs, spec])
            self._specs.append(spec)
            return function

        return declare

    def topology(self) -> Topology:
        """The declared processors; ``print`` it to read it."""
        return check_topology(self.name, self._specs)

    def configure(self, **changes: object) -> None:
        """Change settings of a declared application, as the command line does.

        Args:
            **changes: Settings as for the constructor; those that ``client`` holds win too.

        Raises:
            ConfigError: A setting cannot work.
        """
        if "client" in changes:
            client = ClientSettings.of(cast("ClientSource", changes["client"]))
            changes["client"] = self.settings.client.merged(client)
        self.settings = self.settings.replace(**changes)

    # Running -------------------------------------------------------------------------------

    def run(self) -> None:
        """Process until SIGINT, SIGTERM or ``stop``.

        The first signal lets the record in hand finish and commits what is processed, within
        ``shutdown_timeout_ms``; a second one, or the end of that time, aborts instead and exits
        with status 130.

        Raises:
            ProcessingError: A record failed and the policy is to stop.
            TopicSetupError: A topic is missing or does not fit.
            KafkaError: The brokers cannot be reached, or refuse.
            SystemExit: The shutdown was forced.
        """
        runner = None
        self._stop_asked = False
        try:
            with ShutdownSignals(self.stop, self.settings.shutdown_timeout_ms):
                runner = self._make_runner()
                if self.topology().is_async:
                    asyncio.run(runner.run(ThreadCalls(runner.interrupt)))
                else:
                    run_blocking(runner.run(DirectCalls()))
        except ForcedShutdown:
            raise SystemExit(EXIT_FORCED) from None
        finally:
            if runner is not None:  # else another thread's may be at work
                self._runner = None

    async def run_async(self) -> None:
        """Process until ``stop`` or cancellation, within a running event loop.

        Installs no signal handlers. Heartbeats go on while a handler blocks the loop. Raises what
        ``run`` raises.
        """
        self._stop_asked = False
        runner = self._make_runner()
        try:
            await runner.run(ThreadCalls(runner.interrupt))
        finally:
            self._runner = None

    def stop(self) -> None:
        """Ask a running application for an orderly end; callable from any thread."""
        self._stop_asked = True
        runner = self._runner
        if runner is not None:
            runner.stop()

    def _make_runner(self, services: Services | None = None) -> Runner:
        if not self._specs:
            raise DeclarationError(f"application {self.name} has no processors")
        if self._runner is not None:
            raise DeclarationError(f"application {self.name} is running; start another process")
        if services is None:
            from onceflow.processors.kafka_services import KafkaServices

            services = KafkaServices(self.settings)
        self._runner = Runner(self.topology(), self.settings, services)
        if self._stop_asked:  # while that was made
            self._runner.stop()
        return self._runner
