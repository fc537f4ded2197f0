"""Task 2: count per key, with state that survives crashes and rebalances."""

from onceflow.processors import App, State

app = App("task2-count", "localhost:9092")


@app.processor("clicks", to="clicks-per-user")
def count(click: bytes, seen: State[int]) -> int:
    seen.set(seen.get(0) + 1)
    return seen.get(0)
