"""Orders are shipped by a service that is down now and then: its failures park one key each.

A record that fails waits in a state of the function, with those of its key behind it; other keys
go on. The service gets the record's id as its idempotency key, so a repeated call has one effect.
"""

import os
import urllib.request

import msgspec

from onceflow.processors import App, Context, Parking, Retries

SERVICE = os.environ.get("SHIPPING", "http://localhost:8080")

app = App("shipping", "localhost:9092")


class Order(msgspec.Struct):
    item: str


class Shipped(msgspec.Struct):
    item: str
    parcel: int


@app.processor(
    "orders",
    to="shipped",
    retries=Retries(20, backoff_ms=200, backoff_max_ms=5_000, only=(OSError,)),
    park=Parking(records_max=1_000),
    dead_letter="orders-failed",
)
def ship(order: Order, key: str, context: Context) -> Shipped:
    request = urllib.request.Request(
        f"{SERVICE}/shipments/{key}",
        data=msgspec.json.encode(order),
        headers={"Content-Type": "application/json", "Idempotency-Key": context.record_id},
    )
    with urllib.request.urlopen(request, timeout=5) as answer:  # an error status is an OSError
        return Shipped(order.item, msgspec.json.decode(answer.read())["parcel"])
