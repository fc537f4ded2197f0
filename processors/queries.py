"""Queries of committed state from outside, and how the worker that owns it answers them.

Any thread may ask; the worker's loop answers between two polls, when no other thread touches the
maps. It reads the maps alone, so what is not committed is never seen. Before it answers, it asks
the coordinator whether it is still a member: until its next poll it then keeps its partitions, and
nobody else can have committed anything. So a worker that lost its tasks while it was suspended
answers with an error, not with old values.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from itertools import islice
from typing import Final, NamedTuple

from onceflow.processors.calls import Calls
from onceflow.processors.errors import (
    NotOwnerError,
    QueryError,
    StateNotReadyError,
    UnknownStateError,
)
from onceflow.processors.graph.nodes import AggregateNode
from onceflow.processors.graph.specs import StateKind, StateSpec
from onceflow.processors.graph.topology import Topology
from onceflow.processors.ledger.base import Ledger
from onceflow.processors.state.faces import bound_list, bound_map
from onceflow.processors.state.keys import close, pack_int
from onceflow.processors.state.rows import BoundRows
from onceflow.processors.state.timed import ROW, split_window_row
from onceflow.processors.task import Task, TaskId, TaskStatus
from onceflow.processors.task_stores import TaskStores
from onceflow.processors.windows import SessionFrames, WindowValue
from onceflow.sdk import murmur2_partition
from onceflow.sdk.errors import KafkaError

ROWS_MAX: Final = 10_000
"""Most rows of one key in an answer."""
QUERIES_MAX: Final = 10_000
"""Most queries that wait; further ones are refused."""
TIME_MAX_MS: Final = 2**62
"""Latest time of a range."""


class Query(NamedTuple):
    """What is asked.

    Attributes:
        state: The state, as ``function.state``.
        key: The key of the records, as they have it.
        partition: Partition of these records; None for Kafka's default partitioner.
        from_ms: Of windows: the earliest start; of sessions, the earliest end. None for any.
        to_ms: The latest start, included; None for any.
    """

    state: str
    key: bytes
    partition: int | None = None
    from_ms: int | None = None
    to_ms: int | None = None


class Answer(NamedTuple):
    """What the state holds.

    Attributes:
        found: Whether the key has a value, or any row.
        value: The value; a dict of a ``MapState``, a list of a ``ListState``, a list of
            ``WindowValue`` of windows; None if not found.
        partition: Where it is.
        partitions: How many partitions there are.
    """

    found: bool
    value: object
    partition: int
    partitions: int


class Queries:
    """The queries that wait for one worker.

    Args:
        topology: The application.
        stores: Know how many partitions there are.
        wake: Makes a waiting poll return; from any thread.
    """

    def __init__(self, topology: Topology, stores: TaskStores, wake: Callable[[], None]) -> None:
        self._stores = stores
        self._wake = wake
        self._waiting: queue.SimpleQueue[tuple[Query, Future[Answer]]] = queue.SimpleQueue()
        self._specs: dict[str, tuple[str, StateSpec]] = {
            spec.name: (part.name, spec)
            for part in topology.sub_topologies
            for spec in part.states
            if spec.declaration.kind is not StateKind.TIMED
        }
        self._windows: dict[str, AggregateNode] = {}
        for part in topology.sub_topologies:
            for node in part.nodes:
                if isinstance(node, AggregateNode):
                    (spec,) = node.own_states
                    self._windows[spec.name] = node
                    self._specs[spec.name] = (part.name, spec)
        self._is_closed = False

    def ask(self, query: Query, timeout_s: float) -> Answer:
        """Wait for the answer; from any thread but the worker's.

        Args:
            query: What is asked.
            timeout_s: Longest wait.

        Raises:
            UnknownStateError: The application has no such state, or none that can be queried.
            QueryError: The times cannot be used.
            NotOwnerError: Another worker has it.
            StateNotReadyError: It is being restored, the group is rebalancing, or the worker is
                busy for too long.
        """
        if query.state not in self._specs:
            known = ", ".join(sorted(self._specs)) or "none"
            raise UnknownStateError(
                f"state {query.state!r}: the application has no such state that can be queried; "
                f"it has {known}"
            )
        self._check_times(query)
        if self._waiting.qsize() >= QUERIES_MAX:
            raise StateNotReadyError(f"{QUERIES_MAX} queries wait already; ask again later")
        answer: Future[Answer] = Future()
        self._waiting.put((query, answer))
        if self._is_closed:
            self.close()
        self._wake()
        try:
            return answer.result(timeout_s)
        except TimeoutError:
            answer.cancel()
            raise StateNotReadyError(
                f"the worker did not answer within {timeout_s:g} s; it is busy with a function, or "
                "waits for the brokers"
            ) from None

    def _check_times(self, query: Query) -> None:
        """Refuse times that select nothing.

        Raises:
            QueryError: The state has no windows, or a time is out of bounds.
        """
        least, most = query.from_ms, query.to_ms
        for name, time_ms in (("from_ms", least), ("to_ms", most)):
            if time_ms is None:
                continue
            if query.state not in self._windows:
                raise QueryError(f"{name}={time_ms}: {query.state} has no windows; leave it out")
            if not 0 <= time_ms <= TIME_MAX_MS:
                raise QueryError(f"{name}={time_ms}: must be milliseconds since 1970, 0 or more")
        if least is not None and most is not None and least > most:
            raise QueryError(f"from_ms={least}: must be at most to_ms={most}")

    def close(self) -> None:
        """Refuse what waits: the worker has ended."""
        self._is_closed = True
        for _, answer in self._take():
            _refuse(answer, StateNotReadyError("the worker has ended; ask again"))

    def _take(self) -> list[tuple[Query, Future[Answer]]]:
        taken = []
        while True:
            try:
                taken.append(self._waiting.get_nowait())
            except queue.Empty:
                return taken

    async def serve(
        self,
        calls: Calls,
        ledger: Ledger,
        tasks: Iterable[Task],
        servers: Mapping[TaskId, str],
    ) -> None:
        """Answer what waits; called by the worker, between a poll and what follows from it.

        Args:
            calls: Runs what asks brokers.
            ledger: Knows whether the worker is still a member.
            tasks: The worker's.
            servers: Where the owners of tasks answer.
        """
        waiting = self._take()
        if not waiting:
            return
        lost: KafkaError | None = None
        try:
            await calls(ledger.check_membership())
        except KafkaError as error:
            lost = error
        by_id = {task.id: task for task in tasks}
        for query, answer in waiting:
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                if lost is not None:
                    raise StateNotReadyError(f"this worker may have lost its tasks: {lost}")
                answer.set_result(self._answer(query, by_id, servers))
            except Exception as error:  # noqa: BLE001 - it belongs to who asked
                answer.set_exception(error)

    def _answer(
        self,
        query: Query,
        tasks: Mapping[TaskId, Task],
        servers: Mapping[TaskId, str],
    ) -> Answer:
        part, spec = self._specs[query.state]
        count = self._stores.partitions_of(part)
        partition = query.partition
        if partition is None:
            partition = murmur2_partition(query.key, count)
        elif not 0 <= partition < count:
            raise QueryError(f"partition={partition}: must be from 0 to {count - 1}")
        id = TaskId(part, partition)
        task = tasks.get(id)
        if task is None:
            raise NotOwnerError(
                f"another worker has {id}"
                if id in servers
                else f"another worker has {id}, or none yet, and no address of it is known; set "
                "application_server for each worker",
                servers.get(id, ""),
                partition,
                count,
            )
        if task.status is not TaskStatus.RUNNING:
            raise StateNotReadyError(f"{id} is {task.status.value}; ask again later")
        node = self._windows.get(query.state)
        found, value = (
            _value_of(task, spec, query.key) if node is None else _windows_of(task, node, query)
        )
        return Answer(found, value, partition, count)


def _refuse(answer: Future[Answer], error: Exception) -> None:
    if answer.set_running_or_notify_cancel():
        answer.set_exception(error)


def _value_of(task: Task, spec: StateSpec, key: bytes) -> tuple[bool, object]:
    rows = task.stores[spec.name].committed_rows()
    if spec.declaration.kind is StateKind.VALUE:
        data = rows.get(key)
        return (False, None) if data is None else (True, spec.codec.decode(key, data))
    assert spec.packing is not None
    bound = BoundRows(rows, key, spec.packing, spec.codec)
    several: object
    if spec.declaration.kind is StateKind.MAP:
        several = dict(islice(bound_map(bound).items(), ROWS_MAX + 1))
    else:
        several = list(islice(bound_list(bound), ROWS_MAX + 1))
    if len(several) > ROWS_MAX:
        raise QueryError(f"{spec.name}, key {key[:100]!r}: it has more than {ROWS_MAX} rows")
    return bool(several), several or None


def _windows_of(task: Task, node: AggregateNode, query: Query) -> tuple[bool, object]:
    """Return the windows of a key that begin in a range, or the sessions that reach into it.

    The rows of a key are sorted by start, and sessions of a key do not overlap.
    """
    (spec,) = node.own_states
    least = 0 if query.from_ms is None else query.from_ms
    most = TIME_MAX_MS if query.to_ms is None else query.to_ms
    prefix = ROW + close(query.key)
    sessions = isinstance(node.frames, SessionFrames)
    begin = prefix + pack_int(0 if sessions else least)
    found: list[WindowValue[object]] = []
    rows = task.stores[spec.name].committed_rows()
    for row, data in rows.range(begin, prefix + pack_int(most + 1), reverse=True):
        _, start_ms, end_ms = split_window_row(row)
        if end_ms < least:
            break  # The sessions before it ended earlier.
        if len(found) == ROWS_MAX:
            raise QueryError(
                f"{spec.name}, key {query.key[:100]!r}: it has more than {ROWS_MAX} windows in "
                "this range; ask for a smaller one"
            )
        value = node.fold.result(spec.codec.decode(row, data))
        found.append(WindowValue(start_ms, end_ms, value))
    found.reverse()
    return bool(found), found or None
