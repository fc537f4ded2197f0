"""Goal: Apache Kafka is started for tests in a way that never fails by chance.

Method: what is made by chance is given here.
"""

from __future__ import annotations

from uuid import UUID

import pytest
import real_kafka


def test_a_cluster_id_is_never_taken_for_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in 64 would begin with a hyphen, and Kafka's tool that formats a folder would refuse."""
    made = iter([UUID(bytes=b"\xf8" + bytes(15)), UUID(bytes=bytes(16))])
    monkeypatch.setattr(real_kafka.uuid, "uuid4", lambda: next(made))
    assert real_kafka.new_cluster_id() == "A" * 22
