"""A broker in this process whose restart fails is stopped, and may be started again."""

from __future__ import annotations

from pathlib import Path

import pytest

from onceflow.broker_lite import Broker
from onceflow.broker_lite.log.log_errors import DataFolderError


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
