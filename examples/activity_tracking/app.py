"""Activity tracking: clicks become visits, and visits a daily report of each landing page."""

from dataclasses import dataclass

from onceflow.processors import App, Session, Tumbling, Window, hours, minutes

app = App("activity-tracking", "localhost:9092")


@dataclass
class Click:
    page: str
    at: int


@dataclass
class Visit:
    landing: str
    pages: int
    first: int
    last: int


@dataclass
class Day:
    visits: int
    pages: int
    seconds: int


@dataclass
class Report:
    day: str
    landing: str
    visits: int
    pages_per_visit: float
    seconds_per_visit: float


def earlier_first(left: Visit, right: Visit) -> Visit:
    """One visit of two that a click in between joins."""
    first, second = sorted((left, right), key=lambda visit: visit.first)
    return Visit(first.landing, first.pages + second.pages, first.first, max(left.last, right.last))


@app.aggregate(
    "clicks",
    window=Session(minutes(30), grace=minutes(1)),
    time=lambda click: click.at * 1000,
    merge=earlier_first,
    to="visits",
    late="clicks-late",
    dead_letter="clicks-unreadable",
)
def visit(click: Click, so_far: Visit | None = None) -> Visit:
    now = Visit(click.page, 1, click.at, click.at)
    return now if so_far is None else earlier_first(so_far, now)


@app.aggregate(
    "visits", window=Tumbling(hours(24), grace=hours(2)), key=lambda visit: visit.landing
)
def day(visit: Visit, so_far: Day | None = None) -> Day:
    so_far = so_far or Day(0, 0, 0)
    seconds = visit.last - visit.first
    return Day(so_far.visits + 1, so_far.pages + visit.pages, so_far.seconds + seconds)


@app.processor(day, to="daily-report")
def report(day: Day, key: str, window: Window) -> Report:
    pages, seconds = day.pages / day.visits, day.seconds / day.visits
    return Report(f"{window.start:%Y-%m-%d}", key, day.visits, round(pages, 2), round(seconds, 1))
