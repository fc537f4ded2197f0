"""An application: processors declared by decorator, and the ways to run them.

Declaring needs no network and no files. ``worker`` is the loop that runs an application; this
module only chooses how to drive it: blocking, or beside an event loop.
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
from onceflow.processors.declare.sinks import declare_batch_sink, declare_sink
from onceflow.processors.declare.tables import declare_global_table, declare_table
from onceflow.processors.declare.timers import declare_timer
from onceflow.processors.declare.windows import Emit, Windowing, declare_aggregate
from onceflow.processors.errors import DeclarationError, ForcedShutdown, StateNotReadyError
from onceflow.processors.graph.specs import check_name
from onceflow.processors.graph.topology import Topology, build
from onceflow.processors.hooks import Hook, declare_hook
from onceflow.processors.policies import Parking
from onceflow.processors.queries import Answer, Query
from onceflow.processors.report import RunReport
from onceflow.processors.services import Services
from onceflow.processors.settings import AppSettings
from onceflow.processors.signals import EXIT_FORCED, ShutdownSignals
from onceflow.processors.tables import GlobalLookup, GlobalTable, K, Table, V
from onceflow.processors.values import Format
from onceflow.processors.windows import Hopping, Session, Tumbling
from onceflow.processors.worker.loop import Worker
from onceflow.processors.worker.replacing import Replacements, Runs
from onceflow.sdk import ClientSettings
from onceflow.transactions.colour import run_blocking
from onceflow.transactions.sinks import Sink

if TYPE_CHECKING:
    from onceflow.processors.figures import WorkerFigures
    from onceflow.processors.keywords import AppKeywords
    from onceflow.sdk.settings.sources import ClientSource
    from onceflow.spark_integration.apps.pipeline import SparkPipeline, SparkSessionType


class App:
    """A stream processing application.

    ::

        app = App("shout", bootstrap_servers="localhost:9092")

        @app.processor("words", to="loud-words")
        def shout(word: str) -> str:
            return word.upper()

        app.run()

    Each process that runs it is one worker; the group divides the partitions among the workers.

    Args:
        name: Names the group, the transactional ids and the changelog topics. With another name
            the application starts without offsets and state.
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
        self._figures: WorkerFigures | None = None
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
        topics: it gets their records in the order of their timestamps. A function that is declared
        with another function in place of a topic gets that one's results, without a topic in
        between; one record and all calls that follow from it are committed together.

        The function's results are written: a value goes to ``to`` with the record's key, a list or
        a generator gives several, an ``Output`` names topic, key, headers or partition itself, and
        None writes nothing.

        With ``batch`` the function takes up to that many records of a partition: as lists,
        ``list[Order]``, or as Arrow data, ``pyarrow.RecordBatch`` (objects as columns) or
        ``pyarrow.Array``. It returns one result for each record, or None. After a call that
        failed, it is called with halves of the records.

        With ``concurrency`` calls of an async function overlap, for different keys of a partition
        and for records without a key. Outputs of a partition keep the order of its records.

        Args:
            topic: Input topic, or several with one partition count; or a declared processor.
            to: Topic of returned values.
            key: Returns another key for a value; records then go through a repartition topic first.
            branches: Further topics by name, for ``Output(value, branch="name")``.
            batch: Most records in one call.
            park: Whether a record that waits for its retry is parked, with later ones of its key,
                while other keys continue: True, or ``Parking`` with limits.
            concurrency: Most calls at once for each partition, 1 to 10,000; for async functions.
            **options: ``name``, the function's by default, names the changelogs. ``retries``
                are further attempts, a number or ``Retries``. After the last one, ``on_error`` is
                ``stop`` (default) or ``skip``; with ``dead_letter`` the record goes to that topic
                instead. ``limits`` say how many dead letters are too many.
                ``format`` is ``json`` or ``msgpack`` for structured values, ``store`` is ``lmdb``
                or ``memory`` for committed state. ``migrations`` holds a ``Migration`` from each
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
        """Return the declaration of a processor that takes single records, or many at once."""
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
        aggregate it takes only a value and returns what to fold. It may also take ``key``,
        ``headers`` and a ``Window``. The result has the key of its records; its timestamp is the
        last millisecond of the window.

        A window closes when stream time, the greatest event time so far, reaches its end plus
        grace. It never opens again: a record that comes later is late.

        Args:
            topic: Input topic, or several with the same partition count; or a declared processor.
            window: ``Tumbling``, ``Hopping`` or ``Session``.
            to: Topic of the results.
            fold: A ready aggregate: ``Count``, ``Sum``, ``Mean``, ``Min``, ``Max``, ``Collect``,
                ``Reduce``.
            merge: For sessions without ``fold``: makes one accumulator of two.
            time: Returns the event time for a value: a datetime with a zone, or milliseconds since
                1970. By default it is the record's timestamp.
            idle: Silence of the input after which the wall clock closes windows; by default they
                wait for a later record.
            late: Topic of records whose windows are all closed, in the same transaction; by
                default they are dropped with a warning.
            emit: ``close`` gives one result when a window closes, ``update`` one for each record.
            key: Returns another key for a value; see ``processor``.
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

        The function gets the row of its record's key. At its first start the application reads the
        table to its end before it takes a record; from then on it takes rows and records in the
        order of their timestamps (``max_task_idle_ms``). Both topics need the same partition
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

        A function can look up any key, and the topic may have any partition count. Before its
        first record, each worker reads the topic from the beginning to the last stable offset; it
        follows it afterwards and takes only committed records. Rows are kept in memory, without a
        changelog, and read again after a restart.

        As with Kafka Streams' ``GlobalKTable``, rows and records are not synchronised in time: a
        record gets the row that its worker has read by then. A record that is processed again
        after an abort may get a later row.

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

        A stream is a topic, or a declared processor, whose results are joined. Two records are
        partners if they have the same key and are at most ``within`` apart. The function gets both
        values (and ``key``) and returns the result; its timestamp is the later one of the two. A
        result without a partner is given when no partner can come any more: when stream time is
        past ``within`` and ``grace``.

        With two tables, each change of either gives the new result for its key, or deletes it.

        With a stream and a table, each record of the stream gives a result with the row of its
        key. With a global table it may be the row of any key::

            @app.join("orders", countries.by(lambda order: order.country), to="priced")
            def price(order: Order, country: Country) -> Priced: ...

        Args:
            left: A topic, a processor, or a table.
            right: Another topic with the same partition count, another processor, a table, or a
                global table, also with ``by``.
            within: Longest time between partners, before or after; only for two streams.
            grace: How long records may come late, in stream time.
            kind: ``inner``, ``left`` (also left ones without a partner) or ``outer``.
            to: Topic of the results.
            time: Returns the event time for a value of either side; by default it is the record's
                timestamp.
            idle: Silence of both inputs after which the wall clock moves stream time on.
            late: Topic of records that come too late for partners; by default they are dropped
                with a warning.
            **options: As of ``processor``.

        Returns:
            A decorator that returns the function unchanged.

        Raises:
            DeclarationError: A parameter cannot be filled, a parameter that may be missing does
                not allow None, or both sides are the same.
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
        names. Its results go to ``to`` with the timer's key and due time.

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
        batch: int | None = None,
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
        without output topics or states. Dead letters are sent and acknowledged before the
        sink's commit; a death in between sends them again. With ``Postgres(outbox=...)`` they are
        in the sink's transaction, each once.

        Args:
            topic: Input topic, or several with one partition count; or a declared processor.
            sink: Where rows go. Each worker opens a copy. ``Postgres`` and ``Sqlite`` without a
                table take the topic's name.
            batch: Call the function with up to so many records at once, as of ``processor``; it
                gives one entry for each record, or Arrow data with one row for each.
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
            if batch is not None:
                check_alone(concurrency=None if concurrency == 1 else concurrency)
                known = self._declared
                found: Declaration = declare_batch_sink(
                    function, known, topic, sink, batch=batch, options=options
                )
            else:
                found = declare_sink(
                    function,
                    self._declared,
                    topic,
                    sink,
                    concurrency=concurrency,
                    resources=self._given(),
                    options=options,
                )
            self._add(found)
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

        Functions that are declared after it, and shutdown functions, get its result by their
        annotated types. It may be async. An error in it ends the application.

        Args:
            function: Takes results of earlier startup functions, and returns one object, or None.

        Returns:
            The function unchanged.

        Raises:
            DeclarationError: A type is missing, is one that values have, or is returned twice.
        """
        self._hooks.append(declare_hook(function, self._hooks, at_start=True))
        return function

    def shutdown(self, function: F) -> F:
        """Declare a function that runs when the application ends, also by an error.

        Shutdown functions run in the reverse order of their declaration, after the last commit. If
        a startup function failed, those that need its object are left out.

        Args:
            function: Takes results of earlier startup functions.

        Returns:
            The function unchanged.

        Raises:
            DeclarationError: No startup function returns an object that it takes.
        """
        self._hooks.append(declare_hook(function, self._hooks, at_start=False))
        return function

    def _given(self) -> list[object]:
        """Return the types of the startup functions' results."""
        return [hook.gives for hook in self._hooks if hook.gives is not None]

    def _add(self, declared: Declaration) -> None:
        self._build([*self._declared, declared])
        self._declared.append(declared)

    def _build(self, declared: Sequence[Declaration]) -> Topology:
        group = self.settings.group_of(self.name)
        shared = [each.function for each in declared if isinstance(each.function, GlobalTable)]
        return build(self.name, group, to_nodes(declared, group), self._hooks, shared)

    def topology(self) -> Topology:
        """Return the declared processors as a graph; ``print`` it to read it.

        Raises:
            DeclarationError: A function returns values, but has no target for them.
        """
        check_targets(self._declared)
        return self._build(self._declared)

    def configure(self, **changes: object) -> None:
        """Change settings of a declared application, as the command line does.

        Args:
            **changes: Settings as for the constructor; those within ``client`` win too.

        Raises:
            ConfigError: A setting cannot work.
        """
        if "client" in changes:
            client = ClientSettings.of(cast("ClientSource", changes["client"]))
            changes["client"] = self.settings.client.merged(client)
        self.settings = self.settings.replace(**changes)

    # Running -------------------------------------------------------------------------------

    def run(self, *, until_end: bool = False) -> RunReport:
        """Process until SIGINT, SIGTERM or ``stop``, or to the present end of the inputs.

        The first signal lets the current record finish and commits the processed ones, within
        ``shutdown_timeout_ms``. A second one, or the end of that time, aborts instead and exits
        with status 130. SIGINT and ``stop`` leave the group, so that others get the partitions at
        once. SIGTERM does not: the partitions wait for the next start of this worker until its
        session times out, so that a rolling restart moves none. ``leave_on_sigterm=True`` changes
        that.

        Args:
            until_end: Note the ends of all inputs at the start, process the records before them
                and the records that follow from these, commit, and return. Windows and timers that
                are not due then stay open for the next run. Several such workers return when their
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

        Installs no signal handlers. Heartbeats continue while a handler blocks the loop. Raises the
        errors of ``run``.

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

    def to_spark(self, spark: SparkSessionType, **options: str) -> SparkPipeline:
        """Make a Spark pipeline of the application: the same functions on Spark's executors.

        ::

            pipeline = app.to_spark(spark, checkpointLocation="/data/checkpoints/orders")
            pipeline.run()

        Types, state, windows, joins, timers, dead letters and late output are those of a worker,
        and outputs, input offsets and state are committed together. Spark keeps the state in its
        checkpoint. Missing topics are created now. Needs the extra ``onceflow[spark]``.

        Args:
            spark: The session.
            **options: ``checkpointLocation``, by default a folder with the application's name
                under the session's ``spark.sql.streaming.checkpointLocation``; ``name`` of the
                query's transactions and groups, by default ``<group>-spark``; and options of
                Spark source and sink such as ``startingOffsets`` and ``maxOffsetsPerTrigger``.

        Returns:
            The pipeline; ``start`` gives Spark's query, ``run`` also starts it again.

        Raises:
            ConfigError: Something of the application cannot run on Spark; the error says why.
            TopicSetupError: A topic is missing or does not fit.
        """
        from onceflow.spark_integration.apps.pipeline import SparkPipeline

        return SparkPipeline(spark, self.topology(), self.settings, options)

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
        """Counters of the running worker, and a snapshot of its tasks; None without a worker."""
        worker = self._worker
        return None if worker is None else worker.figures

    @property
    def all_figures(self) -> WorkerFigures:
        """Counters of all workers of this process, also before the first."""
        if self._figures is None:
            from onceflow.processors.figures import WorkerFigures

            self._figures = WorkerFigures()
        return self._figures

    def query(self, query: Query, timeout_s: float = 5.0) -> Answer:
        """Read committed state of the running worker; callable from any thread but the worker's.

        ``StateClient`` asks the worker that has it, wherever that runs.

        Args:
            query: State, key and, if need be, partition.
            timeout_s: Longest wait; the worker answers between two polls.

        Raises:
            UnknownStateError: The application has no such state that can be queried.
            NotOwnerError: Another worker has it.
            StateNotReadyError: It is being restored, the group is rebalancing, the worker is busy,
                or none runs.
        """
        worker = self._worker
        if worker is None:
            raise StateNotReadyError(f"no worker of application {self.name} runs here")
        return worker.queries.ask(query, timeout_s)

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
        twin._worker = twin._figures = None
        twin._stop_asked = twin._is_held = False
        if slot is not None:
            twin.configure(slot=slot)
        return twin

    def pause(self) -> None:
        """Take no records until ``resume``; callable from any thread.

        Processed records are committed, and running calls end first. The worker stays in its group
        and keeps its partitions and its restored state.
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
        self._worker = worker = Worker(
            topology, self.settings, services, until_end=until_end, figures=self.all_figures
        )
        if self._stop_asked:  # While that was made.
            worker.stop()
        worker.hold(held=self._is_held)
        return worker
