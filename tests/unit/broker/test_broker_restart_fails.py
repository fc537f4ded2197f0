"""What failed on the way to serving serves nobody, and may be tried again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from onceflow.broker_lite import Broker
from onceflow.broker_lite.broker import BrokerState, open_broker
from onceflow.broker_lite.coordinators import build
from onceflow.broker_lite.log import MemoryStorage
from onceflow.broker_lite.log.log_errors import DataFolderError
from onceflow.broker_lite.settings.broker_config import BrokerConfig


def test_a_restart_that_fails_leaves_a_broker_that_can_be_started(tmp_path: Path) -> None:
    broker = Broker(tmp_path).start()
    try:
        broker.create_topic("t")
        (tmp_path / "topic-configs.json").write_text("{")
        with pytest.raises(DataFolderError, match=r"topic-configs\.json"):
            broker.restart(kill=True)
        assert not broker.running
        (tmp_path / "topic-configs.json").write_text("{}")
        assert broker.start().topic_names() == ["t"]
    finally:
        broker.stop()


def test_coordinators_that_could_not_read_their_topics_are_made_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = open_broker(MemoryStorage(), BrokerConfig(), random.Random(7), 1_700_000_000_000)
    half: list[object] = []

    def breaks_in_the_middle(state: BrokerState, now_ms: int) -> None:
        half.append(state.groups)
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patches:
        patches.setattr(build, "load", breaks_in_the_middle)
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output error"):
                _ = state.transactions
    assert half[0] is not half[1]
    assert state.groups not in half
