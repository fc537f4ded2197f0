"""What an application of the simulation is like: drawn from the seed, declared for each worker.

All workers of a run declare the same. Handlers fail for a while, for good, and after they have
changed state. A kind names the functions of an application and the topics that it reads.
"""

import asyncio
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import sim_setup
from sim_network import CALM
from sim_postgres import row_of
from sim_processor_checker import fails, is_refused
from sim_stores import DSN, Storm, surround

from onceflow.processors import (
    App,
    Context,
    DeadLetterLimits,
    Hopping,
    MapState,
    Parking,
    Retries,
    Session,
    State,
    StoreKind,
    Tumbling,
    milliseconds,
)
from onceflow.transactions.sinks import Postgres

GROUP = "counts"
OUTPUT, DEAD, LATE = "counted", "dead", "late"
REPARTITION = f"{GROUP}-step-repartition"
TOO_LARGE = 120_000
"""Bytes of an output that no segment takes."""

PLAIN = ("copy", "count", "count", "chain")
PARKED = f"{GROUP}-step-parked-changelog"
TOGETHER = ("merge", "table", "join")
"""Kinds whose tasks have two inputs, ``a`` and ``b``."""

KINDS = (
    *PLAIN,
    *("rekey", "rekey", "window", "window", *TOGETHER, *TOGETHER, "global"),
    *("parked", "parked", "repeats", "repeats"),
    *("sink", "sink"),
)
"""Kinds of applications, with repetitions as weights."""

NEW_KEYS = 4
WINDOW_MS, EVERY_MS, GAP_MS = 300, 120, 150
WITHIN_MS = 150
UNBOUNDED_MS = 600_000
"""A grace within which no record of a run is late."""


@dataclass(frozen=True)
class Shape:
    """What the application of a run is like.

    Attributes:
        kind: One of ``KINDS``.
        store: Where state lies.
        is_async: Whether handlers are coroutines.
        failing: Of a hundred records, how many fail for a while.
        backoff_ms: First wait between attempts.
        disk_is_lost: How often a start finds an empty disk.
        grace_ms: How long windows and joins take late records.
        windows: Which windows there are.
        join: Which results a join gives.
        filled: Whether all input is there before the application starts. Then timestamps decide
            the order in which a task takes the records of its inputs (KIP-695).
        idle_ms: How long an input at its end is waited for.
        parked_max: How many records of a key are parked at most.
        is_held: Whether workers are paused and resumed.
        is_bounded: Whether workers run to the end of what is there, again and again.
        is_quiet: Whether nothing goes wrong. Then at-least-once is exactly-once.
    """

    kind: str
    store: StoreKind
    is_async: bool
    failing: int
    backoff_ms: int
    disk_is_lost: float
    grace_ms: int
    windows: str
    join: str
    filled: bool
    idle_ms: int
    parked_max: int = 1_000
    is_held: bool = False
    is_bounded: bool = False
    is_quiet: bool = False

    @property
    def repeats(self) -> bool:
        """Whether delivery is at least once."""
        return self.kind == "repeats"

    @property
    def inputs(self) -> tuple[str, ...]:
        """Topics that clients fill."""
        return ("a", "b") if self.kind in (*TOGETHER, "global") else ("a",)

    @property
    def marks(self) -> str:
        """Ends of values: ``!`` for those that fail, ``#`` for those whose output is refused.

        Of a join the partners decide what a record gives, so that no record is marked.
        """
        if self.is_quiet:
            return "!"  # A refused output makes its unit be done again.
        return {"window": "!", "join": ""}.get(self.kind, "!#")

    @property
    def topics(self) -> tuple[str, ...]:
        """Topics whose offsets the group commits."""
        beside = {"rekey": ("a", REPARTITION), "global": ("a",)}
        return beside.get(self.kind, self.inputs)


def draw_shape(seed: object, kinds: tuple[str, ...] = KINDS) -> Shape:
    """The application of a seed."""
    rng = random.Random(f"{seed}/application")
    shape = Shape(
        rng.choice(kinds),
        rng.choice((StoreKind.LMDB, StoreKind.LMDB, StoreKind.MEMORY)),
        rng.random() < 0.3,
        rng.choice((0, 10, 30)),
        rng.choice((1, 300, 2_000)),
        rng.choice((0.0, 0.3)),
        rng.choice((0, 200, 1_000)),
        rng.choice(("tumbling", "hopping", "session")),
        rng.choice(("inner", "left", "outer")),
        rng.random() < 0.6,
        rng.choice((0, 0, 50)),  # A task that polls single records waits for each of them.
    )
    way = random.Random(f"{seed}/way")
    shape = replace(
        shape,
        parked_max=way.choice((1, 3, 1_000)),
        is_held=way.random() < 0.25,
        is_bounded=way.random() < 0.2,
        is_quiet=shape.kind == "repeats" and way.random() < 0.3,
    )
    if len(shape.inputs) == 1:
        return replace(shape, filled=False)
    # Which of two inputs is ahead is otherwise not the seed's to decide: nothing may be late.
    return shape if shape.filled else replace(shape, grace_ms=UNBOUNDED_MS)


@dataclass
class ProcessorSetup(sim_setup.Setup):
    """A run's ingredients, with its application.

    Attributes:
        shape: The application.
        database: What goes wrong with the database of an application with a sink.
    """

    shape: Shape | None = None
    database: Storm | None = None


def draw(seed: object, kinds: tuple[str, ...] = KINDS) -> ProcessorSetup:
    """The surroundings of a seed: as in every run, but with applications."""
    setup = sim_setup.draw(seed)
    shape = draw_shape(seed, kinds)
    rng = random.Random(f"{seed}/processors")
    setup.workers = {
        **dict.fromkeys(setup.workers, 0),
        "input": rng.choice((1, 1, 2)),
        "transactional": rng.choice((0, 0, 1)),
        "application": rng.choice((1, 2, 3, 3)),
    }
    setup.units = rng.choice((20, 40, 80))
    setup.duration_us = rng.choice((3_000_000, 6_000_000))
    setup.trouble_every_us = rng.choice((150_000, 400_000))
    setup.segment_bytes = rng.choice((20_000, 100_000))  # A dead letter has to fit in.
    if len(shape.inputs) > 1:
        setup.workers["input of b"] = rng.choice((1, 1, 2))
    if shape.kind in TOGETHER:
        setup.partitions["b"] = setup.partitions["a"]
        setup.protocols = [_together(protocol) for protocol in setup.protocols]
    setup.troubles += ["kill worker", "pause worker", "zombie", "cut"]
    if shape.kind == "parked":
        # Where a clock is set back a parked record waits for as long as it was set back.
        setup.troubles = [trouble for trouble in setup.troubles if trouble != "clock"]
    if setup.properties.get("onceflow.durability") == "kafka" and setup.power:
        # Inputs may be gone and their outputs not, which no rule here could tell apart.
        setup.properties["onceflow.durability"] = rng.choice(("group", "always"))
    database = None
    if shape.kind == "sink":
        database = surround(setup, seed)
        setup.duration_us, setup.trouble_every_us = 2 * setup.duration_us, 400_000
    made = ProcessorSetup(**vars(setup), shape=shape, database=database)
    if shape.is_quiet:
        make_quiet(made)
    return made


def make_quiet(setup: ProcessorSetup) -> None:
    """Let nothing go wrong."""
    assert setup.shape is not None
    setup.shape = replace(setup.shape, is_quiet=True)
    setup.storm, setup.troubles = CALM, ["delete records"]  # Of another topic.
    setup.workers["application"] = 1  # A rebalance, too, may make a unit be done again.


def _together(protocol: dict[str, object]) -> dict[str, object]:
    """A protocol whose assignor gives one partition number of all topics to one member."""
    if protocol.get("group_protocol") == "consumer":
        return protocol | {"group_remote_assignor": "range"}
    given = protocol.get("partition_assignment_strategy")
    return protocol if given == ("range",) else {}


def new_key(value: bytes) -> bytes:
    """The key that a re-keyed record gets."""
    return b"n%d" % (zlib.crc32(value) % NEW_KEYS)


class Handlers:
    """The functions of one worker's life, and how they fail.

    Args:
        shape: The application.
        is_calm: Whether nothing fails for a while any more.

    Attributes:
        called: Told of every call.
        observer: Told of the steps of a sink.
    """

    def __init__(self, shape: Shape, is_calm: Callable[[], bool]) -> None:
        self.shape = shape
        self.called: Callable[[bytes], None] = lambda value: None
        self.observer: Callable[[str], None] = lambda step: None
        self._is_calm = is_calm
        self._failed: dict[bytes, int] = {}

    def declare(self, app: App) -> None:
        """Declare the functions of the shape."""
        getattr(self, f"_{self.shape.kind}")(app, self._options())

    def _options(self) -> dict[str, Any]:
        # Each pair of a join fails for itself, and all pairs of a record are one call. Attempts at
        # a parked record are counted over the lives of workers, in each of which it fails again.
        retries = 100 if self.shape.kind in ("join", "parked") else 3
        return {
            "dead_letter": DEAD,
            "limits": DeadLetterLimits(10**6, 1.0),
            "store": self.shape.store,
            "retries": Retries(retries, backoff_ms=self.shape.backoff_ms, only=(LookupError,)),
        }

    def _trouble(self, value: bytes) -> None:
        """Fail, for good or for a while."""
        self.called(value)
        if fails(value):
            raise ValueError("poison")
        chance = random.Random(value)
        if not self._is_calm() and chance.randrange(100) < self.shape.failing:
            failed = self._failed[value] = self._failed.get(value, 0) + 1
            if failed <= chance.randrange(1, 3):
                raise LookupError("for a while")

    def _counting(self) -> Callable[..., object]:
        """Counts the records of a key."""

        def count(value: bytes, seen: State[int]) -> bytes:
            seen.set(seen.get(0) + 1)
            self._trouble(value)  # What it has set is taken back.
            return _shown(value, seen.get(0))

        async def count_async(value: bytes, seen: State[int]) -> bytes:
            seen.set(seen.get(0) + 1)
            # Calls end in another order than they begin.
            await asyncio.sleep(random.Random(value).choice((0.0, 0.002, 0.005, 0.03)))
            self._trouble(value)
            return _shown(value, seen.get(0))

        return count_async if self.shape.is_async else count

    @property
    def _most(self) -> int:
        """How many calls of async functions overlap in a task."""
        return 8 if self.shape.is_async else 1

    # One method for each kind --------------------------------------------------------------

    def _copy(self, app: App, options: dict[str, Any]) -> None:
        @app.processor("a", to=OUTPUT, name="step", **options)
        def copy(value: bytes) -> bytes:
            self._trouble(value)
            return _shown(value, 0)

    def _count(self, app: App, options: dict[str, Any]) -> None:
        declare = app.processor("a", to=OUTPUT, name="step", concurrency=self._most, **options)
        declare(self._counting())

    def _repeats(self, app: App, options: dict[str, Any]) -> None:
        self._count(app, options)

    def _parked(self, app: App, options: dict[str, Any]) -> None:
        rest = {"park": Parking(self.shape.parked_max), **options}
        app.processor("a", to=OUTPUT, name="step", **rest)(self._counting())

    def _chain(self, app: App, options: dict[str, Any]) -> None:
        @app.processor("a", name="step", **options)
        def add(value: bytes, seen: MapState[str, int], context: Context) -> bytes:
            seen["n"] = seen.get("n", 0) + 1
            self._trouble(value)
            return _shown(value, seen["n"])

        @app.processor(add, to=OUTPUT, name="last", dead_letter=DEAD, concurrency=self._most)
        async def pass_on(value: bytes) -> bytes:
            await asyncio.sleep(0.002)
            return value

    def _rekey(self, app: App, options: dict[str, Any]) -> None:
        rest = {"key": new_key, "concurrency": self._most, **options}
        app.processor("a", to=OUTPUT, name="step", **rest)(self._counting())

    def _window(self, app: App, options: dict[str, Any]) -> None:
        grace = milliseconds(self.shape.grace_ms)
        merge: dict[str, Any] = {}
        window: Tumbling | Hopping | Session = Tumbling(milliseconds(WINDOW_MS), grace=grace)
        if self.shape.windows == "hopping":
            window = Hopping(milliseconds(WINDOW_MS), milliseconds(EVERY_MS), grace=grace)
        if self.shape.windows == "session":
            window = Session(milliseconds(GAP_MS), grace=grace)
            merge = {"merge": lambda left, right: left + right}

        @app.aggregate("a", window=window, to=OUTPUT, late=LATE, name="step", **merge, **options)
        def collect(value: bytes, found: list[str] = []) -> list[str]:  # noqa: B006 - one a window
            found.append(value.decode())
            self._trouble(value)
            return found

    def _sink(self, app: App, options: dict[str, Any]) -> None:
        options.pop("store")  # What a sink stores is all that there is.
        sink = Postgres(DSN, "rows", timeout_ms=1_000, observer=self.observer)

        def row(value: bytes, context: Context) -> dict[str, object]:
            self._trouble(value)
            return row_of(context.record)

        async def row_async(value: bytes, context: Context) -> dict[str, object]:
            await asyncio.sleep(random.Random(value).choice((0.0, 0.002, 0.03)))
            return row(value, context)

        declare = app.sink("a", sink, name="step", concurrency=self._most, **options)
        declare(row_async if self.shape.is_async else row)

    def _merge(self, app: App, options: dict[str, Any]) -> None:
        rest = {"concurrency": self._most, **options}
        app.processor(["a", "b"], to=OUTPUT, name="step", **rest)(self._counting())

    def _table(self, app: App, options: dict[str, Any]) -> None:
        rows = app.table("b", bytes, name="rows", **options)

        @app.processor("a", to=OUTPUT, name="step", **options)
        def look_up(value: bytes, row: Annotated[bytes | None, rows]) -> bytes:
            self._trouble(value)
            return _shown(value, b"-" if row is None else row)

    def _global(self, app: App, options: dict[str, Any]) -> None:
        rows = app.global_table("b", bytes, name="rows")

        @app.processor("a", to=OUTPUT, name="step", **options)
        def look_up(value: bytes, row: Annotated[bytes | None, rows]) -> bytes:
            self._trouble(value)
            return _shown(value, b"-" if row is None else row)

    def _join(self, app: App, options: dict[str, Any]) -> None:
        # Each pair fails by itself, so a record may fail twice for each partner that it meets.
        wait_ms = self.shape.backoff_ms
        options = {**options, "retries": Retries(50, wait_ms, 2 * wait_ms, only=(LookupError,))}

        @app.join(
            "a",
            "b",
            within=milliseconds(WITHIN_MS),
            grace=milliseconds(self.shape.grace_ms),
            kind=self.shape.join,
            to=OUTPUT,
            late=LATE,
            name="step",
            **options,
        )
        def pair(left: bytes | None, right: bytes | None) -> bytes:
            text = (left or b"-") + b"|" + (right or b"-")
            self._trouble(text)
            return text


def _shown(value: bytes, found: bytes | int) -> bytes:
    text = b"%s:%s" % (value, b"%d" % found if isinstance(found, int) else found)
    return text.rjust(TOO_LARGE) if is_refused(value) else text
