"""A shop's service: an order and its record commit together, or neither does.

PUT /orders/7 may be repeated as often as a client likes: the order is there once, and so is the
record that `onceflow relay` sends of it.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from fastapi import FastAPI
from pydantic import BaseModel

from onceflow.transactions.outbox import Outbox

DSN = os.environ.get("ONCEFLOW_DSN", "postgresql://localhost:5432/shop")
outbox = Outbox()


class Order(BaseModel):
    item: str
    cents: int


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    with psycopg.connect(DSN) as connection:
        outbox.make(connection)
        connection.execute(
            "CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, item text, cents bigint)"
        )
    yield


app = FastAPI(title="shop", lifespan=lifespan)


@app.put("/orders/{number}")
async def order(number: int, order: Order) -> dict[str, bool]:
    async with await psycopg.AsyncConnection.connect(DSN) as connection:  # one transaction
        placed = await connection.execute(
            "INSERT INTO orders VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            (number, order.item, order.cents),
        )
        is_new = placed.rowcount == 1
        if is_new:
            value = order.model_dump_json().encode()
            await outbox.put_async(connection, "orders", value, key=b"%d" % number)
    return {"new": is_new}
