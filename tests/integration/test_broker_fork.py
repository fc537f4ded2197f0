"""Goal: a process that forks while a broker runs in it keeps its broker whole: the child neither
holds its address, folder and connections, nor waits for a thread that it does not have.

Method: processes of their own fork with an open broker and connected clients; the child lives on
until the parent has restarted and stopped the broker, or ends it as a test's clean-up would.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PARENT_GOES_ON = """
import os, sys
from onceflow.broker_lite import Broker
from onceflow.sdk import Producer

options = dict(listeners="PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0", control=0)
settings = {"sasl.enabled.mechanisms": "PLAIN", "onceflow.sasl.plain.credentials": "a:b"}
broker = Broker(sys.argv[1] or None, settings=settings, **options)
with broker, Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
    producer.send("t", b"before").result(20)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell)
        os.read(told, 1)  # Ends with the parent's last word.
        os._exit(0)
    os.close(told)
    broker.restart(kill=True)
    # Its connection was cut, also although the child had a copy of it; no request runs out.
    metadata = producer.send("t", b"after").result(20)
    assert metadata.offset == 1, metadata
broker.start()
broker.stop()
os.close(tell)
assert os.waitpid(child, 0)[1] == 0
"""

CHILD_CLEANS_UP = """
import os
from onceflow.broker_lite import Broker
from onceflow.broker_lite.log import StorageLockedError
from onceflow.sdk import Consumer, Producer, TopicPartition

with Broker() as broker:
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        producer.send("t", b"parent").result(20)
    child = os.fork()
    if child == 0:
        try:
            with broker:
                os._exit(8)
        except (OSError, StorageLockedError):  # The parent's broker has all of it.
            pass
        assert not broker.running
        broker.stop()
        with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
            producer.send("t", b"child").result(20)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    with Consumer(bootstrap_servers=broker.bootstrap_servers) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_beginning()
        found = [r.value for records in consumer.poll(20000).values() for r in records]
    assert found == [b"parent", b"child"], found
"""


def run(script: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_child_that_lives_on_does_not_hold_what_the_parent_gives_up(
    on_disk: bool, tmp_path: Path
) -> None:
    run(PARENT_GOES_ON, str(tmp_path / "data") if on_disk else "")


def test_a_child_uses_the_parents_broker_and_cleans_up_without_effect() -> None:
    run(CHILD_CLEANS_UP)
