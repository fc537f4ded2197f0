"""An application: processors declared by decorator, and the ways to run them.

Declaring needs no network and no files. Everything that happens at run time is in ``runner``; this
module only chooses how it is driven: blocking, or beside an event loop.
"""

from __future__ import annotations

import asyncio
import copy
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Unpack, cast

from onceflow.processors.aggregates import Ready
from onceflow.processors.calls import InPlace, OnThread
from onceflow.processors.clock import TimeOf
from onceflow.processors.declare.batches import check_alone, declare_batch
from onceflow.processors.declare.functions import (
    Declaration,
    F,
    check_targets,
    declare_function,
    to_nodes,
)
from onceflow.processors.declare.joins import Joining, Kind, declare_join
from onceflow.processors.declare.options import FunctionOptions, check_known
from onceflow.processors.declare.sinks import declare_sink
from onceflow.processors.declare.tables import declare_global_table, declare_table
from onceflow.processors.declare.timers import declare_timer
from onceflow.processors.declare.windows import Emit, Windowing, declare_aggregate
from onceflow.processors.errors import DeclarationError, ForcedShutdown
from onceflow.processors.graph.specs import check_name
from onceflow.processors.graph.topology import Topology, build
from onceflow.processors.hooks import Hook, declare_hook
from onceflow.processors.policies import Parking
from onceflow.processors.replacing import Replacements, Runs
from onceflow.processors.report import RunReport
from onceflow.processors.services import Services
from onceflow.processors.settings import AppSettings
from onceflow.processors.signals import EXIT_FORCED, ShutdownSignals
from onceflow.processors.tables import GlobalLookup, GlobalTable, K, Table, V
from onceflow.processors.values import Format
from onceflow.processors.windows import Hopping, Session, Tumbling
from onceflow.processors.worker import Worker
from onceflow.sdk import ClientSettings
from onceflow.transactions.colour import run_blocking
from onceflow.transactions.sinks import Sink

if TYPE_CHECKING:
    from onceflow.processors.figures import WorkerFigures
    from onceflow.processors.keywords import AppKeywords
    from onceflow.sdk.settings.sources import ClientSource


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
        self._declared: list[Declaration] = []
        self._hooks: list[Hook] = []
        self._worker: Worker | None = None
        self._stop_asked = False
        self._is_held = False

    def processor(
        self,
        topic: str | Callable[..., object] | Sequence[str],
        *,
        to: str | None = None,
        key: Callable[..., object] | None = None,
        branches: Mapping[str, str] | None = None,
        batch: int | None = None,
        concurrency: int = 1,
        park: bool | Parking = False,
        **options: Unpack[FunctionOptions],
    ) -> Callable[[F], F]:
        """Declare a function as a processor of a topic, or of another processor's results.

        Several functions may read one topic: each gets every record. One function may read several
        topics, whose records come in the order of their timestamps. A function that is given
        another one in place of a topic gets what that one returns, without a topic in between;
        one record and all calls that follow from it are committed together.

        What the function returns is what is written: a value goes to ``to`` under the record's
        key, a list or whatever is yielded gives several, an ``Output`` names topic, key, headers
        or partition itself, None writes nothing.

        With ``batch`` it takes up to so many records of a partition: lists, ``list[Order]``, or
        Arrow data, ``pyarrow.RecordBatch`` (objects as columns) or ``pyarrow.Array``. It returns
        one result for each record, or None. A call that fails is repeated with halves.

        With ``concurrency`` calls of an async function overlap, for different keys of a partition
        and for records without a key. Outputs of a partition keep the order of its records.

        Args:
            topic: Input topic, or several with one partition count; or a declared processor.
            to: Topic of returned values.
            key: Another key by the value; records then go through a repartition topic first.
            branches: Further topics by name, for ``Output(value, branch="name")``.
            batch: Most records in one call.
            park: Whether a record that waits for its retry is parked with those of its key behind
                it, while other keys go on: True, or ``Parking`` with bounds.
            concurrency: Most calls at once for each partition, 1 to 10,000; for async functions.
            **options: ``name``, the function's by default, names the changelogs. ``dead_letter``
                is the topic of records that fail for good, and makes that the policy. ``retries``
                are further attempts, a number or ``Retries``. ``on_error`` follows the last one:
                ``stop`` (default) or ``skip``. ``limits`` say how many dead letters are too many.
                ``format`` is ``json`` or ``msgpack`` for structured values, ``store`` is ``lmdb``
                or ``memory`` for committed state. ``migrations`` hold a ``Migration`` from each
                earlier type of a state, by its name.

        Returns:
            A decorator that returns the function unchanged.

        Raises:
            DeclarationError: A parameter cannot be filled, a type has no codec, a name is taken.
        """
        check_known(App.processor, options)
        single = {"key": key, "branches": branches, "concurrency": concurrency, "park": park}

        def declare(function: F) -> F:
            self._add(self._declared_as(function, topic, to, batch, single, options))
            return function

        return declare

    def _declared_as(
        self,
        function: F,
        topic: str | Callable[..., object] | Sequence[str],
        to: str | None,
        batch: int | None,
        single: Mapping[str, Any],
        options: FunctionOptions,
    ) -> Declaration:
        """The declaration of a processor: of one that takes single records, or many at once."""
        if batch is None:
            resources = self._given()
            return declare_function(
                function,
                known=self._declared,
                source=topic,
                to=to,
                resources=resources,
                **single,
                **options,
            )
        plain = {"concurrency": 1, "park": False}
        check_alone(**{n: value for n, value in single.items() if value != plain.get(n)})
        return declare_batch(function, self._declared, topic, batch=batch, to=to, options=options)

    def aggregate(
        self,
        topic: str | Callable[..., object] | Sequence[str],
        *,
        window: Tumbling | Hopping | Session,
        to: str | None = None,
        fold: Ready | None = None,
        merge: Callable[..., object] | None = None,
        time: TimeOf | None = None,
        idle: timedelta | None = None,
        late: str | None = None,
        emit: Emit | str = Emit.CLOSE,
        key: Callable[..., object] | None = None,
        **options: Unpack[FunctionOptions],
    ) -> Callable[[F], F]:
        """Declare a function that folds the records of a key, window by window of event time.

        The function takes a value and the accumulator and returns the next accumulator; the
        default of that parameter begins each window. With ``fold=Sum()`` or another ready
        aggregate it takes a value alone and returns what is folded. It may also take ``key``,
        ``headers`` and a ``Window``. The result has the key of its records and, as its timestamp,
        the last millisecond of the window.

        A window closes when stream time, the greatest event time so far, reaches its end plus
        grace. It never opens again: a record that comes later is late.

        Args:
            topic: Input topic, or several with one partition count; or a function that is a
                processor of this application already.
            window: ``Tumbling``, ``Hopping`` or ``Session``.
            to: Topic of the results.
            fold: A ready aggregate: ``Count``, ``Sum``, ``Mean``, ``Min``, ``Max``, ``Collect``,
                ``Reduce``.
            merge: For sessions of a fold: makes one accumulator of two.
            time: Event time by the value: a datetime with a zone, or milliseconds since 1970; the
                record's timestamp by default.
            idle: Silence of the input after which the wall clock closes windows; by default they
                wait for a later record.
            late: Topic of records whose windows are all closed, in the same transaction; by
                default they are dropped with a warning.
            emit: ``close`` gives one result when a window closes, ``update`` one for each record.
            key: Another key by the value; see ``processor``.
            **options: As of ``processor``; the state to migrate is named ``windows``.

        Returns:
            A decorator that returns the function unchanged.

        Raises:
            DeclarationError: A parameter cannot be filled, a type has no codec, a name is taken,
                or sessions cannot be merged.
        """
        check_known(App.aggregate, options)
        windowing = Windowing(window, to, fold, merge, time, idle, late, emit, key)

        def declare(function: F) -> F:
            self._add(declare_aggregate(function, self._declared, topic, windowing, options))
            return function

        return declare

    def table(
        self,
        topic: str,
        value: type[V],
        *,
        key: type[K] = bytes,  # type: ignore[assignment]
        **options: Unpack[FunctionOptions],
    ) -> Table[K, V]:
        """Declare a topic as a table: the latest value of each key.

        ::

            customers = app.table("customers", Customer, key=str)

            @app.processor("orders", to="enriched")
            def enrich(order: Order, customer: Annotated[Customer | None, customers]) -> Enriched:
                ...

        The function gets the row of its record's key. The table is read to its end before the
        first record that the application ever takes; from then on rows and records are taken in
        the order of their timestamps (``max_task_idle_ms``). Both topics need the same partition
        count.

        Args:
            topic: The topic; its records without a value delete their key.
            value: Type of the values.
            key: Type of the keys.
            **options: As of ``processor``; the name is the topic's by default.

        Returns:
            The table, to annotate parameters with.

        Raises:
            DeclarationError: The topic is a table already, or a type has no codec.
        """
        check_known(App.table, options)
        declared = declare_table(topic, value, key, self._declared, options)
        self._add(declared)
        return cast("Table[K, V]", declared.function)

    def global_table(
        self,
        topic: str,
        value: type[V],
        *,
        key: type[K] = bytes,  # type: ignore[assignment]
        name: str | None = None,
        format: Format | str = Format.JSON,
    ) -> GlobalTable[K, V]:
        """Declare a topic as a global table: every worker holds the rows of all partitions.

        ::

            countries = app.global_table("countries", Country, key=str)

            @app.processor("orders", to="enriched")
            def enrich(
                order: Order,
                country: Annotated[Country | None, countries.by(lambda order: order.country)],
            ) -> Enriched: ...

        Any key can be looked up, and the topic may have any partition count. Each worker reads the
        topic before it takes its first record, from the beginning to the last stable offset, and
        follows it afterwards; only committed records count. Rows are kept in memory and read again
        after a restart, and there is no changelog.

        As with Kafka Streams' ``GlobalKTable``, rows and records are not synchronised in time: a
        record meets the row that its worker has read by then, and one that is processed again
        after an abort may meet a later row.

        Args:
            topic: The topic; its records without a value delete their key.
            value: Type of the values. A record that does not fit it ends the worker.
            key: Type of the keys.
            name: The topic's by default.
            format: ``json`` or ``msgpack`` for structured values.

        Returns:
            The table, to annotate parameters with.

        Raises:
            DeclarationError: The topic is a table already, or a type has no codec.
        """
        declared = declare_global_table(topic, value, key, self._declared, name, format)
        self._add(declared)
        return cast("GlobalTable[K, V]", declared.function)

    def join(
        self,
        left: str | Callable[..., object],
        right: str | Callable[..., object] | GlobalLookup,
        *,
        within: timedelta | None = None,
        grace: timedelta | None = None,
        kind: Kind | str = Kind.INNER,
        to: str | None = None,
        time: TimeOf | None = None,
        idle: timedelta | None = None,
        late: str | None = None,
        **options: Unpack[FunctionOptions],
    ) -> Callable[[F], F]:
        """Declare a function that joins two streams by key, two tables, or a stream with a table.

        A stream is a topic, or a function that is a processor already: its results are joined.
        Two records are partners when they have one key and are at most ``within`` apart. The
        function gets both values (and ``key``) and gives the result, whose timestamp is the later
        one of the two. A result without a partner is given when no partner can come any more:
        when stream time is past ``within`` and ``grace``.

        Of two tables each change gives the new result of its key, or deletes it.

        A table on the right of a stream is looked up: each record of the stream gives a result
        with the row of its key, and of a global table with that of any key::

            @app.join("orders", countries.by(lambda order: order.country), to="priced")
            def price(order: Order, country: Country) -> Priced: ...

        Args:
            left: A topic, a processor, or a table.
            right: Another topic with the same partition count, another processor, a table, or a
                global table, also with ``by``.
            within: Longest time between partners, before or after; of streams alone.
            grace: How long records may come late, in stream time.
            kind: ``inner``, ``left`` (also left ones without a partner) or ``outer``.
            to: Topic of the results.
            time: Event time by the value, of either side; the record's timestamp by default.
            idle: Silence of both inputs after which the wall clock goes on in place of records.
            late: Topic of records that come when their time is over; by default they are dropped
                with a warning.
            **options: As of ``processor``.

        Returns:
            A decorator that returns the function unchanged.

        Raises:
            DeclarationError: A parameter cannot be filled, may be missing and is not annotated so,
                or both sides are one.
        """
        check_known(App.join, options)
        joining = Joining(left, right, within, grace, kind, to, time, idle, late)

        def declare(function: F) -> F:
            self._add(declare_join(function, self._declared, joining, options))
            return function

        return declare

    def timer(
        self,
        owner: Callable[..., object],
        *,
        to: str | None = None,
        **options: Unpack[FunctionOptions],
    ) -> Callable[[F], F]:
        """Declare the function that is called when timers of another one are due.

        ``owner`` sets them through a parameter annotated ``Timers``. The function may take
        ``key``, the ``Timer``, ``Timers`` to set further ones, and states of the owner by their
        names; what it returns goes to ``to`` under the key, with the time when it was due.

        Args:
            owner: A processor of this application that sets timers.
            to: Topic of returned values.
            **options: As of ``processor``.

        Returns:
            A decorator that returns the function unchanged.

        Raises:
            DeclarationError: The owner sets no timers, or a parameter cannot be filled.
        """
        check_known(App.timer, options)

        def declare(function: F) -> F:
            self._add(declare_timer(function, self._declared, owner, to, options, self._given()))
            return function

        return declare

    def sink(
        self,
        topic: str | Callable[..., object] | Sequence[str],
        sink: Sink,
        *,
        concurrency: int = 1,
        **options: Unpack[FunctionOptions],
    ) -> Callable[[F], F]:
        """Declare a function that makes rows of records, and the sink that stores them.

        ::

            @app.sink("orders", Postgres("postgresql://localhost/shop", key=["id"]))
            def store(order: Order) -> dict[str, object]:
                return {"id": order.id, "item": order.item}

        Rows and offsets are committed in one transaction of the sink, so each record's rows are
        stored once; the group's offsets only show the lag. Nothing else of the application may be
        committed by Kafka: it holds functions with this sink, and functions in front of them
        without topics or states of their own. Dead letters are sent and acknowledged before the
        sink's commit; a death in between sends them again.

        Args:
            topic: Input topic, or several with one partition count; or a declared processor.
            sink: Where rows go. Each worker opens a copy. ``Postgres`` and ``Sqlite`` without a
                table take the topic's name.
            concurrency: Most calls at once for each partition, for async functions.
            **options: As of ``processor``. A row that the sink refuses meets the policy too.

        Returns:
            A decorator that returns the function unchanged. It gives a row, several, or None: a
            dictionary by column name, a dataclass or a ``msgspec.Struct``.

        Raises:
            DeclarationError: A parameter cannot be filled, the function gives no rows, the sink is
                none, or something else of the application is committed by Kafka.
        """
        check_known(App.sink, options)

        def declare(function: F) -> F:
            self._add(
                declare_sink(
                    function,
                    self._declared,
                    topic,
                    sink,
                    concurrency=concurrency,
                    resources=self._given(),
                    options=options,
                )
            )
            return function

        return declare

    def startup(self, function: F) -> F:
        """Declare a function that runs before the first record is taken.

        ::

            @app.startup
            def connect() -> Geocoder:
                return Geocoder("geo.example.org")

            @app.processor("visits", to="places")
            def place(visit: Visit, geo: Geocoder) -> str:
                return geo.name_of(visit.latitude, visit.longitude)

        What it gives is handed to functions that are declared behind it, and to shutdown functions,
        by its annotated type. It may be async. An error in it ends the application.

        Args:
            function: Takes what startup functions above it give, and gives one object, or None.

        Returns:
            The function unchanged.

        Raises:
            DeclarationError: A type is missing, cannot be told from a record's, or is given twice.
        """
        self._hooks.append(declare_hook(function, self._hooks, at_start=True))
        return function

    def shutdown(self, function: F) -> F:
        """Declare a function that runs when the application ends, also by an error.

        Shutdown functions run in the reverse order of their declaration, after the last commit;
        one whose objects do not exist, because a startup function failed, is left out.

        Args:
            function: Takes what startup functions above it give.

        Returns:
            The function unchanged.

        Raises:
            DeclarationError: No startup function gives what it takes.
        """
        self._hooks.append(declare_hook(function, self._hooks, at_start=False))
        return function

    def _given(self) -> list[object]:
        """Types of what startup functions give."""
        return [hook.gives for hook in self._hooks if hook.gives is not None]

    def _add(self, declared: Declaration) -> None:
        self._build([*self._declared, declared])
        self._declared.append(declared)

    def _build(self, declared: Sequence[Declaration]) -> Topology:
        group = self.settings.group_of(self.name)
        shared = [each.function for each in declared if isinstance(each.function, GlobalTable)]
        return build(self.name, group, to_nodes(declared, group), self._hooks, shared)

    def topology(self) -> Topology:
        """The declared processors as a graph; ``print`` it to read it.

        Raises:
            DeclarationError: A function returns values that have nowhere to go.
        """
        check_targets(self._declared)
        return self._build(self._declared)

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

    def run(self, *, until_end: bool = False) -> RunReport:
        """Process until SIGINT, SIGTERM or ``stop``, or to the end of what there is now.

        The first signal lets the record in hand finish and commits what is processed, within
        ``shutdown_timeout_ms``; a second one, or the end of that time, aborts instead and exits
        with status 130. SIGINT and ``stop`` give the partitions to others at once. After SIGTERM
        they wait for the next start of this worker until its session times out, so that a rolling
        restart moves nothing; ``leave_on_sigterm=True`` gives them up too.

        Args:
            until_end: Take the ends of all inputs at the start, process what is in front of them
                and what follows from it, commit, and return. Windows and timers that are not due
                then stay open for the next run. Of several such workers each returns when the
                group has committed everything.

        Returns:
            What was processed and committed, by task.

        Raises:
            ProcessingError: A record failed and the policy is to stop.
            TopicSetupError: A topic is missing or does not fit.
            KafkaError: The brokers cannot be reached, or refuse.
            SystemExit: The shutdown was forced.
        """
        is_async = self.topology().is_async

        async def beside_a_loop(worker: Worker) -> None:
            await worker.run(OnThread(worker.interrupt))

        def drive(worker: Worker) -> None:
            if is_async:
                asyncio.run(beside_a_loop(worker))
            else:
                run_blocking(worker.run(InPlace()))

        runs = self._runs(until_end=until_end)
        try:
            with ShutdownSignals(self.stop_by, self.settings.shutdown_timeout_ms):
                while (worker := runs.next()) is not None:
                    with runs.of(worker):
                        drive(worker)
        except ForcedShutdown:
            raise SystemExit(EXIT_FORCED) from None
        return runs.report()

    async def run_async(self, *, until_end: bool = False) -> RunReport:
        """Process until ``stop`` or cancellation, within a running event loop.

        Installs no signal handlers. Heartbeats go on while a handler blocks the loop. Raises what
        ``run`` raises.

        Args:
            until_end: As for ``run``.

        Returns:
            As ``run``.
        """
        runs = self._runs(until_end=until_end)
        while (worker := runs.next()) is not None:
            with runs.of(worker):
                await worker.run(OnThread(worker.interrupt))
        return runs.report()

    def _runs(self, *, until_end: bool) -> Runs:
        self._stop_asked = False

        def make() -> Worker:
            return self._make_worker(until_end=until_end)

        def gone() -> None:
            self._worker = None

        bounds = Replacements(self.settings, time.monotonic)
        return Runs(make, gone, bounds, lambda: self._stop_asked)

    @property
    def figures(self) -> WorkerFigures | None:
        """Counters of the running worker, and a picture of its tasks; None without a worker."""
        worker = self._worker
        return None if worker is None else worker.figures

    def stop(self) -> None:
        """Ask a running application for an orderly end; callable from any thread."""
        self._stop(leave_group=True)

    def stop_by(self, number: signal.Signals) -> None:
        """Ask for an orderly end as a signal does; callable from any thread.

        Args:
            number: SIGINT gives the partitions to others at once. SIGTERM leaves them to the next
                start of this worker, unless ``leave_on_sigterm`` is set.
        """
        # A rolling restart, which sends SIGTERM, moves no partition (KIP-345).
        leave = number is not signal.SIGTERM or self.settings.leave_on_sigterm
        self._stop(leave_group=leave)

    def twin(self, slot: str | None = None) -> App:
        """Return the same application for another worker of this process.

        Args:
            slot: Its slot; None leaves the setting as it is.
        """
        twin = copy.copy(self)
        twin._worker = None
        twin._stop_asked = twin._is_held = False
        if slot is not None:
            twin.configure(slot=slot)
        return twin

    def pause(self) -> None:
        """Take no records until ``resume``; callable from any thread.

        What is processed is committed. The worker stays in its group and keeps its partitions, and
        its state is restored and ready. Calls in hand end first.
        """
        self._hold(held=True)

    def resume(self) -> None:
        """Take records again after ``pause``; callable from any thread."""
        self._hold(held=False)

    def _hold(self, *, held: bool) -> None:
        self._is_held = held
        worker = self._worker
        if worker is not None:
            worker.hold(held=held)

    def _stop(self, *, leave_group: bool) -> None:
        self._stop_asked = True
        worker = self._worker
        if worker is not None:
            worker.stop(leave_group=leave_group)

    def _make_worker(self, services: Services | None = None, *, until_end: bool = False) -> Worker:
        if not self._declared:
            raise DeclarationError(
                f"application {self.name} has no processors; declare one with @app.processor"
            )
        if self._worker is not None:
            raise DeclarationError(
                f"application {self.name} is running already; start another process for "
                "another worker"
            )
        if services is None:
            from onceflow.processors.kafka_services import KafkaServices

            services = KafkaServices(self.settings)
        topology = self.topology()
        self._worker = worker = Worker(topology, self.settings, services, until_end=until_end)
        if self._stop_asked:  # While that was made.
            worker.stop()
        worker.hold(held=self._is_held)
        return worker
