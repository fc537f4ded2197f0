"""Alarms with timers: a sensor that says nothing for some seconds, though nothing comes in."""

from onceflow.processors import App, State, Timers, seconds

app = App("silent-sensors", "localhost:9092")


@app.processor("readings")
def watch(reading: float, timers: Timers, last: State[float]) -> None:
    last.set(reading)
    timers.set(after=seconds(2), by_wall=True)  # In place of the one that was set before.


@app.timer(watch, to="alarms")
def silent(key: str, last: State[float]) -> str:
    return f"{key} is silent, last reading {last.get()}"
