"""Goal: programs do the same however their interpreter is run and whatever stands around them.

Method: one program in processes of its own, under switches and settings that real services have;
what it prints is compared with what it prints without them. Values and errors cross processes.
"""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import os
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

import onceflow.processors.errors as processor_errors
import onceflow.sdk.errors as sdk_errors
import onceflow.transactions.errors as transaction_errors
from onceflow.sdk import (
    ConsumerConfig,
    ConsumerRecord,
    NewTopic,
    OffsetAndMetadata,
    ProducerConfig,
    RecordMetadata,
    SecurityConfig,
    TopicPartition,
    serde,
)

PROGRAM = """
import asyncio, tempfile
from pathlib import Path
from click.testing import CliRunner
from prometheus_client import CollectorRegistry, generate_latest
from onceflow.broker_lite import Broker
from onceflow.cli import main
from onceflow.processors import App, State
from onceflow.processors.identity import claim_slot
from onceflow.processors.stores.lmdb import boot_id
from onceflow.processors.testing import TestDriver
from onceflow.sdk import Admin, AsyncConsumer, AsyncProducer, Consumer, KafkaError, NewTopic
from onceflow.sdk import Producer
from onceflow.sdk.errors import CommitOutcomeUnknownError
from onceflow.sdk.prometheus import ClientCollector

app = App("count", "127.0.0.1:1")

@app.processor("clicks", to="counts")
def count(click: bytes, seen: State[int]) -> int:
    seen.set(seen.get(0) + 1)
    return seen.get(0)

async def with_asyncio(servers):
    async with AsyncProducer(bootstrap_servers=servers, transactional_id="y") as producer:
        async with producer.transaction():
            await asyncio.gather(*(producer.send("t", b"%d" % n) for n in range(50)))
    async with AsyncConsumer(
        "t", bootstrap_servers=servers, group_id="h", auto_offset_reset="earliest"
    ) as consumer:
        return sorted([(await anext(consumer)).value for _ in range(52)])

with Broker() as broker:
    servers = broker.bootstrap_servers
    with Admin(bootstrap_servers=servers) as admin:
        admin.create_topics([NewTopic("t", partitions=1)])
        try:
            admin.create_topics(["t"])
        except KafkaError as error:
            print(error)
    with Producer(bootstrap_servers=servers, transactional_id="x", client_id="p") as producer:
        for kept in (True, False, True):
            producer.begin_transaction()
            producer.send("t", b"kept" if kept else b"dropped")
            producer.commit_transaction() if kept else producer.abort_transaction()
        registry = CollectorRegistry()
        registry.register(ClientCollector(producer))
        texts = generate_latest(registry).decode()
        print([line for line in texts.splitlines() if line.startswith("# HELP")])
    with Consumer(
        "t", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest"
    ) as consumer:
        print([next(consumer).value for _ in range(2)])
    print(asyncio.run(with_asyncio(servers)))
print(CommitOutcomeUnknownError())
driver = TestDriver(app)
driver.send("clicks", b"a", key=b"u")
with tempfile.TemporaryDirectory() as folder:
    claim_slot(Path(folder), None).release()
    print(len(boot_id()))
print(driver.values("counts"))
for command in ([], ["broker"], ["run"]):
    print(CliRunner().invoke(main, [*command, "--help"]).output)
"""


def output(*switches: str, code: str = PROGRAM, cwd: Path | None = None, **variables: str) -> str:
    """What a program prints; nothing may stand on its standard error."""
    done = subprocess.run(
        [sys.executable, *switches, "-c", code],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
        cwd=cwd,
        env={**os.environ, **variables},
    )
    slow = re.compile(r"Executing .* took .* seconds")  # asyncio's debug mode on a busy machine.
    told = [line for line in done.stderr.splitlines() if not slow.fullmatch(line)]
    assert (done.returncode, told) == (0, [])
    return done.stdout


@pytest.fixture(scope="module")
def usual() -> str:
    printed = output()
    assert "A topic of this name exists already" in printed
    assert "Interceptors that raised" in printed
    assert "b'49'" in printed
    return printed


def test_switches_that_make_errors_of_warnings_change_nothing(usual: str) -> None:
    switches = ("-X", "dev", "-X", "warn_default_encoding", "-W", "error", "-bb")
    assert output(*switches) == usual


def test_without_asserts_and_docstrings_the_results_are_the_same(usual: str) -> None:
    """Python drops the sentences then, and errors show the names of their classes instead."""
    printed = output("-OO")
    results = [line for line in usual.splitlines() if line.startswith("[b") or line.isdigit()]
    assert results
    assert [each for each in printed.splitlines() if each in results] == results
    assert "TopicAlreadyExistsError" in printed
    assert "\nCommitOutcomeUnknownError\n" in printed
    assert "--listen" in printed


def errors_of_users() -> list[type[BaseException]]:
    """Every exception class that the clients' packages have."""
    modules = (sdk_errors, transaction_errors, processor_errors)
    found = [each for module in modules for each in vars(module).values()]
    return sorted(
        {each for each in found if isinstance(each, type) and issubclass(each, BaseException)},
        key=lambda each: each.__name__,
    )


def made(kind: type[BaseException]) -> BaseException:
    """An error with every argument that its class takes."""
    values = {"int": 7, "str": "what happened", "object": b"what was refused"}
    taken = [*inspect.signature(kind.__init__).parameters.values()][1:]
    return kind(
        *(
            values.get(str(each.annotation), "what happened")
            for each in taken
            if each.kind is not each.VAR_KEYWORD
        )
    )


def test_every_error_reaches_the_parent_of_a_worker_process_whole() -> None:
    errors = [made(kind) for kind in errors_of_users()]
    assert len(errors) > 130
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for error, again in zip(errors, pool.map(copy.copy, errors, chunksize=500), strict=True):
            assert type(again) is type(error)
            assert (str(again), again.args) == (str(error), error.args)
            assert vars(again) == vars(error)


def test_values_reach_a_worker_process_whole() -> None:
    partition = TopicPartition("t", 3)
    values = [
        partition,
        RecordMetadata("t", 3, 5, 1_000),
        ConsumerRecord("t", 3, 5, 1_000, key=b"k", value={"a": [1]}, headers=(("h", b"1"),)),
        {partition: OffsetAndMetadata(5)},
        NewTopic("t", partitions=3),
        ProducerConfig(bootstrap_servers="localhost:9092", value_serializer=serde.JSON.serialize),
        ConsumerConfig(bootstrap_servers="localhost:9092", security=SecurityConfig()),
    ]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert list(pool.map(copy.copy, values)) == values
