"""Goal: every call that published admin clients offer is answered as Apache Kafka answers it.

Method: each client makes all its calls (`stock_admin_walks`), those that must fail among them; what
it is told is compared with what it is told by Apache Kafka, call by call.
"""

from __future__ import annotations

import pytest
import real_kafka
from differential_messages import first_difference
from differential_world import World
from stock_admin import Walk
from stock_admin_walks import WALKS
from stock_daemon import StockDaemon

RAISED = {
    "aiokafka": {"shrink"},
    "confluent-kafka": {
        "create again", "create with a wrong setting", "shrink", "describe none", "delete again",
        "wrong value", "unknown name", "append to a number", "delete to 999", "delete group again",
        "no users", "delete nobody",
    },
    "kafka-python": {
        "create again, raising", "shrink", "wrong feature", "offset of none", "delete too many",
        "elect, raising", "producers", "unknown transaction",
    },
}  # fmt: skip
"""Calls that are to raise."""


@pytest.mark.foreign
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("client", sorted(WALKS))
def test_every_call_is_answered(client: str, daemon: StockDaemon, name: str) -> None:
    walk = Walk(daemon.bootstrap_servers, f"{name}-")
    WALKS[client](walk)
    raised = {what for what, answer in walk.answers.items() if str(answer).startswith("raised")}
    assert raised == RAISED[client]


@pytest.mark.kafka
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("client", sorted(WALKS))
def test_every_answer_is_that_of_apache_kafka(
    client: str, daemon: StockDaemon, apache_kafka: real_kafka.ApacheKafka, name: str
) -> None:
    both = [Walk(each.bootstrap_servers, f"{name}-") for each in (apache_kafka, daemon)]
    for walk in both:
        World(walk.bootstrap, walk.prefix, park_s=1).warm("g", "tx")
        WALKS[client](walk)
    theirs, ours = (walk.answers for walk in both)
    differing = [first_difference(theirs[what], ours[what], what) for what in theirs]
    assert not [text for text in differing if text]
    assert list(theirs) == list(ours)
