"""Task 5: three retries, then a dead letter in the same transaction."""

from onceflow.processors import App

app = App("task5-dead-letter", "localhost:9092")


@app.processor("payments", to="booked", retries=3, dead_letter="payments-failed")
def book(payment: dict[str, int]) -> dict[str, int]:
    return {"cents": payment["euros"] * 100}
