"""Goal: processors are written in few lines that a strict type check accepts.

Method: mypy reads this file (``make check``), and ``test_processing_samples`` runs it: the samples
are called like any other function, without a driver.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

from onceflow.processors import (
    App,
    Hopping,
    Session,
    State,
    Sum,
    Timer,
    Timers,
    Tumbling,
    Window,
    minutes,
    seconds,
)


@dataclass
class Click:
    user: str


@dataclass
class Payment:
    cents: int
    paid_at: datetime


@dataclass
class Customer:
    name: str


@dataclass
class Order:
    id: str
    customer_id: str
    cents: int


@dataclass
class Enriched:
    id: str
    name: str


app = App("shop", "localhost:9092")


@app.processor("words", to="loud")
def shout(word: str) -> str:
    return word.upper()


@app.processor("clicks", to="clicks-per-user")
def count(click: Click, seen: State[int] = State(0)) -> int:  # noqa: B008 - the usual form
    seen.value += 1
    return seen.value


@app.aggregate(
    "payments",
    window=Tumbling(minutes(1), grace=seconds(10)),
    time=lambda payment: payment.paid_at,
    to="sums",
    late="payments-late",
)
def total(payment: Payment, cents: int = 0) -> int:
    return cents + payment.cents


@app.processor(total, to="lines")
def line(cents: int, key: str, window: Window) -> str:
    return f"{key} {window.start:%H:%M} {cents}"


@app.aggregate("payments", window=Hopping(minutes(10), minutes(1)), to="moving", fold=Sum())
def paid(payment: Payment) -> int:
    return payment.cents


@app.aggregate("clicks", window=Session(minutes(30)), to="visits", merge=lambda a, b: a + b)
def visit(click: Click, clicks: int = 0) -> int:
    return clicks + 1


customers = app.table("customers", Customer, key=str)


@app.processor("orders", to="enriched", key=lambda order: order.customer_id)
def enrich(order: Order, customer: Annotated[Customer | None, customers]) -> Enriched | None:
    return Enriched(order.id, customer.name) if customer else None


@app.join("orders-by-id", "payments-by-id", within=minutes(10), kind="left", to="settled")
def settle(order: Order, payment: Payment | None) -> str:
    return f"{order.id} {'paid' if payment else 'open'}"


@app.processor("readings")
def watch(reading: float, timers: Timers) -> None:
    timers.set(after=minutes(5))


@app.timer(watch, to="alarms")
def silent(key: str, timer: Timer) -> str:
    return f"{key} is silent since {timer.due:%H:%M}"


def check() -> None:
    """Call every sample."""
    now = datetime.now(UTC)
    assert shout("a") == "A"
    assert count(Click("u"), State(4)) == 5
    assert total(Payment(5, now), 10) == 15
    assert line(15, "k", Window(0, 60_000)) == "k 00:00 15"
    assert paid(Payment(5, now)) == 5
    assert visit(Click("u"), 2) == 3
    assert enrich(Order("1", "c", 5), Customer("n")) == Enriched("1", "n")
    assert settle(Order("1", "c", 5), None) == "1 open"
    timers = Timers()
    watch(20.5, timers)
    found = timers.get()
    assert found is not None
    assert silent("k", found) == "k is silent since 00:05"
