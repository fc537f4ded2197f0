"""Goal: clients and broker work on any event loop, such as uvloop, which web servers bring along.

Method: uvloop for the asyncio clients; and as the process's policy, in a process of its own, for
the blocking clients and the broker, which make loops of their own. Which loop these choose is
asked for under each value of the switch, with uvloop and without it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from onceflow.broker_lite import Broker
from onceflow.broker_lite.daemon import commands
from onceflow.sdk import AsyncAdmin, AsyncConsumer, AsyncProducer, NewTopic
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.event_loops import SWITCH, new_event_loop
from onceflow.sdk.sync.portal import Portal

uvloop = pytest.importorskip("uvloop", reason="uvloop has no wheel for this platform")

WHOLE_PROGRAM = """
import asyncio, uvloop
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
from onceflow.broker_lite import Broker
from onceflow.sdk import Consumer, Producer, TopicPartition
with Broker() as broker:
    servers = broker.bootstrap_servers
    broker.create_topic("t", partitions=1)
    with Producer(bootstrap_servers=servers, transactional_id="x") as producer:
        producer.init_transactions()
        for kept in (True, False, True):
            producer.begin_transaction()
            producer.send("t", b"kept" if kept else b"dropped" * 100_000)
            producer.commit_transaction() if kept else producer.abort_transaction()
    with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        found = []
        while len(found) < 2:
            for records in consumer.poll(1000).values():
                found += [record.value for record in records]
    broker.restart()
print(found)
"""


def test_asyncio_clients_on_uvloop() -> None:
    async def main(servers: str) -> list[bytes | None]:
        async with AsyncAdmin(bootstrap_servers=servers) as admin:
            await admin.create_topics([NewTopic("t", partitions=3)])
        async with AsyncProducer(bootstrap_servers=servers, transactional_id="x") as producer:
            await producer.init_transactions()
            async with producer.transaction():
                for number in range(100):
                    await producer.send("t", b"%d" % number, key=b"%d" % number)
        values: list[bytes | None] = []
        async with AsyncConsumer(
            "t", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest"
        ) as consumer:
            while len(values) < 100:
                for records in (await consumer.poll(1000)).values():
                    values += [record.value for record in records]
            await consumer.commit()
        return values

    with Broker() as broker:
        loop = uvloop.new_event_loop()
        try:
            values = loop.run_until_complete(main(broker.bootstrap_servers))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()
    assert sorted(values) == sorted(b"%d" % number for number in range(100))


def test_blocking_clients_and_broker_where_uvloop_is_the_policy() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", textwrap.dedent(WHOLE_PROGRAM)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[b'kept', b'kept']"
    assert done.stderr == ""


def loop_of_a_portal() -> str:
    portal = Portal("test")
    try:
        return type(portal.loop).__module__.partition(".")[0]
    finally:
        portal.close()


@pytest.mark.parametrize(
    ("switch", "installed", "expected"),
    [
        ("", True, "uvloop"),
        ("1", True, "uvloop"),
        ("0", True, "asyncio"),
        ("", False, "asyncio"),
        ("0", False, "asyncio"),
    ],
)
def test_threads_of_blocking_clients_run_uvloop_where_it_is_installed(
    switch: str, installed: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SWITCH, switch)
    if not installed:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_of_a_portal() == expected


def test_a_loop_that_cannot_be_had_is_refused_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SWITCH, "yes")
    with pytest.raises(ConfigError, match=r"ONCEFLOW_UVLOOP='yes': must be 0 .* or 1"):
        new_event_loop()
    monkeypatch.setenv(SWITCH, "1")
    monkeypatch.setitem(sys.modules, "uvloop", None)
    with pytest.raises(ConfigError, match=r"not installed: pip install 'onceflow\[uvloop\]'"):
        new_event_loop()


@pytest.mark.parametrize(("switch", "expected"), [("1", "uvloop"), ("0", "asyncio")])
def test_the_daemon_runs_on_uvloop_too(
    switch: str, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def serve(*_: object) -> None:
        loops.append(type(asyncio.get_running_loop()).__module__.partition(".")[0])

    loops: list[str] = []
    monkeypatch.setenv(SWITCH, switch)
    monkeypatch.setattr(commands, "serve", serve)
    done = CliRunner().invoke(commands.broker, ["--data", str(tmp_path)])
    assert (done.exit_code, loops) == (0, [expected]), done.output


def test_the_daemon_refuses_a_switch_that_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(SWITCH, "yes")
    done = CliRunner().invoke(commands.broker, ["--data", str(tmp_path)])
    assert done.exit_code == commands.EXIT_CANNOT_START
    assert "cannot start: ONCEFLOW_UVLOOP='yes'" in done.output
