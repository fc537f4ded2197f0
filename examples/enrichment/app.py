"""Enrichment: each order gets the name of its customer, from a table."""

from dataclasses import dataclass
from typing import Annotated

from onceflow.processors import App

app = App("enrichment", "localhost:9092")


@dataclass
class Customer:
    name: str


@dataclass
class Order:
    id: str
    customer_id: str


@dataclass
class Enriched:
    id: str
    name: str


customers = app.table("customers", Customer, key=str)


@app.processor("orders", to="enriched", key=lambda order: order.customer_id)
def enrich(order: Order, customer: Annotated[Customer | None, customers]) -> Enriched:
    return Enriched(order.id, customer.name if customer else "unknown")
