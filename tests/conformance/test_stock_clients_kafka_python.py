"""Goal: kafka-python, unchanged, works with our broker as with Apache Kafka.

Method: the scenarios of ``stock_scenarios``, each against the daemon on a folder and against Apache
Kafka, so that a difference shows as one test that passes and one that fails.
"""

from __future__ import annotations

import pytest
from stock_kafka_python import KafkaPythonKit
from stock_scenarios import SCENARIOS, Scenario

# It closes sockets of lost connections by garbage collection only.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_kafka_python(scenario: Scenario, bootstrap: str, name: str) -> None:
    scenario(KafkaPythonKit(), bootstrap, name)
