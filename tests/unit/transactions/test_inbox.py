"""Goal: the inbox tells each message once, in the transaction of its effects.

Method: a schema of PostgreSQL for each test; transactions that commit, roll back and wait for each
other, over blocking and asyncio connections.
"""

from __future__ import annotations

import threading

import psycopg
import pytest
from postgres_server import PostgresServer, execute, rows_of

from onceflow.sdk.errors import ConfigError, IllegalStateError
from onceflow.sdk.model.consumer_record import ConsumerRecord
from onceflow.transactions.outbox import Inbox


@pytest.fixture
def dsn(postgres: PostgresServer) -> str:
    dsn = postgres.schema()
    with psycopg.connect(dsn) as connection:
        Inbox("g").make(connection)
        Inbox("g").make(connection)  # is there already
    return dsn


def test_a_message_is_new_once_for_each_group(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        assert Inbox("g").first(connection, b"1")
        assert not Inbox("g").first(connection, b"1")
        assert Inbox("h").first(connection, b"1")
    with psycopg.connect(dsn) as connection:
        assert not Inbox("g").first(connection, b"1")
        assert Inbox("g").new(connection, [b"2", b"1", b"3", b"2"]) == {b"2", b"3"}


def test_a_transaction_that_rolls_back_has_handled_nothing(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        assert Inbox("g").first(connection, b"1")
        connection.rollback()
        assert Inbox("g").first(connection, b"1")


@pytest.mark.parametrize("commits", [True, False])
def test_a_repetition_waits_for_the_first_ones_transaction(dsn: str, commits: bool) -> None:
    found: list[bool] = []

    def handle() -> None:
        with psycopg.connect(dsn) as other:
            found.append(Inbox("g").first(other, b"1"))

    with psycopg.connect(dsn) as connection:
        assert Inbox("g").first(connection, b"1")
        thread = threading.Thread(target=handle)
        thread.start()
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        while rows_of(dsn, waiting) == [(0,)] and thread.is_alive():
            thread.join(0.01)
        assert found == []
        if commits:
            connection.commit()
        else:
            connection.rollback()
        thread.join(60)
    assert found == [not commits]


async def test_asyncio_connections(dsn: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        assert await Inbox("g").first_async(connection, b"1")
        assert not await Inbox("g").first_async(connection, b"1")


def test_what_was_seen_long_ago_is_forgotten(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        Inbox("g").new(connection, [b"1", b"2"])
        Inbox("h").new(connection, [b"1"])
    execute(dsn, "UPDATE onceflow_inbox SET seen = now() - interval '1 day' WHERE message_id = '1'")
    with psycopg.connect(dsn) as connection:
        assert Inbox("g").forget(connection, 3600) == 1
        assert Inbox("g").first(connection, b"1")
        assert not Inbox("g").first(connection, b"2")
        assert not Inbox("h").first(connection, b"1")


def test_the_id_of_a_message_is_in_its_header() -> None:
    record = ConsumerRecord("t", 0, 5, 0, headers=(("message-id", b"a"), ("message-id", b"b")))
    assert Inbox("g").id_of(record) == b"b"
    with pytest.raises(ConfigError, match=r"other-id.*t-0 offset 5"):
        Inbox("g", id_header="other-id").id_of(record)


def test_what_cannot_work_is_told(dsn: str) -> None:
    with pytest.raises(ConfigError, match="group_id"):
        Inbox("")
    with psycopg.connect(dsn) as connection:
        for wrong in ("text", b""):
            with pytest.raises(ConfigError, match="message_id"):
                Inbox("g").first(connection, wrong)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="older_than_s"):
            Inbox("g").forget(connection, -1)
    with (
        psycopg.connect(dsn, autocommit=True) as connection,
        pytest.raises(IllegalStateError, match="transaction"),
    ):
        Inbox("g").first(connection, b"1")
