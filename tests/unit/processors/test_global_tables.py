"""Goal: every worker sees all rows of a global table, by any key, from the first record on.

Method: the test driver for lookups and bad declarations; workers over the in-memory cluster for
reading before the first record, following, aborted rows, other partition counts, broken rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
from processor_fakes import Entry
from processor_worlds import World

from onceflow.processors import App, DeclarationError, ProcessingError, TopicSetupError
from onceflow.processors.provisioning import TopicFacts
from onceflow.processors.testing import TestDriver
from onceflow.sdk.model.partitions import TopicPartition


@dataclass
class Country:
    name: str


@dataclass
class Order:
    number: int
    country: str | None


shop = App("shop")
countries = shop.global_table("countries", Country, key=str)


@shop.processor("orders", to="out")
def enrich(
    order: Order,
    country: Annotated[Country | None, countries.by(lambda order: order.country)],
) -> str:
    return f"{order.number}:{country.name if country else '-'}"


@shop.processor("visits", to="seen")
def see(visit: str, country: Annotated[Country | None, countries]) -> str:
    return f"{visit}:{country.name if country else '-'}"


def test_any_key_is_looked_up_from_any_partition() -> None:
    driver = TestDriver(shop, partitions=5)
    driver.send("orders", Order(1, "fr"), key="a")
    driver.send("countries", Country("France"), key="fr")
    driver.send("countries", Country("Italy"), key="it")
    driver.send("orders", Order(2, "fr"), key="a")
    driver.send("orders", Order(3, "it"))
    driver.send("orders", Order(4, None))
    driver.send("countries", None, key="fr")
    driver.send("orders", Order(5, "fr"))
    driver.send("visits", "v", key="it")
    driver.send("visits", "v")
    assert driver.values("out", str) == ["1:-", "2:France", "3:Italy", "4:-", "5:-"]
    assert driver.values("seen", str) == ["v:Italy", "v:-"]
    with pytest.raises(ProcessingError, match=r"global table countries: countries-\d@0"):
        driver.send("countries", b"no", key="xx")


def world_of(tmp_path: Path, *rows: Entry) -> World:
    world = World(tmp_path, "orders", "visits", partitions=1)
    world.topics["countries"] = TopicFacts(3, "id-countries")
    for number, row in enumerate(rows):
        world.cluster.logs[TopicPartition("countries", number % 3)].append(row)
    return world


def test_all_partitions_are_read_before_the_first_record(tmp_path: Path) -> None:
    world = world_of(
        tmp_path,
        Entry(b"fr", b'{"name":"France"}', state="committed"),
        Entry(b"it", b'{"name":"Italy"}', state="aborted"),
        Entry(b"es", b'{"name":"Spain"}', state="committed"),
        Entry(b"de", b'{"name":"Germany"}', state="open"),
    )
    for number, country in enumerate(("fr", "it", "es", "de")):
        value = b'{"number":%d,"country":"%s"}' % (number, country.encode())
        world.cluster.logs[TopicPartition("orders", 0)].append(Entry(None, value))
    world.run(shop)
    assert world.cluster.values("out") == [b"0:France", b"1:-", b"2:Spain", b"3:-"]


def test_a_row_that_does_not_fit_ends_the_worker(tmp_path: Path) -> None:
    world = world_of(tmp_path, Entry(b"fr", b"7", state="committed"))
    with pytest.raises(ProcessingError, match=r"countries-0@0.*declare the type"):
        world.run(shop)


def test_a_missing_topic_is_an_error_at_the_start(tmp_path: Path) -> None:
    world = World(tmp_path, "orders", "visits", partitions=1)
    with pytest.raises(TopicSetupError, match="do not exist: countries"):
        world.run(shop)


def refused(declare: Callable[[App], object], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        declare(App("wrong"))


def test_refused() -> None:
    def twice(app: App) -> None:
        app.table("countries", Country, key=str)
        app.global_table("countries", Country, key=str)

    refused(twice, "is table countries already")
    refused(lambda app: app.global_table("a/b", Country), "use 1 to 100 characters")
    refused(lambda app: app.global_table("a", Country).by(3), "must be a function")  # type: ignore[arg-type]
    refused(lambda app: app.processor(app.global_table("a", str))(see), "gives no records")
    refused(lambda app: app.processor("in", to="o")(see), "belongs to another application")
    refused(
        lambda app: app.join("in", app.global_table("a", str), to="o")(see), "a value of each side"
    )
