"""Task 1: a stateless transform, exactly once."""

from onceflow.processors import App

app = App("task1-transform", "localhost:9092")


@app.processor("orders", to="orders-upper")
def shout(order: str) -> str:
    return order.upper()
