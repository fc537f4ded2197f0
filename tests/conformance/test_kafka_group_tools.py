"""Goal: Apache Kafka's own tools work with consumer groups of the bundled broker (KIP-848).

Method: the console consumer with the consumer protocol reads from our daemon while our clients are
members of the same group; ``kafka-consumer-groups`` describes, resets and deletes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest
import real_kafka
from consumer_worlds import make_topic, poll_until, write
from stock_daemon import StockDaemon

from onceflow.sdk import Consumer

LAUNCHER = os.environ.get("ONCEFLOW_REAL_KAFKA") or real_kafka.__file__
UNAVAILABLE = real_kafka.unavailable_reason()

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.timeout(600),
    pytest.mark.skipif(UNAVAILABLE is not None, reason=str(UNAVAILABLE)),
]


def tool(name: str, bootstrap: str, *arguments: str) -> str:
    """What one of Kafka's tools prints."""
    done = subprocess.run(
        [sys.executable, str(LAUNCHER), "tool", name, "--bootstrap-server", bootstrap, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def table(text: str) -> list[dict[str, str]]:
    """The rows below the tool's headline; columns end where the next one's name begins."""
    lines = [line for line in text.splitlines() if line.strip()]
    head = next(n for n, line in enumerate(lines) if line.startswith("GROUP"))
    names = lines[head].replace("COORDINATOR (ID)", "COORDINATOR").split()
    return [
        dict(zip(names, line.replace("  (", "(").split(), strict=False))
        for line in lines[head + 1 :]
    ]


def test_tools_read_describe_reset_and_delete(daemon: StockDaemon) -> None:
    bootstrap = daemon.bootstrap_servers
    topic, group = make_topic(bootstrap, 2), f"tools-{uuid.uuid4().hex[:8]}"
    write(bootstrap, topic, ["a", "b", "c"])
    read = tool(
        "kafka-console-consumer", bootstrap, "--topic", topic, "--group", group,
        "--consumer-property", "group.protocol=consumer", "--from-beginning",
        "--max-messages", "3", "--timeout-ms", "30000",
    )  # fmt: skip
    assert read.split()[-3:] == ["a", "b", "c"]

    def groups(*arguments: str) -> list[dict[str, str]]:
        return table(tool("kafka-consumer-groups", bootstrap, *arguments))

    assert {"GROUP": group, "TYPE": "Consumer"} in groups("--list", "--type")
    with Consumer(
        topic, bootstrap_servers=bootstrap, group_id=group, group_protocol="consumer"
    ) as consumer:
        poll_until(lambda: len(consumer.assignment()) == 2, consumer)
        (member,) = groups("--describe", "--group", group, "--members", "--verbose")
        assert member["#PARTITIONS"] == "2"
        assert member["CURRENT-ASSIGNMENT"] == member["TARGET-ASSIGNMENT"] == f"{topic}:0,1"
        (state,) = groups("--describe", "--group", group, "--state")
        assert (state["STATE"], state["ASSIGNMENT-STRATEGY"]) == ("Stable", "uniform")
        offsets = {row["PARTITION"]: row for row in groups("--describe", "--group", group)}
        assert (offsets["0"]["CURRENT-OFFSET"], offsets["0"]["LAG"]) == ("3", "0")
    reset = groups(
        "--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"
    )
    assert {row["NEW-OFFSET"] for row in reset} == {"0"}
    deleted = tool(
        "kafka-consumer-groups", bootstrap, "--delete-offsets", "--group", group, "--topic", topic
    )
    assert "Successful" in deleted
    gone = tool("kafka-consumer-groups", bootstrap, "--delete", "--group", group)
    assert "successful" in gone
    assert group not in tool("kafka-consumer-groups", bootstrap, "--list")
