"""Goal: confluent-kafka, unchanged, works with our broker as with Apache Kafka.

Method: the scenarios of ``stock_scenarios``, each against the daemon on a folder and against Apache
Kafka, so that a difference shows as one test that passes and one that fails.
"""

from __future__ import annotations

import pytest
from stock_confluent import ConfluentKit
from stock_scenarios import SCENARIOS, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_confluent(scenario: Scenario, bootstrap: str, name: str) -> None:
    scenario(ConfluentKit(), bootstrap, name)
