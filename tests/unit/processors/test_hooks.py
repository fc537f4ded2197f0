"""Goal: what is opened at the start reaches functions by its type, and is closed however it ends.

Method: applications with hooks in the test driver and in workers over the in-memory cluster.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from processor_worlds import World

from onceflow.processors import App, DeclarationError, ProcessingError, Timers, milliseconds
from onceflow.processors.testing import TestDriver


class Database:
    """Something to open."""

    def __init__(self, events: list[str]) -> None:
        self.events = events


class Session:
    """Something that needs another one."""

    def __init__(self, database: Database) -> None:
        self.database = database


def opening(events: list[str], fails: bool = False) -> App:
    app = App("shop")

    @app.startup
    def connect() -> Database:
        events.append("connect")
        return Database(events)

    @app.startup
    def begin(database: Database) -> Session:
        if fails:
            raise OSError("no database")
        events.append("begin")
        return Session(database)

    @app.shutdown
    def disconnect(database: Database) -> None:
        events.append("disconnect")

    @app.shutdown
    def end(session: Session) -> None:
        events.append("end")
        raise OSError("is logged, and the others run")

    @app.processor("in", to="out")
    def store(value: str, session: Session, database: Database, timers: Timers) -> str:
        assert session.database is database
        events.append(value)
        if value == "bad":
            raise ValueError(value)
        timers.set(after=milliseconds(1))
        return value

    @app.timer(store)
    def come(key: str, database: Database) -> None:
        events.append(f"timer {key}")

    return app


def test_objects_reach_functions_by_their_type() -> None:
    events: list[str] = []
    driver = TestDriver(opening(events))
    assert events == []
    driver.send("in", "a", key="k", timestamp_ms=1)
    driver.send("in", "b", key="l", timestamp_ms=5)
    driver.close()
    assert events == ["connect", "begin", "a", "b", "timer k", "end", "disconnect"]


def test_the_worker_opens_and_closes(tmp_path: Path) -> None:
    events: list[str] = []
    world = World(tmp_path, "in")
    world.cluster.put("in", b"a", key=b"k")
    world.run(opening(events))
    assert events == ["connect", "begin", "a", "end", "disconnect"]


def test_an_error_closes_too(tmp_path: Path) -> None:
    events: list[str] = []
    world = World(tmp_path, "in")
    world.cluster.put("in", b"bad", key=b"k")
    with pytest.raises(ProcessingError):
        world.run(opening(events))
    assert events == ["connect", "begin", "bad", "end", "disconnect"]


def test_a_failing_start_closes_what_was_opened(tmp_path: Path) -> None:
    events: list[str] = []
    world = World(tmp_path, "in")
    world.cluster.put("in", b"a", key=b"k")
    with pytest.raises(OSError, match="no database"):
        world.run(opening(events, fails=True))
    assert events == ["connect", "disconnect"]
    assert world.cluster.offset("in") is None


def test_async_hooks_make_an_async_application() -> None:
    app, events = App("shop"), list[str]()

    @app.startup
    async def connect() -> Database:
        await asyncio.sleep(0)
        return Database(events)

    @app.processor("in")
    def store(value: str, database: Database) -> None:
        database.events.append(value)

    assert app.topology().is_async

    async def run() -> None:
        await TestDriver(app).send_async("in", "a")

    asyncio.run(run())
    assert events == ["a"]


def test_functions_are_called_in_tests_with_an_object() -> None:
    app = App("shop")

    @app.startup
    def connect() -> Database:
        return Database([])

    @app.processor("in", to="out")
    def store(value: str, database: Database) -> str:
        database.events.append(value)
        return value

    fake = Database([])
    assert (store("a", fake), fake.events) == ("a", ["a"])


def nothing() -> None: ...


def text() -> str:
    return ""


def untyped():  # type: ignore[no-untyped-def]
    return 1


def needs(session: Session) -> Database:
    return session.database


def first() -> Database:
    return Database([])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (text, "text gives str: .*annotate the return type with a class"),
        (untyped, "untyped gives .*annotate the return type with a class"),
        (needs, "session: no startup function that is declared before gives .*Session; there are"),
        (first, "another startup function gives .*Database already"),
    ],
)
def test_refused(function: Callable[..., object], message: str) -> None:
    app = App("shop")
    app.startup(first)
    app.startup(nothing)
    with pytest.raises(DeclarationError, match=message):
        app.startup(function)


def test_an_object_that_is_declared_too_late() -> None:
    app = App("shop")
    with pytest.raises(DeclarationError, match=r"what an @app\.startup above gives"):

        @app.processor("in")
        def store(value: str, database: Database) -> None: ...
