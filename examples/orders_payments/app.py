"""Orders with payments: both streams are joined by key within ten minutes."""

from dataclasses import dataclass

from onceflow.processors import App, minutes, seconds

app = App("orders-payments", "localhost:9092")


@dataclass
class Order:
    item: str
    at: int


@dataclass
class Payment:
    cents: int
    at: int


@app.join(
    "orders",
    "payments",
    within=minutes(10),
    grace=seconds(30),
    kind="left",
    time=lambda either: either.at * 1000,
    to="settled",
)
def settle(order: Order, payment: Payment | None, key: str) -> str:
    return f"{key} {order.item} {payment.cents if payment else 'not paid'}"
