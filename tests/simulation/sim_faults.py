"""Ways to break the product in memory, each of which the simulation has to notice.

A fault names what it breaks, which kind of runs meets it, and the rules of the checker that may
tell. Nothing here is ever part of a run that is meant to pass.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sim_setup import Setup, draw

from onceflow.broker_lite.coordinators.consumer.migration import Migration
from onceflow.broker_lite.coordinators.internal_topic import InternalTopicLog
from onceflow.broker_lite.coordinators.offset_commits import OffsetCommits
from onceflow.broker_lite.coordinators.offsets import GroupOffsets
from onceflow.broker_lite.coordinators.transactions.coordinator import TransactionCoordinator
from onceflow.broker_lite.coordinators.transactions.decided import DecidedTransactions
from onceflow.broker_lite.coordinators.transactions.markers import TransactionMarkers
from onceflow.broker_lite.log import PartitionLog, compaction, producer_state, recovery, retention
from onceflow.broker_lite.log.log_errors import AppendError
from onceflow.broker_lite.log.log_manager import LogManager
from onceflow.broker_lite.log.partition_folders import PartitionFolders
from onceflow.broker_lite.log.producer_state import ProducerEntry, ProducerState
from onceflow.broker_lite.log.segment_writer import SegmentWriter
from onceflow.broker_lite.log.shared_flush import SharedFlush
from onceflow.broker_lite.log.start_notes import StartNotes
from onceflow.broker_lite.testing.nodes import SharedPlacement, routing
from onceflow.sdk.aio.connection.pool import ConnectionPool
from onceflow.sdk.core.consume.aborted_transactions import AbortedTransactions
from onceflow.sdk.core.consume.fetch_buffer import FetchedData
from onceflow.sdk.core.consume.subscription import Subscription
from onceflow.sdk.core.produce.sender import Sender
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.transactions.progress import UncommittedWork
from onceflow.transactions.session_core import SessionCore

Replace = Callable[[object, str, object], None]
"""``monkeypatch.setattr``."""


@dataclass(frozen=True)
class Fault:
    """One way to break the product.

    Attributes:
        apply: Breaks it.
        focus: Changes of the setup that make a run meet it.
        rules: Beginnings of problems, one of which must be found.
        seeds: Most seeds it may take.
    """

    apply: Callable[[Replace], None]
    focus: str
    rules: tuple[str, ...]
    seeds: int = 40


def setup_for(fault: Fault, seed: int) -> Setup:
    """A run of a seed that meets what a fault breaks."""
    setup = draw(seed)
    nobody = dict.fromkeys(setup.workers, 0)
    changes: dict[str, Any] = {"units": 16}
    network = dataclasses.replace(setup.storm, cut_after=0.05, cut_before=0.03, delay_us=2_000)
    match fault.focus:
        case "producers":
            changes |= {
                "workers": nobody | {"producer": 2},
                "storm": network,
                "troubles": ["write fails", "cut"],
                "trouble_every_us": 60_000,
            }
        case "transactions":
            changes |= {
                "workers": nobody | {"transactional": 2, "committed reader": 1},
                "storm": network,
                "troubles": ["kill worker", "zombie", "cut"],
                "trouble_every_us": 150_000,
            }
        case "sessions":
            changes |= {
                "workers": nobody | {"session": 2, "producer": 1, "transactional": 1},
                "troubles": ["kill worker", "zombie", "cut", "partition"],
                "trouble_every_us": 150_000,
                "storm": network,
            }
        case "groups":
            changes |= {
                "workers": nobody | {"group": 3, "producer": 1},
                "troubles": ["pause worker", "zombie"],
                "trouble_every_us": 300_000,
                "duration_us": 6_000_000,
            }
        case "deaths":
            changes |= {
                "workers": nobody | {"producer": 1, "transactional": 1, "committed reader": 1},
                "troubles": ["kill broker", "kill broker in write"],
                "trouble_every_us": 150_000,
            }
        case "power":
            changes |= {
                "workers": nobody | {"producer": 2},
                "troubles": ["kill broker"],
                "trouble_every_us": 300_000,
                "power": True,
                "properties": setup.properties | {"onceflow.durability": "always"},
            }
        case "lost power":
            changes |= {
                "workers": nobody | {"producer": 1, "transactional": 2, "committed reader": 1},
                "troubles": ["kill broker", "kill broker", "zombie"],
                "trouble_every_us": 200_000,
                "power": True,
                "properties": setup.properties | {"onceflow.durability": "kafka"},
            }
        case "lost power of groups":
            changes |= {
                "workers": nobody | {"producer": 1, "group": 2, "committed reader": 1},
                "troubles": ["kill broker", "pause worker"],
                "trouble_every_us": 200_000,
                "power": True,
                "properties": setup.properties | {"onceflow.durability": "kafka"},
            }
        case "lost power of compaction":
            changes |= {
                "workers": nobody | {"compaction": 2, "transactional": 1},
                "troubles": ["kill broker"],
                "trouble_every_us": 500_000,
                "units": 60,
                "segment_bytes": 700,
                "power": True,
                "properties": setup.properties
                | {"onceflow.durability": "kafka", "log.cleaner.backoff.ms": 20},
            }
        case "rolls":
            changes |= {
                "workers": nobody | {"producer": 2},
                "troubles": ["cut"],
                "units": 60,
                "segment_bytes": 700,
                "partitions": setup.partitions | {"a": 1},
                "properties": setup.properties | {"onceflow.durability": "kafka"},
            }
        case "disk":
            changes |= {
                "workers": nobody | {"transactional": 2},
                "troubles": ["write fails"],
                "trouble_every_us": 60_000,
            }
        case "compaction":
            changes |= {"workers": nobody | {"compaction": 1}, "duration_us": 3_000_000}
        case "shared flush":
            changes |= {
                "workers": nobody | {"producer": 2, "transactional": 1},
                "troubles": ["kill broker"],
                "trouble_every_us": 150_000,
                "power": True,
                "properties": setup.properties | {"onceflow.durability": "group"},
            }
        case "nodes":
            changes |= {
                "workers": nobody | {"producer": 1, "transactional": 1, "group": 1},
                "troubles": ["move leader", "move coordinator", "stop node"],
                "trouble_every_us": 100_000,
                "nodes": 3,
                "nodes_stay_down": True,
            }
        case "administration":
            changes |= {
                "workers": nobody | {"admin": 2, "owner": 2, "producer": 1},
                "troubles": ["kill broker", "kill worker"],
                "trouble_every_us": 300_000,
                "duration_us": 3_000_000,
            }
        case "mixed groups":
            changes |= {
                "workers": nobody | {"group": 3, "producer": 1},
                "troubles": ["pause worker", "zombie", "kill worker"],
                "trouble_every_us": 300_000,
                "duration_us": 6_000_000,
                "static_members": False,
                "protocols": [
                    {"partition_assignment_strategy": ("cooperative-sticky",)},
                    {"group_protocol": "consumer"},
                ],
            }
    return dataclasses.replace(setup, **changes)


def _no_duplicate_check(replace: Replace) -> None:
    replace(ProducerEntry, "duplicate_of", lambda *_: None)
    replace(producer_state, "_check_sequence", lambda *_: None)


def _no_sequence_check(replace: Replace) -> None:
    replace(producer_state, "_check_sequence", lambda *_: None)


def _stable_is_high_watermark(replace: Replace) -> None:
    replace(ProducerState, "first_unstable_offset", lambda self: None)


def _no_aborted_list(replace: Replace) -> None:
    replace(AbortedTransactions, "hides", lambda *_: False)


def _no_epoch_check(replace: Replace) -> None:
    replace(ProducerState, "check_epoch", lambda *_: None)
    replace(
        TransactionCoordinator,
        "verify_or_add",
        _always_added(TransactionCoordinator.verify_or_add),
    )


def _always_added(original: Any) -> Any:
    def verify(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        return dict.fromkeys(result, ErrorCode.NONE) if isinstance(result, dict) else result

    return verify


def _abort_becomes_commit(replace: Replace) -> None:
    original = DecidedTransactions._marker_of
    replace(
        DecidedTransactions,
        "_marker_of",
        lambda self, entry: original(self, entry)._replace(committed=True),
    )


def _one_marker_is_missing(replace: Replace) -> None:
    original = TransactionMarkers.write

    def write(self: Any, partition: Any, marker: Any, now_ms: int) -> ErrorCode:
        if partition.topic == "b":
            return ErrorCode.NONE
        return original(self, partition, marker, now_ms)

    replace(TransactionMarkers, "write", write)


def _one_marker_is_an_abort(replace: Replace) -> None:
    original = TransactionMarkers.write

    def write(self: Any, partition: Any, marker: Any, now_ms: int) -> ErrorCode:
        if partition.topic == "b":
            marker = marker._replace(committed=False)
        return original(self, partition, marker, now_ms)

    replace(TransactionMarkers, "write", write)


def _pending_offsets_show_at_once(replace: Replace) -> None:
    replace(
        GroupOffsets,
        "commit_pending",
        lambda self, _producer, partition, offset: self.commit(partition, offset),
    )


def _pending_offsets_are_lost(replace: Replace) -> None:
    original = GroupOffsets.end_transaction
    replace(
        GroupOffsets,
        "end_transaction",
        lambda self, producer_id, committed: original(self, producer_id, False),
    )


def _any_generation_commits(replace: Replace) -> None:
    replace(OffsetCommits, "_check_committer", staticmethod(lambda *_: ErrorCode.NONE))
    replace(OffsetCommits, "_check_plain", staticmethod(lambda *_: ErrorCode.NONE))


def _recovery_forgets_a_batch(replace: Replace) -> None:
    original = recovery._Loader._recover_segment

    def recover(self: Any, segment: Any, *args: Any) -> Any:
        next_offset, size = original(self, segment, *args)
        return (next_offset - 1, size - 80) if size > 400 else (next_offset, size)

    replace(recovery._Loader, "_recover_segment", recover)


def _recovery_forgets_producers(replace: Replace) -> None:
    replace(recovery, "apply_batch", lambda *_: None)


def _no_sync(replace: Replace) -> None:
    replace(SegmentWriter, "flush", lambda *_: None)
    replace(SegmentWriter, "flush_batches", lambda *_: None)


def _epochs_come_twice(replace: Replace) -> None:
    replace(StartNotes, "begin_epoch", lambda self, known_epoch: 1)
    replace(StartNotes, "greatest_epoch", property(lambda self: 0))


def _each_log_counts_its_own_epochs(replace: Replace) -> None:
    def begin(self: Any) -> None:
        for log in self.partitions():
            if log.checked:
                log.begin_leader_epoch(log.leader_epoch + 1)

    replace(LogManager, "_begin_epochs", begin)


def _refused_markers_are_done(replace: Replace) -> None:
    """With coordinator epochs that go back at each start, so that there are refusals."""
    original = InternalTopicLog.leader_epoch
    replace(
        InternalTopicLog,
        "leader_epoch",
        lambda self, partition: max(0, 100 - original(self, partition)),
    )
    replace(
        DecidedTransactions,
        "_write_marker",
        lambda self, partition, entry, now_ms: (
            self._markers.write(partition, self._marker_of(entry), now_ms) and ErrorCode.NONE
        ),
    )


def _identities_outlive_a_power_loss(replace: Replace) -> None:
    replace(TransactionCoordinator, "end_identities", lambda *_, **__: None)


def _every_crash_is_a_dead_process(replace: Replace) -> None:
    original = StartNotes.__init__

    def make(self: Any, storage: Any) -> None:
        original(self, storage)
        self.power_lost = False

    replace(StartNotes, "__init__", make)


def _compaction_trusts_the_page_cache(replace: Replace) -> None:
    original = compaction.Compaction.run
    replace(
        compaction.Compaction,
        "run",
        lambda self, first_dirty_offset, _: original(self, first_dirty_offset, ()),
    )


def _the_recovery_point_stops(replace: Replace) -> None:
    original = SegmentWriter._flush_later

    def flush_later(self: Any, end_offset: int, snapshots: Any) -> None:
        number = self._segments.number_of(end_offset - 1)
        if self.recovery_point >= self._segments[number].base_offset:
            original(self, end_offset, snapshots)

    replace(SegmentWriter, "_flush_later", flush_later)


def _write_errors_are_ignored(replace: Replace) -> None:
    original = PartitionLog.append
    dropped = [0]

    def append(self: Any, records: Any, **options: Any) -> Any:
        if options.get("from_client", True):
            dropped[0] += 1
            if dropped[0] % 40 == 0:
                end = self.log_end_offset
                from onceflow.broker_lite.log.log_results import AppendResult

                return AppendResult(end, end, -1, 0, False)
        return original(self, records, **options)

    replace(PartitionLog, "append", append)


def _lost_answer_is_success(replace: Replace) -> None:
    original = Sender.failed

    def failed(self: Any, job: Any, *args: Any) -> None:
        for _, batch in job.items:
            batch.complete(10_000)
        original(self, job, *args)

    replace(Sender, "failed", failed)


def _retry_gets_a_new_sequence(replace: Replace) -> None:
    original = Sender.failed

    def failed(self: Any, job: Any, *args: Any) -> None:
        for queue, batch in job.items:
            if batch.base_sequence >= 0:
                queue.bump_needed = True
                batch.rejected = True
        original(self, job, *args)

    replace(Sender, "failed", failed)


def _failure_is_success(replace: Replace) -> None:
    original = Sender.answered

    def answered(self: Any, job: Any, response: Any, now_ms: int) -> None:
        for topic in response.responses:
            for result in topic.partition_responses:
                result.error_code = ErrorCode.NONE
        original(self, job, response, now_ms)

    replace(Sender, "answered", answered)


def _reader_skips(replace: Replace) -> None:
    original = FetchedData.take

    def take(self: Any, limit: int, beside: Any = None) -> Any:
        before = len(beside or ())
        records = original(self, limit, beside)
        if len(records) - before > 3:
            records.pop()
        return records

    replace(FetchedData, "take", take)


def _seek_keeps_data(replace: Replace) -> None:
    replace(Subscription, "is_current", lambda self, partition, stamp: partition in self._states)


def _compaction_keeps_aborted(replace: Replace) -> None:
    replace(compaction._TransactionFilter, "drops_data", lambda *_: False)


def _compaction_drops_all(replace: Replace) -> None:
    replace(compaction, "decode_batch", lambda *_, **__: [])


def _retention_takes_too_much(replace: Replace) -> None:
    replace(retention, "_over_size", lambda *_: True)


def _session_keeps_going_after_abort(replace: Replace) -> None:
    async def rewind(self: Any, *_: Any, **__: Any) -> None:
        self._polled.clear()

    replace(SessionCore, "_rewind", rewind)


def _session_commits_without_offsets(replace: Replace) -> None:
    replace(UncommittedWork, "items", lambda self: ())


def _timeouts_never_abort(replace: Replace) -> None:
    replace(TransactionCoordinator, "abort_timed_out", lambda *_: None)


def _broker_fails(replace: Replace) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AppendError(ErrorCode.UNKNOWN_SERVER_ERROR, "broken")

    replace(PartitionLog, "append_control", refuse)


def _half_done_writes_do_not_end_it(replace: Replace) -> None:
    replace(PartitionLog, "_disk_failed", lambda self, _error: self.fail())


def _epochs_stay(replace: Replace) -> None:
    replace(PartitionLog, "begin_leader_epoch", lambda *_: None)


def _refused_is_done(replace: Replace) -> None:
    original = routing.refuse_parts

    def refuse(request: Any, version: int, is_elsewhere: Any, code: ErrorCode, run: Any) -> Any:
        produced = request.api_key == 0
        return original(request, version, is_elsewhere, ErrorCode.NONE if produced else code, run)

    replace(routing, "refuse_parts", refuse)


def _stopped_nodes_keep_leading(replace: Replace) -> None:
    def stop(self: Any, node_id: int, now_ms: int) -> None:
        self._pin_leaders()
        self.nodes[node_id].running = False

    replace(SharedPlacement, "stop_node", stop)


def _coordinators_are_never_forgotten(replace: Replace) -> None:
    replace(ConnectionPool, "forget_coordinator", lambda *_, **__: None)


def _settings_are_not_kept(replace: Replace) -> None:
    replace(LogManager, "_write_overrides", lambda *_: None)


def _deleted_topics_stay_on_the_disk(replace: Replace) -> None:
    replace(
        PartitionFolders,
        "set_aside",
        lambda self, topic, number, *_: f"{topic}-{number}.0123-delete",
    )


def _a_shared_flush_is_not_waited_for(replace: Replace) -> None:
    replace(SharedFlush, "when_safe", lambda _, waiter: waiter(True))


def _a_shared_flush_counts_later_writes(replace: Replace) -> None:
    def when_safe(self: Any, waiter: Any) -> None:
        (self._waiting_in_flight if self._in_flight else self._waiting_next).append(waiter)

    replace(SharedFlush, "when_safe", when_safe)


def _an_upgrade_forgets_who_owns_what(replace: Replace) -> None:
    replace(Migration, "owned", lambda *_: {})


STUCK = ("stuck",)

FAULTS: dict[str, Fault] = {
    "duplicates are not recognised": Fault(_no_duplicate_check, "producers", ("duplicate",)),
    "sequences are not checked": Fault(_no_sequence_check, "producers", ("order",), 200),
    "last stable offset passes open transactions": Fault(
        _stable_is_high_watermark, "transactions", ("dirty read", "('", "final read")
    ),
    "readers do not hide aborted records": Fault(
        _no_aborted_list, "transactions", ("dirty read", "final read")
    ),
    "old epochs may write": Fault(
        _no_epoch_check,
        "transactions",
        ("aborted visible", "torn", "committed missing", "order"),
        200,
    ),
    "an abort is carried out as a commit": Fault(
        _abort_becomes_commit, "transactions", ("aborted visible",)
    ),
    "a marker is missing": Fault(
        _one_marker_is_missing, "transactions", ("stuck", "committed missing", "torn")
    ),
    "a marker says the contrary": Fault(
        _one_marker_is_an_abort, "transactions", ("committed missing", "torn")
    ),
    "offsets in a transaction show at once": Fault(
        _pending_offsets_show_at_once, "transactions", ("offsets torn",)
    ),
    "offsets in a transaction get lost": Fault(
        _pending_offsets_are_lost, "transactions", ("offsets torn",)
    ),
    "any generation may commit": Fault(_any_generation_commits, "groups", ("stale commit",), 200),
    "recovery forgets a batch": Fault(
        _recovery_forgets_a_batch, "deaths", ("lost", "moved", "torn", "committed", "stuck")
    ),
    "recovery forgets producers": Fault(
        _recovery_forgets_producers, "deaths", ("duplicate", "stuck", "dirty", "final", "('")
    ),
    "nothing is synced": Fault(_no_sync, "power", ("lost", "moved", "offset reused")),
    "a roll during a flush stops the recovery point": Fault(
        _the_recovery_point_stops, "rolls", ("recovery point",)
    ),
    "a leader epoch is given twice": Fault(
        _epochs_come_twice, "lost power", ("leader epoch", "skipped", "offset reused")
    ),
    "each log counts its own epochs": Fault(
        _each_log_counts_its_own_epochs, "lost power", ("leader epoch", *STUCK)
    ),
    "a refused marker counts as written": Fault(
        _refused_markers_are_done, "deaths", ("committed missing", *STUCK)
    ),
    "producers keep identities that others may have": Fault(
        _identities_outlive_a_power_loss, "lost power", ("lost", "moved", "committed missing"), 200
    ),
    "a power loss is taken for a dead process": Fault(
        _every_crash_is_a_dead_process, "lost power", ("lost", "moved", "committed missing"), 200
    ),
    "compaction relies on what is not on the disk": Fault(
        _compaction_trusts_the_page_cache, "lost power of compaction", ("compacted away",), 400
    ),
    "a write is acknowledged and not done": Fault(
        _write_errors_are_ignored, "producers", ("lost", "moved")
    ),
    "a lost answer counts as success": Fault(
        _lost_answer_is_success, "producers", ("lost", "moved")
    ),
    "a retry gets a new sequence": Fault(
        _retry_gets_a_new_sequence, "producers", ("duplicate", "order")
    ),
    "a failure counts as success": Fault(_failure_is_success, "deaths", ("lost", "moved")),
    "a reader skips records": Fault(_reader_skips, "deaths", ("skipped", "final read")),
    "compaction counts aborted records": Fault(
        _compaction_keeps_aborted, "transactions", ("compacted away", "aborted visible"), 100
    ),
    "compaction drops everything": Fault(_compaction_drops_all, "compaction", ("compacted away",)),
    "retention takes what is within its limits": Fault(
        _retention_takes_too_much, "producers", ("start moved",)
    ),
    "a session goes on after an abort": Fault(
        _session_keeps_going_after_abort, "sessions", ("output missing",)
    ),
    "a session commits no offsets": Fault(
        _session_commits_without_offsets, "sessions", ("output twice", "offsets behind", "stuck")
    ),
    "transactions are never timed out": Fault(_timeouts_never_abort, "transactions", STUCK, 100),
    "a half-done write does not end the broker": Fault(
        _half_done_writes_do_not_end_it, "disk", STUCK
    ),
    "markers cannot be written": Fault(_broker_fails, "transactions", STUCK),
    "a new leader keeps the epoch": Fault(_epochs_stay, "nodes", ("leader epoch",)),
    "what a node does not lead it acknowledges": Fault(
        _refused_is_done, "nodes", ("lost", "moved")
    ),
    "a node that stopped goes on leading": Fault(_stopped_nodes_keep_leading, "nodes", STUCK),
    "clients never look for another coordinator": Fault(
        _coordinators_are_never_forgotten, "nodes", STUCK
    ),
    "settings are not kept": Fault(_settings_are_not_kept, "administration", ("setting",)),
    "a deleted topic stays on the disk": Fault(
        _deleted_topics_stay_on_the_disk, "administration", ("came back",)
    ),
    "nobody waits for the shared flush": Fault(
        _a_shared_flush_is_not_waited_for, "shared flush", ("lost", "moved", "offset reused")
    ),
    "a shared flush counts what came after it began": Fault(
        _a_shared_flush_counts_later_writes,
        "shared flush",
        ("lost", "moved", "offset reused"),
        100,
    ),
    "a group that changes its protocol forgets who owns what": Fault(
        _an_upgrade_forgets_who_owns_what, "mixed groups", ("stale commit",), 200
    ),
}
