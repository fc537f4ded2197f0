"""Goal: requests about administration are answered as Apache Kafka answers them.

Method: the conversation of `admin_answers`, compared with what Apache Kafka 4.4 answered
(`tests/vectors`); `make conformance` has Kafka say it again. What differs on purpose is listed.
"""

from __future__ import annotations

import asyncio
import json

from admin_answers import FILE, converse
from broker_state import SocketlessBroker

from onceflow.sdk.protocol.schema import Request, Response

DIFFERENT: dict[str, str] = {}
"""Answers that differ from Kafka's, and why."""


def test_answers_are_those_of_apache_kafka() -> None:
    broker = SocketlessBroker()

    async def ask(request: Request, version: int) -> Response | None:
        return broker.ask(request, version)

    async def settled() -> None:
        pass

    ours = asyncio.run(converse(ask, settled))
    theirs = json.loads(FILE.read_text())
    assert set(ours) == set(theirs)
    wrong = {label for label in theirs if json.loads(json.dumps(ours[label])) != theirs[label]}
    for label in sorted(wrong - set(DIFFERENT)):
        print(f"{label}\n  here:  {ours[label]}\n  Kafka: {theirs[label]}")
    assert wrong == set(DIFFERENT)
