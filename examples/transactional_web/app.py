"""A web service whose requests each write several topics, all or nothing.

ONCEFLOW_SLOT=0 uvicorn examples.transactional_web.app:app
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Response
from pydantic import BaseModel, PositiveInt

from examples.transactional_web.pool import PoolBusyError, PoolLostError, ProducerPool
from onceflow.sdk import AsyncProducer
from onceflow.sdk.errors import CommitOutcomeUnknownError, KafkaError


class Order(BaseModel):
    """What a client orders."""

    customer: str
    article: str
    pieces: PositiveInt


def make_producer(transactional_id: str) -> AsyncProducer:
    """Make a producer; requests wait for their commits, so records do not wait for others."""
    return AsyncProducer(
        bootstrap_servers=os.environ.get("ONCEFLOW_BOOTSTRAP_SERVERS", "localhost:9092"),
        transactional_id=transactional_id,
        transaction_timeout_ms=15_000,
        linger_ms=0,
    )


def make_app(pool: ProducerPool) -> FastAPI:
    """The service over a pool, which it starts and closes."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await pool.start()
        yield
        await pool.close()

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def order(
        order: Order, idempotency_key: Annotated[str, Header(min_length=1)]
    ) -> dict[str, str]:
        # Consumers drop a key that they have seen: the outbox page's inbox does that.
        headers = [("idempotency-key", idempotency_key.encode())]
        value = order.model_dump_json().encode()
        key = order.customer.encode()
        try:
            async with pool.transaction() as producer:
                await producer.send("orders", value, key=key, headers=headers)
                await producer.send("stock", value, key=order.article.encode(), headers=headers)
        except PoolBusyError as error:
            raise HTTPException(503, str(error), {"Retry-After": "1"}) from error
        except PoolLostError as error:
            raise HTTPException(503, str(error)) from error
        except CommitOutcomeUnknownError as error:
            detail = "it may be done or not; send the same Idempotency-Key again"
            raise HTTPException(504, detail) from error
        except KafkaError as error:
            raise HTTPException(503, f"nothing is done: {error}", {"Retry-After": "1"}) from error
        return {"accepted": idempotency_key}

    @app.get("/ready")
    def ready(response: Response) -> dict[str, int | bool]:
        health = pool.health
        response.status_code = 200 if health.is_ready else 503
        return {"size": health.size, "free": health.free, "lost": health.lost}

    @app.get("/live")
    def live(response: Response) -> dict[str, bool]:
        # A process whose slot is lost never recovers: the orchestrator has to end it.
        response.status_code = 503 if pool.health.lost else 200
        return {"lost": pool.health.lost}

    return app


app = make_app(ProducerPool(make_producer, "shop-web", os.environ.get("ONCEFLOW_SLOT", "0")))
