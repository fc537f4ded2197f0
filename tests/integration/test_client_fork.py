"""Goal: a forked child that inherits clients is told so, can close them, and harms its parent not.

Method: a process of its own forks with open clients; the child tries every client and exits
through their contexts, then the parent goes on with them.
"""

from __future__ import annotations

import subprocess
import sys

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, NewTopic

SCRIPT = """
import os, sys
from onceflow.sdk import Admin, Consumer, Producer, TopicPartition
from onceflow.sdk.errors import IllegalStateError

servers = sys.argv[1]
with (
    Producer(bootstrap_servers=servers) as producer,
    Consumer(bootstrap_servers=servers) as consumer,
    Admin(bootstrap_servers=servers) as admin,
):
    consumer.assign([TopicPartition("t", 0)])
    consumer.seek_to_beginning()
    pid = os.fork()
    if pid == 0:
        calls = (lambda: producer.send("t", b"child"), consumer.poll, admin.list_topics)
        caught = 0
        for call in calls:
            try:
                call()
            except IllegalStateError as error:
                caught += "fork" in str(error)
        try:
            for client in (consumer, admin, producer):
                with client:
                    pass
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(9)
        os._exit(caught)
    status = os.waitpid(pid, 0)[1] >> 8
    assert status == 3, status
    producer.send("t", b"parent").result(20)
    found = [r.value for records in consumer.poll(5000).values() for r in records]
    assert found == [b"parent"], found
    assert "t" in admin.list_topics()
"""


def test_forked_child_closes_what_it_inherited_without_effect() -> None:
    with Broker() as broker:
        with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic("t", 1)])
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, broker.bootstrap_servers],
            timeout=30,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
