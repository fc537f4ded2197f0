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
from onceflow.processors.graph.specs import StateKind, StateSpec
from onceflow.processors.graph.topology import Topology
from onceflow.processors.ledger.base import Ledger
from onceflow.processors.state.faces import bound_list, bound_map
from onceflow.processors.state.rows import BoundRows
from onceflow.processors.task import Task, TaskId, TaskStatus
from onceflow.processors.task_stores import TaskStores
from onceflow.sdk import murmur2_partition
from onceflow.sdk.errors import KafkaError

ROWS_MAX: Final = 10_000
"""Most rows of one key that are told."""
QUERIES_MAX: Final = 10_000
"""Most queries that wait; further ones are refused."""


class Query(NamedTuple):
    """What is asked.

    Attributes:
        state: The state, as ``function.state``.
        key: The key of the records, as they have it.
        partition: Partition of these records; None for Kafka's default partitioner.
    """

    state: str
    key: bytes
    partition: int | None = None


class Answer(NamedTuple):
    """What the state holds.

    Attributes:
        found: Whether the key has a value, or any row.
        value: The value; a dict of a ``MapState``, a list of a ``ListState``; None if not found.
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
        self._is_closed = False

    def ask(self, query: Query, timeout_s: float) -> Answer:
        """Wait for the answer; from any thread but the worker's.

        Args:
            query: What is asked.
            timeout_s: Longest wait.

        Raises:
            UnknownStateError: The application has no such state, or none that can be queried.
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
        found, value = _value_of(task, spec, query.key)
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
