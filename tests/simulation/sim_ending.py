"""How a run ended: what files, readers and groups hold, once nothing moves any more."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sim_broker import RawBatch, raw_batches
from sim_checker import Ending, StoredRecord
from sim_setup import TOPICS
from sim_work import SessionWorker

from onceflow.broker_lite.coordinators.coordinator_hash import coordinator_partition
from onceflow.broker_lite.dispatch import Dispatcher
from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.request_context import ConnectionState
from onceflow.broker_lite.topics import OFFSETS_TOPIC
from onceflow.sdk import AsyncConsumer
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.sdk.protocol.api.group_offsets import OffsetFetchRequest, OffsetFetchResponse
from onceflow.sdk.protocol.batch_reading import decode_batch
from onceflow.sdk.protocol.frame import encode_request

if TYPE_CHECKING:
    from sim_run import Simulation


def committed_offsets(sim: Simulation, group: str) -> dict[str, int] | None:
    """What a group committed, asked of the broker as a client would, without a network.

    Returns:
        Offsets by partition, where a consumer would go on that compares leader epochs; None while
        the broker cannot tell (it is down, or syncs first).
    """
    state, process = sim.broker.state, sim.broker.process
    if state is None or process is None:
        return None
    request = OffsetFetchRequest(group_id=group, topics=None)
    frame = b"".join(encode_request(request, api_version=7, correlation_id=1, client_id="look"))[4:]
    node_id = state.node_id
    if (internal := state.topics.get(OFFSETS_TOPIC)) is not None:
        partition = coordinator_partition(group, len(internal.partitions))
        node_id = state.placement.leader(internal.name, partition)
    connection = ConnectionState(0, "/sim", "PLAINTEXT", node_id=node_id)
    answer = Dispatcher(state, connection).dispatch(frame, process.wall_ms()).result
    if isinstance(answer, Deferred):
        return None
    assert isinstance(answer, OffsetFetchResponse)
    offsets = {}
    for topic in answer.topics:
        for found in topic.partitions:
            if found.error_code == 0 and found.committed_offset >= 0:
                log = state.topics.partition(topic.name, found.partition_index)
                offset = found.committed_offset
                counted = group.startswith("of-")  # By a producer, not in the log.
                if log is not None and found.committed_leader_epoch >= 0 and not counted:
                    _, end = log.end_offset_for_epoch(found.committed_leader_epoch)
                    offset = min(offset, end)
                offsets[f"{topic.name}-{found.partition_index}"] = offset
    return offsets


def stored_records(batches: Iterable[RawBatch]) -> list[StoredRecord]:
    """Records of a partition in order, with the fate of their transactions."""
    kept = list(batches)
    fate: dict[int, bool] = {}
    visible: dict[int, bool] = {}
    for batch in reversed(kept):
        if batch.control:
            # Version and type of the marker are the key of the only record in the batch.
            fate[batch.producer_id] = _marker_type(batch) == 1
        elif batch.transactional:
            visible[batch.base_offset] = fate.get(batch.producer_id, False)
    found = []
    for batch in kept:
        if not batch.control:
            seen = visible.get(batch.base_offset, True)
            for record in decode_batch(batch.data):
                key = None if record.key is None else bytes(record.key)
                value, time_ms = bytes(record.value or b""), record.timestamp
                found.append(StoredRecord(record.offset, value, key, seen, time_ms or -1))
    return found


def _marker_type(batch: RawBatch) -> int:
    record = decode_batch(batch.data)[0]
    return int.from_bytes(bytes(record.key)[2:4], "big")


def partitions_of(sim: Simulation) -> list[tuple[str, int]]:
    """Every partition that is looked at."""
    return [(topic, index) for topic in TOPICS for index in range(sim.partitions[topic])]


def note_keys(sim: Simulation) -> None:
    """Tell what a start found of the compacted topic: the newest visible record of each key."""
    newest = {}
    for record in stored_records(raw_batches(sim.broker.disk, "compact-0")):
        if record.visible:
            newest[record.key] = record.offset
    sim.world.note("sim", "keys", "compact-0", newest)


def group_is_at_end(sim: Simulation, group: str, topic: str) -> bool:
    """Whether no visible record of a topic is above the group's offsets, and none can appear."""
    committed = committed_offsets(sim, group)
    return committed is not None and is_at_end(sim, committed, topic)


def is_at_end(sim: Simulation, committed: Mapping[str, int], topic: str) -> bool:
    """Whether no visible record of a topic is above these offsets, and none can appear."""
    state = sim.broker.state
    if state is None:
        return False
    found = state.topics.get(topic)
    if found is None:
        return False  # The application has yet to make it.
    for index, log in enumerate(found.partitions):
        if log.last_stable_offset < log.high_watermark:
            return False
        upto = committed.get(f"{topic}-{index}", 0)
        if upto < log.last_stable_offset:
            left = stored_records(raw_batches(sim.broker.disk, f"{topic}-{index}"))
            if any(record.visible and record.offset >= upto for record in left):
                return False
    return True


def is_settled(sim: Simulation) -> bool:
    """Whether the broker is up and no transaction is open."""
    state = sim.broker.state
    if state is None:
        return False
    logs = [state.topics.partition(*place) for place in partitions_of(sim)]
    return all(log is not None and log.last_stable_offset == log.high_watermark for log in logs)


def look(sim: Simulation) -> Ending:
    """Read everything that is left, with a committed reader and by hand."""
    ending = Ending()
    ending.finally_read = _read_all(sim)
    state = sim.broker.state
    assert state is not None
    for topic, index in partitions_of(sim):
        partition = f"{topic}-{index}"
        log = state.topics.partition(topic, index)
        assert log is not None
        ending.starts[partition] = log.log_start_offset
        batches = list(raw_batches(sim.broker.disk, partition))
        ending.logs[partition] = stored_records(batches)
        ending.epochs[partition] = [(batch.base_offset, batch.leader_epoch) for batch in batches]
    for topic in state.topics:
        for name, value in topic.overrides.items():
            ending.settings[topic.name, name] = value
    for name, value in state.dynamic_config.broker("").items():
        ending.settings["", name] = value
    groups = ["group", "session", *(f"of-{w.name}" for w in sim.workers)]
    for group in groups:
        sim.world.run(lambda g=group: _take_offsets(sim, ending, g), sim.world.now_us + 60_000_000)
    ending.compacted = frozenset({"compact"})
    ending.short_lived = frozenset({"short"})
    ending.mixed_groups = len(sim.protocols) > 1
    ending.static_members = sim.static_members
    if any(isinstance(worker, SessionWorker) for worker in sim.workers):
        ending.session_group = "session"
    return ending


def _take_offsets(sim: Simulation, ending: Ending, group: str) -> bool:
    found = committed_offsets(sim, group)
    if found is not None:
        ending.committed[group] = found
    return found is not None


def _read_all(sim: Simulation) -> dict[str, list[tuple[int, bytes]]]:
    process = sim.spawn("verify/1")
    found: dict[str, list[tuple[int, bytes]]] = {}
    done: list[bool] = []

    async def read() -> None:
        partitions = [TopicPartition(*place) for place in partitions_of(sim)]
        async with AsyncConsumer(
            bootstrap_servers=sim.broker.addresses, auto_offset_reset="earliest"
        ) as reader:
            reader.assign(partitions)
            ends = await reader.end_offsets(partitions)
            while True:
                polled = await reader.poll(200)
                for partition, records in polled.items():
                    entries = found.setdefault(str(partition), [])
                    entries += [(r.offset, bytes(r.value or b"")) for r in records]
                positions = [await reader.position(p) >= ends[p] for p in partitions]
                if all(positions):
                    break
        done.append(True)

    process.call(lambda: process.loop.create_task(read()) and None)
    sim.world.run(lambda: bool(done) or bool(process.faults), sim.world.now_us + 60_000_000)
    return found


def where_tasks_wait(sim: Simulation, names: Iterable[str]) -> str:
    """Stacks of the tasks of some workers, for the report."""
    lines = []
    for worker in sim.workers:
        if worker.name in names and worker.process is not None:
            state = "alive" if worker.process.alive else "dead"
            lines.append(f"{worker.process.name} ({state}):")
            for task in itertools.islice(worker.process.loop.tasks, 12):
                lines.append(f"  {_stack(task)}")
    return "\n".join(lines)


def _stack(task: asyncio.Task[object]) -> str:
    places = []
    coroutine = task.get_coro()
    while coroutine is not None and len(places) < 12:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            break
        places.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return f"{task.get_name()}: {' > '.join(places)}"
