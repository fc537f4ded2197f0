"""The processor app: validates flights, joins names, keeps figures per carrier and airport.

Run as: onceflow run examples.flights.app:app
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field

from examples.flights.data import DEAD_LETTERS, DEPARTURES, FLIGHTS, table, visibility
from onceflow.processors import App, DeadLetterLimits, State

app = App(
    "flights",
    bootstrap_servers=os.environ.get("BOOTSTRAP", "127.0.0.1:9092"),
    state_dir=os.environ.get("STATE_DIR", "flights-state"),
)
airlines = table("airlines", "carrier", "name")
airports = table("airports", "faa", "name")
miles = visibility()
WHOLE_DAYS_ARE_CANCELLED = DeadLetterLimits(consecutive_max=5_000, ratio_max=1.0)
"""February's blizzard grounds every flight of a day; that is no reason to stop."""


@dataclass
class Flight:
    """A record of the topic ``flights``."""

    id: int
    carrier: str
    flight: str
    origin: str
    dest: str
    date: str
    hour: int
    time_hour: str
    dep_delay: str


@dataclass
class Totals:
    """Departures and minutes of delay of one carrier, by airport."""

    departures: dict[str, int] = field(default_factory=dict)
    delay: dict[str, int] = field(default_factory=dict)


@app.processor(FLIGHTS, to=DEPARTURES, dead_letter=DEAD_LETTERS, limits=WHOLE_DAYS_ARE_CANCELLED)
def departure(flight: Flight, totals: State[Totals]) -> dict[str, object]:
    """Turn a flight into a departure; one that never left becomes a dead letter."""
    if flight.dep_delay == "NA":
        raise ValueError("the flight has no departure: it was cancelled")
    delay = int(float(flight.dep_delay))
    sums = totals.get() or Totals()
    sums.departures[flight.origin] = sums.departures.get(flight.origin, 0) + 1
    sums.delay[flight.origin] = sums.delay.get(flight.origin, 0) + delay
    totals.set(sums)
    return {
        **asdict(flight),
        "dep_delay": delay,
        "airline": airlines[flight.carrier],
        "airport": airports.get(flight.dest, flight.dest),
        "visibility": miles.get((flight.origin, flight.time_hour)),
        "departures": sums.departures[flight.origin],
        "mean_delay": round(sums.delay[flight.origin] / sums.departures[flight.origin], 2),
    }
