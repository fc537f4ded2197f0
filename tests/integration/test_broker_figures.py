"""Goal: a test sees how far an open transaction holds back the readers of a partition, and whose it
is: what was committed behind it is there, and not to be seen.

Method: two transactional clients on one partition; figures in process and over HTTP.
"""

from __future__ import annotations

import pytest

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import PartitionFigures
from onceflow.sdk import Producer


def test_what_was_committed_behind_an_open_transaction_is_told() -> None:
    with Broker() as broker:
        broker.create_topic("t")
        broker.create_topic("u", partitions=2)
        assert broker.partition_figures("t") == [PartitionFigures("t", 0, 0, 0, 0, 0, {})]
        assert [each.partition for each in broker.partition_figures("u")] == [0, 1]
        servers = broker.bootstrap_servers
        with (
            Producer(bootstrap_servers=servers, transactional_id="first") as first,
            Producer(bootstrap_servers=servers, transactional_id="second") as second,
        ):
            first.begin_transaction()
            first.send("t", b"a").result()
            second.begin_transaction()
            second.send("t", b"b").result()
            second.commit_transaction()
            (held,) = broker.partition_figures("t")
            # The record of each, and the marker of the second.
            assert held[:6] == ("t", 0, 0, 0, 3, 3)
            assert list(held.open_transactions.values()) == [0]
            first.commit_transaction()
        (done,) = broker.partition_figures("t")
        assert done == PartitionFigures("t", 0, 0, 4, 4, 0, {})
        with pytest.raises(KeyError, match="unknown topic v"):
            broker.partition_figures("v")
    with pytest.raises(RuntimeError, match="not running"):
        broker.partition_figures()
