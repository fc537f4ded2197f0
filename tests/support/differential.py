"""The differential run: the same random conversations with Apache Kafka and with our broker.

Each seed makes one conversation; both brokers play it, and their answers are compared one by one.
A difference that shows twice is cut down to the shortest conversation that still has it. As a
program: ``python tests/support/differential.py --seeds 200`` (see ``--help``); it exits with 1 when
something differs that `KNOWN` does not explain.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import real_kafka
from differential_groups import conversation
from differential_known import is_known
from differential_messages import first_difference
from differential_world import Step, World, versions_of

from onceflow.broker_lite import Broker
from onceflow.sdk.protocol.api import API

Plain = Any

KAFKA_PARK_S = 0.15
OUR_PARK_S = 0.05
KAFKA_SETTLE_S = 0.05
SHRINKS_MAX = 400
OUR_SETTINGS = {
    "node.id": "1",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "200",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    **real_kafka.ANYBODY_MAY,
}
"""What `real_kafka` sets there."""


class Difference(NamedTuple):
    """Where two brokers parted.

    Attributes:
        index: The step whose answers differ.
        text: Path of the first differing value, with both sides.
        steps: The conversation up to there.
    """

    index: int
    text: str
    steps: list[Step]

    def __str__(self) -> str:
        lines = [f"{describe(step)}" for step in self.steps]
        return "\n".join([*lines, f"--> {describe_key(self.steps[self.index])} {self.text}"])


class Pair:
    """The two brokers that play conversations.

    Args:
        kafka: Address of Apache Kafka.
        ours: Address of our broker.
    """

    def __init__(self, kafka: str, ours: str) -> None:
        self.kafka = kafka
        self.ours = ours
        theirs, mine = versions_of(kafka), versions_of(ours)
        self.versions = {
            key: (max(theirs[key][0], mine[key][0]), min(theirs[key][1], mine[key][1]))
            for key in sorted(theirs.keys() & mine.keys() & API.keys())
        }

        for address in (kafka, ours):
            World(address, "d-", park_s=KAFKA_PARK_S).warm()

    def compare(self, steps: Sequence[Step]) -> Difference | None:
        """Play a conversation with both; the first difference that is not known."""
        prefix = f"d{uuid4().hex[:10]}-"
        kafka = World(self.kafka, prefix, park_s=KAFKA_PARK_S, settle_s=KAFKA_SETTLE_S).run(steps)
        ours = World(self.ours, prefix, park_s=OUR_PARK_S).run(steps)
        for index, (theirs, mine) in enumerate(zip(kafka, ours, strict=True)):
            text = first_difference(theirs, mine)
            if text is None:
                continue
            if is_known(steps[index], theirs, mine):
                return None  # What follows from a known difference says nothing.
            return Difference(index, text.replace(prefix, ""), list(steps[: index + 1]))
        return None

    def confirmed(self, steps: Sequence[Step]) -> Difference | None:
        """A difference that shows at the same place when the conversation is played again."""
        first = self.compare(steps)
        again = self.compare(steps) if first else None
        return again if first and again and first.index == again.index else None

    def shrunk(self, found: Difference) -> Difference:
        """The shortest conversation that still ends in the same difference."""
        shape = kind(found)
        budget = SHRINKS_MAX
        chunk = max(len(found.steps) // 2, 1)
        while True:
            start, shorter = 0, False
            while start < len(found.steps) - 1 and budget > 0:
                budget -= 1
                end = min(start + chunk, len(found.steps) - 1)
                smaller = self.compare([*found.steps[:start], *found.steps[end:]])
                if smaller is not None and kind(smaller) == shape:
                    found, shorter = smaller, True
                else:
                    start += chunk
            if chunk == 1 and (not shorter or budget <= 0):
                return found
            chunk = max(chunk // 2, 1)


def kind(found: Difference) -> tuple[int, str]:
    """What kind of a difference it is: the request, and the field without its place in lists."""
    path = found.text.split(":")[0]
    return found.steps[found.index].get("key", -1), "".join(c for c in path if not c.isdigit())


def describe_key(step: Step) -> str:
    if "do" in step:
        return str(step["do"])
    return f"{API[step['key']].request_type.__name__} v{step['version']}"


def describe(step: Step) -> str:
    """A step on one line."""
    more = {k: v for k, v in step.items() if k not in ("key", "version", "body", "after")}
    body = json.dumps(step.get("body"), default=str)
    return f"{describe_key(step)} {json.dumps(more) if more else ''} {body}"


@contextmanager
def brokers(kafka: str | None) -> Iterator[Pair]:
    """Our broker in this process beside Apache Kafka at an address, or one of its own."""
    with Broker(settings=OUR_SETTINGS) as broker:
        if kafka:
            yield Pair(kafka, broker.bootstrap_servers)
            return
        with (
            tempfile.TemporaryDirectory() as folder,
            real_kafka.ApacheKafka(
                Path(folder) / "kafka", settings=real_kafka.ANYBODY_MAY
            ) as apache,
        ):
            yield Pair(apache.bootstrap_servers, broker.bootstrap_servers)


def run(
    pair: Pair, seeds: Sequence[int], report: Callable[[str], object], *, shrink: bool = True
) -> list[Difference]:
    """Play the conversations of all seeds; one difference of each kind, cut down."""
    found: dict[tuple[int, str], Difference] = {}
    for seed in seeds:
        difference = pair.confirmed(conversation(seed, pair.versions))
        if difference is None or kind(difference) in found:
            continue
        shape = kind(difference)
        difference = pair.shrunk(difference) if shrink else difference
        found[shape] = difference
        report(f"seed {seed}:\n{difference}\n")
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=50, help="how many conversations")
    parser.add_argument("--first", type=int, default=int(time.time()), help="the first seed")
    parser.add_argument("--kafka", help="HOST:PORT of a running Apache Kafka")
    parser.add_argument("--no-shrink", action="store_true", help="whole conversations")
    args = parser.parse_args()
    if not args.kafka and (reason := real_kafka.unavailable_reason()):
        sys.exit(reason)
    with brokers(args.kafka) as pair:
        seeds = range(args.first, args.first + args.seeds)
        found = run(pair, seeds, lambda text: print(text, flush=True), shrink=not args.no_shrink)
    print(json.dumps({"first": args.first, "seeds": args.seeds, "differences": len(found)}))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
