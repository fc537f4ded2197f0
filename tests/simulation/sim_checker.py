"""Whether a history is one that exactly-once delivery allows.

It knows what clients asked for and were told (the history), what the broker's files hold at the
end, what a committed reader finds there, and which offsets the groups committed. Outcomes that
nobody can know (a commit without an answer, a record without an acknowledgement) may be either,
but never half. It knows nothing of the product's code.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sim_check_admin
import sim_check_moves
from sim_check_power import PowerLosses, check_epochs
from sim_history import Event, History


class StoredRecord(NamedTuple):
    """A record in the files at the end.

    Attributes:
        offset: Its place.
        value: What a client sent.
        key: Its key.
        visible: Whether it is outside of transactions or in a committed one.
        timestamp_ms: Its timestamp, -1 for none.
    """

    offset: int
    value: bytes
    key: bytes | None
    visible: bool
    timestamp_ms: int = -1


@dataclass
class Ending:
    """How a run ended.

    Attributes:
        logs: Records by partition, in the order of the files.
        starts: Start of the log by partition.
        finally_read: What a committed reader found, by partition.
        epochs: First offset and leader epoch of every batch, by partition.
        settings: Settings that were made at run time, by topic (empty for the cluster) and name.
        committed: Committed offsets by group and partition.
        compacted: Topics in which older records of a key may be gone.
        short_lived: Topics whose beginning may be gone.
        mixed_groups: Whether groups had members of both protocols; an empty group that becomes one
            of the other kind counts its generations anew.
        session_group: The group whose inputs are copied to ``b``, if there is one.
        static_members: Whether the groups' members have instance ids.
    """

    logs: dict[str, list[StoredRecord]] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    epochs: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    settings: dict[tuple[str, str], str] = field(default_factory=dict)
    finally_read: dict[str, list[tuple[int, bytes]]] = field(default_factory=dict)
    committed: dict[str, dict[str, int]] = field(default_factory=dict)
    compacted: frozenset[str] = frozenset()
    short_lived: frozenset[str] = frozenset()
    mixed_groups: bool = False
    static_members: bool = False
    session_group: str = ""


@dataclass
class _Sent:
    """What is known of one record that a client sent."""

    order: int
    topic: str
    life: str
    transaction: str
    key: bytes | None
    partition: str = ""
    offset: int = -1
    acked: bool = False


@dataclass
class _Transaction:
    """What is known of one transaction: ``open``, ``asked``, ``committed``, ``aborted``."""

    state: str = "open"
    asked_at: int = -1
    values: list[bytes] = field(default_factory=list)
    offsets: tuple[str, int] | None = None


class Checker:
    """Reads a history once and says what is wrong with it."""

    def __init__(self, history: History, ending: Ending) -> None:
        self.history = history
        self.ending = ending
        self.problems: list[str] = []
        self.losses = PowerLosses(history)
        self.sent: dict[bytes, _Sent] = {}
        self.transactions: dict[str, _Transaction] = defaultdict(_Transaction)
        self.places: dict[bytes, list[tuple[str, StoredRecord]]] = defaultdict(list)

    def check(self) -> list[str]:
        """Every violation, in words; an empty list means that all is well."""
        for place, event in enumerate(self.history.events):
            self._note(place, event)
        for partition, records in self.ending.logs.items():
            self._check_offsets(partition, records)
            for record in records:
                self.places[record.value].append((partition, record))
        self._check_records()
        self._check_order()
        self._check_transactions()
        self._check_reads()
        self._check_final_read()
        self._check_sessions()
        self._check_group_commits()
        self._check_transactional_offsets()
        self._check_compaction()
        self._check_keys_after_losses()
        self.problems += check_epochs(self.history)
        self.problems += sim_check_moves.check(self.history, self.ending.epochs)
        self.problems += sim_check_admin.check(self.history, self.ending.settings, self.losses.last)
        return self.problems

    def _wrong(self, rule: str, text: str) -> None:
        self.problems.append(f"{rule}: {text}")

    # --- what was said

    def _note(self, place: int, event: Event) -> None:
        details: Any = event.details
        match event.what:
            case "send":
                value, topic, life, transaction, key = details
                self.sent[value] = _Sent(place, topic, life, transaction, key)
                if transaction:
                    self.transactions[transaction].values.append(value)
            case "acked":
                value, topic, partition, offset = details
                sent = self.sent[value]
                sent.partition, sent.offset, sent.acked = f"{topic}-{partition}", offset, True
            case "commit":
                transaction = self.transactions[details[0]]
                transaction.state, transaction.asked_at = "asked", place
            case "committed":
                self.transactions[details[0]].state = "committed"
            case "aborted" | "void":
                # A commit that was refused for good, or an abort.
                self.transactions[details[0]].state = "aborted"
            case "offsets":
                name, group, offset = details
                self.transactions[name].offsets = (group, offset)
            case "begin":
                self.transactions[details[0]].state = "open"

    # --- records

    def _check_offsets(self, partition: str, records: Iterable[StoredRecord]) -> None:
        start = self.ending.starts.get(partition, 0)
        if start and partition.rpartition("-")[0] not in self.ending.short_lived:
            self._wrong("start moved", f"{partition} begins at {start}")
        last = -1
        for record in records:
            if record.offset <= last:
                self._wrong("offsets", f"{partition}: {record.offset} comes after {last}")
            last = record.offset

    def _check_records(self) -> None:
        for value, sent in self.sent.items():
            found = self.places.get(value, [])
            if len(found) > 1:
                where = ", ".join(f"{tp}@{record.offset}" for tp, record in found)
                self._wrong("duplicate", f"{value!r} is stored {len(found)} times: {where}")
            if sent.acked and sent.offset < 0:
                # Stored by an earlier attempt, whose place the broker does not know any more.
                kept = sent.topic not in self.ending.compacted | self.ending.short_lived
                kept = kept and sent.order > self.losses.last
                if kept and not found:
                    self._wrong("lost", f"{value!r}, acknowledged without an offset")
            elif sent.acked:
                self._check_acknowledged(value, sent, found)

    def _check_acknowledged(
        self, value: bytes, sent: _Sent, found: list[tuple[str, StoredRecord]]
    ) -> None:
        if sent.offset < self.ending.starts.get(sent.partition, 0):
            return
        if not found:
            certain = self.losses.is_certain(sent.order, sent.partition, sent.offset)
            if sent.topic not in self.ending.compacted and certain:
                self._wrong("lost", f"{value!r}, acknowledged as {sent.partition}@{sent.offset}")
        elif (sent.partition, sent.offset) != (found[0][0], found[0][1].offset):
            self._wrong(
                "moved",
                f"{value!r}, acknowledged as {sent.partition}@{sent.offset}, is at "
                f"{found[0][0]}@{found[0][1].offset}",
            )

    def _check_order(self) -> None:
        for partition, records in self.ending.logs.items():
            last: dict[str, tuple[int, bytes]] = {}
            for record in records:
                sent = self.sent.get(record.value)
                if sent is None:
                    continue
                before = last.get(sent.life)
                if before is not None and sent.order < before[0]:
                    self._wrong(
                        "order", f"{partition}: {record.value!r} stands behind {before[1]!r}"
                    )
                last[sent.life] = (sent.order, record.value)

    # --- transactions

    def _check_transactions(self) -> None:
        for name, transaction in self.transactions.items():
            visible = {value for value in transaction.values if self._is_visible(value)}
            if transaction.state in ("open", "aborted") and visible:
                self._wrong("aborted visible", f"{name} ({transaction.state}): {min(visible)!r}")
            # What a newer record of the same key replaced may be gone.
            missing = {
                value
                for value in transaction.values
                if value not in visible and self.sent[value].topic not in self.ending.compacted
            }
            if transaction.asked_at < self.losses.last:
                continue  # It may be gone, in part.
            if transaction.state == "committed" and missing:
                self._wrong("committed missing", f"{name}: {sorted(missing)[:3]}")
            if transaction.state == "asked" and visible and missing:
                self._wrong("torn", f"{name}: {len(visible)} of {len(transaction.values)}")

    def _is_visible(self, value: bytes) -> bool:
        return any(record.visible for _, record in self.places.get(value, []))

    def _is_committed(self, sent: _Sent, value: bytes) -> bool:
        """Whether a record certainly is outside of transactions or in a committed one."""
        if not sent.transaction:
            return True
        transaction = self.transactions[sent.transaction]
        told = transaction.state == "committed" and transaction.asked_at > self.losses.last
        return told or self._is_visible(value)

    def _check_transactional_offsets(self) -> None:
        """The offset of the last committed transaction is the group's."""
        least: dict[str, int] = {}
        allowed: dict[str, set[int]] = defaultdict(set)
        for _name, transaction in self.transactions.items():
            if transaction.offsets is None:
                continue
            group, offset = transaction.offsets
            visible = any(self._is_visible(value) for value in transaction.values)
            certain = transaction.state == "committed" or visible
            if transaction.asked_at < self.losses.last:
                allowed[group].add(offset)
            elif certain:
                least[group] = max(least.get(group, 0), offset)
            # With nothing left of it that would show, it may be either.
            hidden = all(
                self.sent[value].topic in self.ending.compacted for value in transaction.values
            )
            if certain or (transaction.state == "asked" and hidden):
                allowed[group].add(offset)
        for group, offset in least.items():
            found = self.ending.committed.get(group, {}).get("a-0", -1)
            if found < offset or found not in allowed[group]:
                self._wrong(
                    "offsets torn", f"{group} is at {found}; committed transactions say {offset}"
                )

    # --- reading

    def _check_reads(self) -> None:
        visible = {
            partition: [record.offset for record in records if record.visible]
            for partition, records in self.ending.logs.items()
        }
        by_offset = {
            partition: {record.offset: record for record in records}
            for partition, records in self.ending.logs.items()
        }
        last: dict[tuple[str, str], int] = {}
        before_loss: dict[tuple[str, str], int] = {}
        went_back: set[tuple[str, str]] = set()
        for place, event in enumerate(self.history.events):
            details: Any = event.details
            if place == self.losses.last:
                before_loss, last = dict(last), {}
                went_back.clear()
            if event.what == "seek":
                last.pop((details[0], details[1]), None)
                before_loss.pop((details[0], details[1]), None)
            elif event.what in ("assigned", "revoked", "lost"):
                for partition in details[1]:
                    last.pop((details[0], partition), None)
                    before_loss.pop((details[0], partition), None)
            elif event.what == "read":
                life, isolation, partition, records, _ = details
                committed_only = isolation == "read_committed"
                before = last.get((life, partition))
                for offset, value in records:
                    self._check_read(place, partition, offset, value, by_offset, committed_only)
                    if place < self.losses.last:
                        before = offset
                        continue
                    if self._is_gone(partition, offset, value, by_offset):
                        # Fetched before the power failed; its reader hears of that later.
                        known = before_loss.get((life, partition), -1)
                        before_loss[life, partition] = max(known, offset)
                        before = None
                        continue
                    if before is None and (life, partition) in before_loss:
                        # Nothing that was written after the loss may be passed over.
                        end = self.losses.end_after(partition)
                        before = min(before_loss.pop((life, partition)), end - 1)
                        before = min(before, offset - 1)
                    if before is not None and offset <= before:
                        end = self.losses.end_after(partition)
                        if offset <= end <= before and (life, partition) not in went_back:
                            # What it had read was lost, and was written again at the same place.
                            went_back.add((life, partition))
                            before = offset
                            continue
                        self._wrong("read order", f"{life} {partition}: {offset} after {before}")
                    if before is not None and committed_only:
                        self._check_gap(life, partition, before, offset, visible)
                    before = offset
                if before is None:
                    last.pop((life, partition), None)
                else:
                    last[life, partition] = before

    def _is_gone(
        self,
        partition: str,
        offset: int,
        value: bytes,
        by_offset: Mapping[str, Mapping[int, StoredRecord]],
    ) -> bool:
        """Whether a record that was read is none of those that are there, after a power loss."""
        if self.losses.last < 0:
            return False
        sent = self.sent.get(value)
        if sent is not None and sent.order > self.losses.last:
            return False
        stored = by_offset.get(partition, {}).get(offset)
        return stored is None or stored.value != value

    def _check_read(
        self,
        place: int,
        partition: str,
        offset: int,
        value: bytes,
        by_offset: Mapping[str, Mapping[int, StoredRecord]],
        committed_only: bool,
    ) -> None:
        stored = by_offset.get(partition, {}).get(offset)
        sent = self.sent.get(value)
        certain = sent is None or sent.order > self.losses.last
        if certain and stored is not None and stored.value != value:
            self._wrong(
                "offset reused", f"{partition}@{offset} was {value!r} and is {stored.value!r}"
            )
        if sent is not None and place < sent.order:
            self._wrong("read early", f"{value!r} was read before it was sent")
        if not committed_only:
            return
        if certain and stored is not None and not stored.visible:
            self._wrong("dirty read", f"{partition}@{offset}: {value!r} was never committed")
        if sent is not None and sent.transaction:
            transaction = self.transactions[sent.transaction]
            if transaction.asked_at < 0 or place < transaction.asked_at:
                self._wrong("dirty read", f"{partition}@{offset}: {value!r} before its commit")

    def _check_gap(
        self,
        life: str,
        partition: str,
        before: int,
        offset: int,
        visible: Mapping[str, list[int]],
    ) -> None:
        offsets = visible.get(partition, [])
        topic = partition.rpartition("-")[0]
        # What is deleted by its offset may still lie in the file.
        after = bisect_left(offsets, max(before + 1, self.ending.starts.get(partition, 0)))
        if after < len(offsets) and offsets[after] < offset and topic not in self.ending.compacted:
            self._wrong(
                "skipped", f"{life} went from {partition}@{before} to {offset}, over "
                f"{offsets[after]}"
            )  # fmt: skip

    def _check_final_read(self) -> None:
        for partition, records in self.ending.logs.items():
            expected = [(r.offset, r.value) for r in records if r.visible]
            start = self.ending.starts.get(partition, 0)
            expected = [entry for entry in expected if entry[0] >= start]
            # Retention may have gone on since they were read.
            found = [f for f in self.ending.finally_read.get(partition, []) if f[0] >= start]
            if partition.rpartition("-")[0] in self.ending.compacted:
                found = [entry for entry in found if entry in expected]  # It, too, goes on.
            if found != expected:
                odd = sorted(set(found) ^ set(expected))[:3]
                self._wrong("final read", f"{partition}: differs from the log at {odd}")

    # --- groups

    def _check_sessions(self) -> None:
        group = self.ending.session_group
        if not group:
            return
        outputs: dict[bytes, int] = defaultdict(int)
        for partition, records in self.ending.logs.items():
            if partition.startswith("b-"):
                for record in records:
                    if record.visible and record.value.startswith(b"out:"):
                        outputs[record.value[4:]] += 1
        for value, count in outputs.items():
            if count > 1:
                self._wrong("output twice", f"{value!r} came out {count} times")
        for partition, records in self.ending.logs.items():
            if not partition.startswith("a-"):
                continue
            upto = self.ending.committed.get(group, {}).get(partition, 0)
            for record in records:
                done = record.value in outputs
                if record.visible and record.offset < upto and not done:
                    self._wrong(
                        "output missing", f"{record.value!r} of {partition}@{record.offset}"
                    )
                if done and (record.offset >= upto or not record.visible):
                    self._wrong("offsets behind outputs", f"{record.value!r} came out, {upto=}")

    def _share_a_name(self, life: str, other: str) -> bool:
        """Whether two lives (``group0/2:id``) are of one static member, named like its worker."""
        one_worker = life.partition("/")[0] == other.partition("/")[0]
        return self.ending.static_members and one_worker and life != other

    def _check_group_commits(self) -> None:
        """Acknowledged commits of older generations do not come after those of newer ones, nor
        does one of a partition's former owner, and everything below the final offset was handed
        out to somebody."""
        asked: dict[str, int] = {}
        newest: dict[str, tuple[int, int]] = {}
        owners: dict[str, tuple[int, str]] = {}
        handed_out: dict[str, set[tuple[int, bytes]]] = defaultdict(set)
        made: dict[str, int] = {}
        succeeded: set[str] = set()
        for place, event in enumerate(self.history.events):
            details: Any = event.details
            if place == self.losses.last:
                owners.clear()
                newest.clear()
            if event.what == "member":
                made[details[0]] = place
            elif event.what == "committing":
                asked[details[0]] = place
            elif event.what == "assigned":
                for partition in details[1]:
                    _, owner = owners.get(partition, (place, details[0]))
                    if self._share_a_name(owner, details[0]):
                        # Of a static member's lives one counts: the last to join. One that froze
                        # may hear late what its successor has by now; or it joined after it. Its
                        # first acknowledged commit tells, and ends the other one.
                        if made[owner] > made[details[0]]:
                            continue
                        succeeded.add(owner)
                    owners[partition] = (place, details[0])
            elif event.what == "group commit":
                life, generation, offsets = details
                if asked[life] < self.losses.last:
                    continue
                for partition in offsets:
                    since, owner = owners.get(partition, (place, life))
                    if self._share_a_name(owner, life) and life not in succeeded:
                        succeeded.add(owner)
                        owners[partition] = (place, life)
                    elif owner != life and since < asked[life]:
                        self._wrong("stale commit", f"{life} committed {partition} of {owner}")
                    at, by = newest.get(partition, (-1, -1))
                    if self.ending.mixed_groups:
                        by = -1
                    if by > generation and at < asked[life]:
                        self._wrong(
                            "stale commit", f"{life} committed {partition} in {generation} after "
                            f"generation {by}"
                        )  # fmt: skip
                    if generation >= by:
                        newest[partition] = (place, generation)
            elif event.what == "read" and details[4]:
                handed_out[details[2]].update(details[3])
        for partition, upto in self.ending.committed.get("group", {}).items():
            for record in self.ending.logs.get(partition, []):
                wanted = record.visible and record.offset < upto
                if wanted and (record.offset, record.value) not in handed_out[partition]:
                    self._wrong("not delivered", f"{partition}@{record.offset} below {upto}")
                    break

    # --- compaction

    def _check_keys_after_losses(self) -> None:
        """What was on the disk goes only for a newer record that is there as well."""
        for place, newest in self.losses.keys_after(self.history):
            for value, sent in self.sent.items():
                if (
                    sent.topic in self.ending.compacted
                    and not sent.transaction
                    and sent.offset >= 0
                    and sent.order < place
                    and self.losses.is_certain(sent.order, sent.partition, sent.offset)
                    and newest.get(sent.key, -1) < sent.offset
                ):
                    self._wrong("compacted away", f"{sent.key!r} of {value!r} in a power loss")

    def _check_compaction(self) -> None:
        for topic in self.ending.compacted:
            last: dict[tuple[str, bytes | None], int] = {}
            for value, sent in self.sent.items():
                if sent.topic != topic or sent.offset < 0 or not self._is_committed(sent, value):
                    continue
                # A transaction may be gone with its marker.
                certain = sent.order > self.losses.last or (
                    not sent.transaction
                    and self.losses.is_certain(sent.order, sent.partition, sent.offset)
                )
                if certain:
                    place = (sent.partition, sent.key)
                    last[place] = max(last.get(place, -1), sent.offset)
            for (partition, key), offset in last.items():
                log = self.ending.logs.get(partition, [])
                kept = [r.offset for r in log if r.key == key and r.visible]
                if not kept or max(kept) < offset:
                    self._wrong("compacted away", f"{partition}: {key!r} of {offset}")
