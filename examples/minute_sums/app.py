"""Sums by minute of the time of payment; what comes too late goes to a topic of its own."""

from dataclasses import dataclass
from datetime import datetime

from onceflow.processors import App, Tumbling, Window, minutes, seconds

app = App("minute-sums", "localhost:9092")


@dataclass
class Payment:
    cents: int
    paid_at: datetime


@app.aggregate(
    "payments",
    window=Tumbling(minutes(1), grace=seconds(10)),
    time=lambda payment: payment.paid_at,
    late="payments-late",
)
def total(payment: Payment, cents: int = 0) -> int:
    return cents + payment.cents


@app.processor(total, to="sums")
def line(cents: int, key: str, window: Window) -> str:
    return f"{key} {window.start:%H:%M} {cents}"
