"""Goal: field cases of ends (T8): signals, brokers that are gone, event loops used in a wrong way.

Method: programs in processes of their own where signals, exits and frozen brokers matter; the rest
with the clients in this process.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from case_clients import OURS, read, values
from case_proxy import Action, Proxy
from processor_processes import (
    Worker,
    Workers,
    committed_values,
    ends,
    fill,
    read_all,
    wait_for,
    workers_in,
)

from onceflow.broker_lite import Broker
from onceflow.sdk import Admin, AsyncConsumer, AsyncProducer, KafkaError, NewTopic, TopicPartition

LEAVES_S = 20.0
"""Limit for leaving a group: well below the 45 s after which a session ends by itself."""

ENDS_S = 8.0
"""Limit for the end of a transaction, which times out after 10 s."""


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """Processes; none is left behind."""
    with workers_in(tmp_path) as running:
        yield running


def ready(worker: Worker, word: str = "ready") -> None:
    """Wait until a program says so."""
    wait_for(lambda: word in worker.output(), f"{word!r} from the program")


def ends_within(worker: Worker, number: signal.Signals, limit_s: float) -> int:
    """Send a signal; gives the exit status."""
    started = time.monotonic()
    worker.signal(number)
    status = worker.process.wait(30)
    taken = time.monotonic() - started
    # Another load of the machine may take its time; what does not end at all takes 30 or 60.
    assert taken < limit_s + 15, f"{taken:.1f} s: {worker.output()}"
    assert worker.output().count("Traceback") <= 1, worker.output()
    return status


def group_is_empty(bootstrap: str, group: str) -> bool:
    """Whether a group has no members."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        return not admin.describe_groups([group])[group].members


# --- FC-51


def test_fc51_made_at_import_and_used_in_two_loops(broker: Broker, name: str) -> None:
    broker.create_topic(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # The first loop left sockets open.
        messages = use_in_two_loops(broker.bootstrap_servers, name)
        gc.collect()
    assert len(messages) == 7
    assert all(re.search("closed|loop", message) for message in messages), messages


def use_in_two_loops(bootstrap: str, topic: str) -> list[str]:
    """What clients say that are used in another loop, stopped and not stopped."""
    made_early = AsyncProducer(bootstrap_servers=bootstrap)
    left_open = AsyncProducer(bootstrap_servers=bootstrap)
    reader = AsyncConsumer(bootstrap_servers=bootstrap)
    messages = []

    async def first() -> None:
        await made_early.start()
        await made_early.send_and_wait(topic, b"first")
        await made_early.stop()
        await left_open.start()
        await reader.start()

    async def second() -> None:
        for use in (
            lambda: made_early.send(topic, b"x"),
            made_early.start,
            lambda: left_open.send(topic, b"x"),
            left_open.start,
            left_open.flush,
            reader.start,
            lambda: reader.end_offsets([TopicPartition(topic, 0)]),
        ):
            with pytest.raises(KafkaError) as caught:
                await asyncio.wait_for(use(), 20)
            messages.append(str(caught.value))

    asyncio.run(first())
    asyncio.run(second())
    return messages


async def test_fc51_started_and_stopped_twice(broker: Broker, name: str) -> None:
    broker.create_topic(name)
    producer = AsyncProducer(bootstrap_servers=broker.bootstrap_servers)
    consumer = AsyncConsumer(bootstrap_servers=broker.bootstrap_servers)
    for client in (producer, consumer):
        await client.start()
        await client.start()
    sent = [await producer.send(name, b"%d" % number) for number in range(100)]
    await producer.flush()
    assert [(await delivery).offset for delivery in sent] == list(range(100))
    consumer.assign([TopicPartition(name, 0)])
    consumer.seek_to_end()
    assert await consumer.poll(50) == {}
    before = time.process_time()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 1.5)
    assert time.process_time() - before < 0.5
    for client in (producer, consumer):
        await client.close()
        await client.close()
    found = await asyncio.to_thread(read, OURS, broker.bootstrap_servers, name)
    assert values(found) == [b"%d" % number for number in range(100)]


async def test_fc51_never_started(broker: Broker) -> None:
    settings = {"bootstrap_servers": broker.bootstrap_servers}
    for client in (AsyncProducer(**settings), AsyncConsumer(**settings)):  # type: ignore[arg-type]
        await client.close()
        await client.close()
    gc.collect()  # What earlier tests left behind is not this one's.
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for make in (AsyncProducer, AsyncConsumer):
            dropped: object = make(**settings)  # type: ignore[arg-type]
            del dropped
        gc.collect()
    assert [str(each.message) for each in caught] == []
    with pytest.raises(KafkaError, match="start"):
        await AsyncProducer(**settings).send("t", b"x")  # type: ignore[arg-type]


async def test_fc51_record_is_delivered_by_stop_after_a_blocked_loop(
    broker: Broker, name: str
) -> None:
    broker.create_topic(name)
    producer = AsyncProducer(bootstrap_servers=broker.bootstrap_servers)
    await producer.start()
    await producer.send(name, b"late")
    threading.Event().wait(1)  # Blocks the loop, as a careless handler does.
    await producer.stop()
    found = await asyncio.to_thread(read, OURS, broker.bootstrap_servers, name)
    assert values(found) == [b"late"]


# --- FC-53

READ = """
import sys
from onceflow.sdk import Consumer
with Consumer(sys.argv[2], bootstrap_servers=sys.argv[1], group_id=sys.argv[2]) as consumer:
    consumer.poll(0)
    while not consumer.assignment():
        consumer.poll(50)
    print("ready", flush=True)
    next(consumer)
"""
FLUSH = """
import os, sys
from onceflow.sdk import Producer
with Producer(bootstrap_servers=sys.argv[1]) as producer:
    producer.send(sys.argv[2], b"first").result()
    print("ready", flush=True)
    while not os.path.exists(sys.argv[3]):
        pass
    producer.send(sys.argv[2], b"second")
    print("flushing", flush=True)
    producer.flush()
"""
PROCESS = """
import sys, time
from onceflow.processors import App

name = sys.argv[2]
app = App(
    name, bootstrap_servers=sys.argv[1], state_dir=sys.argv[3],
    commit_interval_ms=20_000, transaction_timeout_ms=60_000, session_timeout_ms=90_000,
    shutdown_timeout_ms=5_000,
)

@app.processor(name + "-in", to=name + "-out")
def handle(value: str) -> str:
    print("handling", value, flush=True)
    if value.startswith("slow"):
        time.sleep(float(value.removeprefix("slow")))
    return value

app.run()
"""


def test_fc53_blocking_read(broker: Broker, name: str, workers: Workers) -> None:
    broker.create_topic(name)
    worker = workers.start(READ, broker.bootstrap_servers, name)
    ready(worker)
    assert ends_within(worker, signal.SIGINT, 1) != 0
    assert "KeyboardInterrupt" in worker.output()
    wait_for(lambda: group_is_empty(broker.bootstrap_servers, name), "leaving the group", LEAVES_S)


def test_fc53_flush_with_a_frozen_broker(
    broker: Broker, name: str, workers: Workers, tmp_path: Path
) -> None:
    broker.create_topic(name)
    with Proxy(broker.bootstrap_servers) as proxy:
        frozen = tmp_path / "frozen"
        worker = workers.start(FLUSH, proxy.bootstrap_servers, name, str(frozen))
        ready(worker)
        proxy.add(None, Action.SWALLOW)
        proxy.swallow_all()
        frozen.touch()
        ready(worker, "flushing")
        assert ends_within(worker, signal.SIGINT, 1) != 0


@pytest.fixture
def app_topics(broker: Broker, name: str) -> str:
    """Input and output topic of PROCESS."""
    broker.create_topic(f"{name}-in")
    broker.create_topic(f"{name}-out")
    return name


def start_processor(broker: Broker, name: str, workers: Workers, tmp_path: Path) -> Worker:
    """Start PROCESS and wait until it has processed and sent a first record."""
    address = broker.bootstrap_servers
    worker = workers.start(PROCESS, address, name, str(tmp_path / "state"))
    fill(address, f"{name}-in", [b"1"])
    wait_for(lambda: bool(read_all(address, f"{name}-out", "read_uncommitted")), "an output")
    return worker


def outcome(bootstrap: str, name: str, *, leaves: bool = True) -> tuple[int, int]:
    """Committed input offset and number of committed outputs, once the transaction has ended."""

    def settled() -> bool:
        stable, high = ends(bootstrap, f"{name}-out", 1)
        return stable == high

    wait_for(settled, "the end of the transaction", ENDS_S)
    if leaves:
        wait_for(lambda: group_is_empty(bootstrap, name), "leaving the group", LEAVES_S)
    with Admin(bootstrap_servers=bootstrap) as admin:
        offsets = admin.list_group_offsets(name)
    committed = offsets.get(TopicPartition(f"{name}-in", 0))
    offset = 0 if committed is None else committed.offset
    return offset, len(committed_values(bootstrap, f"{name}-out"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_fc53_idle_processor(
    broker: Broker, app_topics: str, workers: Workers, tmp_path: Path, number: signal.Signals
) -> None:
    worker = start_processor(broker, app_topics, workers, tmp_path)
    assert ends_within(worker, number, 1) == 0
    assert "Traceback" not in worker.output()
    # Documented: SIGTERM keeps the place in the group for the next start.
    leaves = number is signal.SIGINT
    assert outcome(broker.bootstrap_servers, app_topics, leaves=leaves) == (1, 1)


def test_fc53_processor_within_a_handler(
    broker: Broker, app_topics: str, workers: Workers, tmp_path: Path
) -> None:
    worker = start_processor(broker, app_topics, workers, tmp_path)
    fill(broker.bootstrap_servers, f"{app_topics}-in", [b"slow0.5", b"slow60"])
    ready(worker, "handling slow0.5")
    # Documented: the record in hand is finished and committed, within shutdown_timeout_ms (5 s).
    assert ends_within(worker, signal.SIGINT, 5) == 0
    assert outcome(broker.bootstrap_servers, app_topics) == (2, 2)


def test_fc53_second_interrupt_aborts(
    broker: Broker, app_topics: str, workers: Workers, tmp_path: Path
) -> None:
    worker = start_processor(broker, app_topics, workers, tmp_path)
    fill(broker.bootstrap_servers, f"{app_topics}-in", [b"slow60"])
    ready(worker, "handling slow60")
    worker.signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        worker.process.wait(0.5)
    assert ends_within(worker, signal.SIGINT, 2) == 130
    assert outcome(broker.bootstrap_servers, app_topics) == (0, 0)


# --- FC-54

GONE = """
import json, sys, threading, time
from onceflow.processors import App
from onceflow.sdk import Consumer, KafkaError, Producer

bootstrap, topic, state, limit = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
quick = {"bootstrap_servers": bootstrap}
plain = Producer(linger_ms=60_000, **quick)
plain.send(topic, b"first")
consumer = Consumer(topic, group_id=topic, **quick)
while not consumer.assignment():
    consumer.poll(50)
transactional = Producer(transactional_id=topic, **quick)
transactional.begin_transaction()
transactional.send(topic, b"open").result()
app = App(topic + "-app", bootstrap, state_dir=state, operation_timeout_ms=limit,
          shutdown_timeout_ms=limit)

@app.processor(topic, to=topic + "-out")
def same(value: bytes) -> bytes:
    return value

running = threading.Thread(target=app.run)
running.start()
while app._worker is None or not len(app._worker._tasks):
    time.sleep(0.05)
sent = [plain.send(topic, b"%d" % number) for number in range(100)]
print("ready", flush=True)
sys.stdin.readline()
report = {}

def measure(name, call):
    started = time.monotonic()
    try:
        call()
        outcome = "returned"
    except KafkaError as error:
        outcome = f"{type(error).__name__}: {error}"
    report[name] = (time.monotonic() - started, outcome)

measure("flush", lambda: plain.flush(limit))
measure("close", lambda: plain.close(limit))
measure("commit offsets", lambda: consumer.commit(timeout_ms=limit))
measure("close consumer", lambda: consumer.close(limit))
measure("commit", lambda: transactional.commit_transaction(limit))
measure("abort", lambda: transactional.abort_transaction(limit))
measure("close transactional", lambda: transactional.close(limit))

def stop():
    app.stop()
    running.join(30)

measure("stop processor", stop)
report["unsettled"] = sum(not each.done() or each.exception() is None for each in sent)
report["threads"] = [
    each.name for each in threading.enumerate()
    if not each.daemon and each is not threading.main_thread()
]
print(json.dumps(report), flush=True)
"""


@contextmanager
def daemon(data: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A broker in a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "onceflow.broker_lite", "--listen", "127.0.0.1:0",
         "--data", str(data), "--set", "group.initial.rebalance.delay.ms=0"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        found = re.match(r"onceflow broker ready on (\S+)", process.stdout.readline())
        assert found
        yield process, found[1]
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_fc54_closing_when_the_broker_is_gone(
    tmp_path: Path, name: str, end: signal.Signals
) -> None:
    limit_s = 1.0
    program = tmp_path / "gone.py"
    program.write_text(GONE)
    with daemon(tmp_path / "data") as (broker, bootstrap):
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topics([NewTopic(name, 1, 1), NewTopic(f"{name}-out", 1, 1)])
        client = subprocess.Popen(
            [sys.executable, str(program), bootstrap, name, str(tmp_path / "state"),
             str(int(limit_s * 1000))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert client.stdin is not None
        assert client.stdout is not None
        assert client.stderr is not None
        try:
            assert client.stdout.readline() == "ready\n", client.stderr.read()
            broker.send_signal(end)
            client.stdin.write("go\n")
            client.stdin.flush()
            report = json.loads(client.stdout.readline())
            assert client.wait(30) == 0
        finally:
            client.kill()
            _, errors = client.communicate()
    assert report.pop("unsettled") == 0
    assert report.pop("threads") == []
    slow = {what: found for what, found in report.items() if found[0] > limit_s + 20}
    assert not slow, (report, errors)
