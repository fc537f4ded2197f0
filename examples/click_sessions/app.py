"""Sessions of clicks: the pages of a visit, which ends after half an hour without a click."""

from dataclasses import dataclass

from onceflow.processors import App, Collect, Session, minutes

app = App("click-sessions", "localhost:9092")


@dataclass
class Click:
    page: str
    at: int


@app.aggregate(
    "clicks",
    window=Session(minutes(30), grace=minutes(1)),
    time=lambda click: click.at * 1000,
    fold=Collect(),
    idle=minutes(5),
    to="visits",
)
def page(click: Click) -> str:
    return click.page
