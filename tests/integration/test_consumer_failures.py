"""Goal: a consumer survives what brokers and networks do to it, and ends in bounded time.

Method: faults are injected into the bundled broker, or it is killed; Ctrl-C is sent to a process of
its own. Field cases FC-49, 53 and 54 are among the rules shown.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from consumer_worlds import fresh, make_topic, poll_until, read, write

from onceflow.broker_lite import Broker
from onceflow.broker_lite.testing import Fault
from onceflow.sdk import Admin, Consumer, TopicPartition
from onceflow.sdk.errors import (
    CommitFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    NoBrokersAvailableError,
    RequestTimedOutError,
)
from onceflow.sdk.protocol.api.cluster import MetadataRequest
from onceflow.sdk.protocol.api.fetch import FetchRequest
from onceflow.sdk.protocol.api.group_offsets import OffsetCommitRequest, OffsetFetchRequest
from onceflow.sdk.protocol.api.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from onceflow.sdk.protocol.api.offsets import ListOffsetsRequest
from onceflow.sdk.protocol.error_codes import ErrorCode


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def subscribed(
    broker: Broker, topic: str, group: str | None = None, **settings: object
) -> Consumer:
    settings = {
        "heartbeat_interval_ms": 100,
        "auto_offset_reset": "earliest",
        "retry_backoff_ms": 20,
        "enable_auto_commit": False,
    } | settings
    return Consumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=group or fresh("group"),
        **settings,
    )


# --- faults that pass ---


@pytest.mark.parametrize("fault", [Fault.DROP_REQUEST, Fault.DROP_ANSWER])
@pytest.mark.parametrize(
    "request_type",
    [
        FetchRequest,
        JoinGroupRequest,
        SyncGroupRequest,
        HeartbeatRequest,
        OffsetFetchRequest,
        ListOffsetsRequest,
        MetadataRequest,
    ],
)
def test_a_broken_connection_is_made_up_for(
    broker: Broker, request_type: type, fault: Fault
) -> None:
    topic = make_topic(broker.bootstrap_servers)
    write(broker.bootstrap_servers, topic, ["a", "b"])
    with subscribed(broker, topic, metadata_max_age_ms=200, session_timeout_ms=6_000) as consumer:
        rule = broker.faults.add(request_type, fault, times=2)
        values = poll_until(lambda: rule.hits >= 2 and bool(consumer.assignment()), consumer)
        while len(values) < 2:
            values += read(consumer, 1)
        assert values == ["a", "b"]


@pytest.mark.parametrize(
    ("request_type", "code"),
    [
        (FetchRequest, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (FetchRequest, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (JoinGroupRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (JoinGroupRequest, ErrorCode.NOT_COORDINATOR),
        (SyncGroupRequest, ErrorCode.REBALANCE_IN_PROGRESS),
        (HeartbeatRequest, ErrorCode.ILLEGAL_GENERATION),
        (OffsetFetchRequest, ErrorCode.UNSTABLE_OFFSET_COMMIT),
        (OffsetFetchRequest, ErrorCode.NOT_COORDINATOR),
        (ListOffsetsRequest, ErrorCode.LEADER_NOT_AVAILABLE),
    ],
)
def test_an_error_that_passes_is_made_up_for(
    broker: Broker, request_type: type, code: ErrorCode
) -> None:
    topic = make_topic(broker.bootstrap_servers)
    write(broker.bootstrap_servers, topic, ["a", "b"])
    with subscribed(broker, topic) as consumer:
        rule = broker.faults.add(request_type, Fault.ERROR, times=2, error=code)
        values = poll_until(lambda: rule.hits >= 2 and bool(consumer.assignment()), consumer)
        while len(values) < 2:
            values += read(consumer, 1)
        assert values[:2] == ["a", "b"]


@pytest.mark.parametrize(
    "code", [ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]
)
def test_who_asks_for_committed_offsets_is_told_and_may_be_refused(code: ErrorCode) -> None:
    """KIP-848: a stale epoch is asked with again, and an expelled member finds out."""
    with Broker(journal=True) as broker:
        topic = make_topic(broker.bootstrap_servers)
        write(broker.bootstrap_servers, topic, ["a", "b"])
        consumer = Consumer(
            topic,
            bootstrap_servers=broker.bootstrap_servers,
            group_id=fresh("group"),
            group_protocol="consumer",
            auto_offset_reset="earliest",
            retry_backoff_ms=20,
        )
        if code:
            broker.faults.add(OffsetFetchRequest, Fault.ERROR, times=2, error=code)
        with consumer:
            assert read(consumer, 2) == ["a", "b"]
            member = consumer.group_metadata()
        asked = [entry.request for entry in broker.journal.select("OffsetFetch")]
        assert len(asked) >= (3 if code else 1)
        for request in asked:
            assert isinstance(request, OffsetFetchRequest)
            (group,) = request.groups
            assert (group.member_id, group.member_epoch > 0) == (member.member_id, True)


def test_a_commit_is_asked_again_until_it_is_stored(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap_servers)
    partition = TopicPartition(topic, 0)
    write(broker.bootstrap_servers, topic, ["a"])
    with subscribed(broker, topic) as consumer:
        read(consumer, 1)
        for fault, code in (
            (Fault.ERROR, ErrorCode.NOT_COORDINATOR),
            (Fault.ERROR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            (Fault.DROP_ANSWER, ErrorCode.NONE),
        ):
            broker.faults.add(OffsetCommitRequest, fault, error=code)
        consumer.commit()
        committed = consumer.committed([partition])[partition]
        assert committed is not None
        assert committed.offset == 1


def test_a_commit_that_the_group_refuses_fails_for_good(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap_servers)
    write(broker.bootstrap_servers, topic, ["a"])
    with subscribed(broker, topic) as consumer:
        read(consumer, 1)
        rule = broker.faults.add(
            OffsetCommitRequest, Fault.ERROR, times=None, error=ErrorCode.ILLEGAL_GENERATION
        )
        with pytest.raises(CommitFailedError, match="ILLEGAL_GENERATION"):
            consumer.commit()
        assert rule.hits == 1
        broker.faults.clear()


def test_a_refusal_for_good_is_raised_by_the_poll(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap_servers)
    with subscribed(broker, topic) as consumer:
        broker.faults.add(
            JoinGroupRequest,
            Fault.ERROR,
            times=None,
            error=ErrorCode.GROUP_AUTHORIZATION_FAILED,
        )
        with pytest.raises(GroupAuthorizationFailedError):
            poll_until(lambda: False, consumer)
        broker.faults.clear()


def test_a_silent_broker_is_left_and_the_reader_goes_on(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap_servers)
    with subscribed(broker, topic, request_timeout_ms=1_000) as consumer:
        poll_until(lambda: bool(consumer.assignment()), consumer)
        consumer.poll(200)
        rule = broker.faults.add(FetchRequest, Fault.HOLD)
        poll_until(lambda: rule.hits == 1, consumer)
        write(broker.bootstrap_servers, topic, ["a"])
        assert read(consumer, 1, seconds=8) == ["a"]


def test_a_broker_that_comes_back_is_found_again(tmp_path: Path) -> None:
    broker = Broker(data=tmp_path)
    broker.start()
    topic = make_topic(broker.bootstrap_servers)
    write(broker.bootstrap_servers, topic, ["a"])
    with subscribed(broker, topic, session_timeout_ms=6_000) as consumer:
        assert read(consumer, 1) == ["a"]
        consumer.commit()
        broker.stop()
        consumer.poll(300)
        broker.start()
        write(broker.bootstrap_servers, topic, ["b"])
        assert "b" in read(consumer, 1, seconds=30)
    broker.stop()


# --- the end ---


@pytest.mark.parametrize("way", ["killed", "frozen"])
def test_every_call_ends_in_time_when_the_broker_is_gone(way: str) -> None:
    broker = Broker()
    broker.start()
    topic = make_topic(broker.bootstrap_servers)
    partition = TopicPartition(topic, 0)
    write(broker.bootstrap_servers, topic, ["a"])
    others = set(threading.enumerate())
    consumer = subscribed(broker, topic, enable_auto_commit=True)
    read(consumer, 1)
    if way == "killed":
        broker.kill()
    else:
        for request_type in (
            FetchRequest,
            OffsetCommitRequest,
            OffsetFetchRequest,
            HeartbeatRequest,
        ):
            broker.faults.add(request_type, Fault.HOLD, times=None)
    for call in (
        lambda: consumer.commit(timeout_ms=500),
        lambda: consumer.committed([partition], timeout_ms=500),
    ):
        began = time.monotonic()
        with pytest.raises(KafkaError):
            call()
        assert time.monotonic() - began < 20
    began = time.monotonic()
    consumer.close(timeout_ms=1_000)
    assert time.monotonic() - began < 20
    if way == "frozen":
        broker.kill()
    own = set(threading.enumerate()) - others
    assert not [thread for thread in own if thread.name == "onceflow-consumer"]


def test_a_position_that_cannot_be_learned_times_out(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap_servers)
    partition = TopicPartition(topic, 0)
    broker.faults.add(
        OffsetFetchRequest, Fault.ERROR, times=None, error=ErrorCode.UNSTABLE_OFFSET_COMMIT
    )
    with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id=fresh("group")) as consumer:
        consumer.assign([partition])
        with pytest.raises(RequestTimedOutError, match=f"position of {topic}-0"):
            consumer.position(partition, timeout_ms=300)
        with pytest.raises(RequestTimedOutError):
            consumer.committed([partition], timeout_ms=300)
        broker.faults.clear()


def test_no_broker_at_all_is_one_error_that_lists_the_addresses() -> None:
    with pytest.raises(NoBrokersAvailableError, match=r"127\.0\.0\.1:1"):
        Consumer(bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=300)


CTRL_C_PROGRAM = """
import sys
from onceflow.sdk import Consumer
with Consumer(sys.argv[2], bootstrap_servers=sys.argv[1], group_id=sys.argv[3]) as consumer:
    while not consumer.assignment():
        consumer.poll(100)
    print("ready", flush=True)
    {wait}
"""


@pytest.mark.parametrize(
    "wait", ["consumer.poll(600_000)", "next(consumer)"], ids=["poll", "iteration"]
)
def test_ctrl_c_ends_a_wait_and_empties_the_group(broker: Broker, wait: str) -> None:
    topic, group = make_topic(broker.bootstrap_servers), fresh("group")
    program = CTRL_C_PROGRAM.format(wait=wait)
    process = subprocess.Popen(
        [sys.executable, "-c", program, broker.bootstrap_servers, topic, group],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    began = time.monotonic()
    _, errors = process.communicate(timeout=30)
    assert time.monotonic() - began < 20
    assert process.returncode != 0
    assert errors.count("Traceback") <= 1
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        assert admin.describe_groups([group])[group].state == "Empty"


def test_ctrl_c_ends_a_wait_soon_when_the_broker_is_mute(broker: Broker) -> None:
    topic = make_topic(broker.bootstrap_servers)
    consumer = subscribed(broker, topic)
    poll_until(lambda: bool(consumer.assignment()), consumer)
    for request_type in (FetchRequest, HeartbeatRequest, LeaveGroupRequest):
        broker.faults.add(request_type, Fault.HOLD, times=None)

    def interrupted() -> None:
        with consumer:
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 20
    broker.faults.clear()
