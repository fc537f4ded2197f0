"""Goal: every client works with every profile as it works with that release.

Method: each published client, and ours, plays the same scenarios against a broker of each profile.
`make test` has the shortest that touches most; `make chaos` has all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from stock_aiokafka import AiokafkaKit
from stock_clients import Kit
from stock_confluent import ConfluentKit
from stock_kafka_python import KafkaPythonKit
from stock_onceflow import OurAsyncKit, OurKit
from stock_scenarios import (
    aborted_transactions_are_seen_only_uncommitted,
    group_of_two_shares_commits_and_resumes,
    idempotent_producer_keeps_order_and_tells_offsets,
    offsets_are_committed_by_hand_and_found_again,
    records_come_back_as_they_were_sent,
)

from onceflow.broker_lite import Broker

pytestmark = pytest.mark.foreign

IN_MAKE_TEST = ("2.8",)
OTHERS = ("2.1", "2.5", "3.3", "3.9", "4.0", "4.4")
KITS = (ConfluentKit(), AiokafkaKit(), KafkaPythonKit(), OurKit(), OurAsyncKit())

Scenario = Callable[[Kit, str, str], None]


def play(scenario: Scenario, kit: Kit, profile: str) -> None:
    with Broker(profile=profile) as broker:
        scenario(kit, broker.bootstrap_servers, re.sub(r"\W+", "-", kit.name))


@pytest.mark.parametrize("profile", IN_MAKE_TEST)
@pytest.mark.parametrize("kit", KITS[:4], ids=lambda kit: kit.name)
def test_a_transaction_with_offsets(kit: Kit, profile: str) -> None:
    play(aborted_transactions_are_seen_only_uncommitted, kit, profile)


@pytest.mark.chaos
@pytest.mark.parametrize(
    "scenario",
    [
        aborted_transactions_are_seen_only_uncommitted,
        offsets_are_committed_by_hand_and_found_again,
        records_come_back_as_they_were_sent,
        group_of_two_shares_commits_and_resumes,
        idempotent_producer_keeps_order_and_tells_offsets,
    ],
    ids=lambda scenario: scenario.__name__,
)
@pytest.mark.parametrize("profile", IN_MAKE_TEST + OTHERS)
@pytest.mark.parametrize("kit", KITS, ids=lambda kit: kit.name)
def test_every_client_and_profile(scenario: Scenario, kit: Kit, profile: str) -> None:
    play(scenario, kit, profile)
