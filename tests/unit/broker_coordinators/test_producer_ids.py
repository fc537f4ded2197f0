"""Producer ids are unique, whatever dies and whenever (trap 50).

Method: a store in memory that can fail; a new `ProducerIds` on it is a restart.
"""

from __future__ import annotations

import pytest
from coordinator_bench import Disk, ProcessDied

from onceflow.broker_lite.coordinators.state_log import StateLogError
from onceflow.broker_lite.coordinators.transactions.producer_ids import ProducerIds
from onceflow.sdk.protocol.error_codes import ErrorCode


def test_ids_rise_by_one_and_blocks_are_written_once() -> None:
    disk = Disk()
    ids = ProducerIds(disk)
    assert [ids.next() for _ in range(1_000)] == list(range(1_000))
    assert disk.writes == 1
    assert ids.next() == 1_000
    assert disk.writes == 2


def test_restart_goes_on_behind_the_reserved_block() -> None:
    disk = Disk()
    assert ProducerIds(disk).next() == 0
    assert ProducerIds(disk).next() == 1_000


def test_death_right_after_the_reservation_gives_no_id_twice() -> None:
    disk = Disk()
    disk.die_after = 1
    with pytest.raises(ProcessDied):
        ProducerIds(disk).next()
    assert ProducerIds(disk).next() == 1_000


def test_no_id_is_given_when_the_block_cannot_be_written() -> None:
    disk = Disk()
    disk.block_fails = True
    ids = ProducerIds(disk)
    with pytest.raises(StateLogError) as caught:
        ids.next()
    assert caught.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
    disk.block_fails = False
    assert ids.next() == 0


def test_ids_seen_in_the_logs_are_never_given_again() -> None:
    ids = ProducerIds(Disk())
    ids.note_used(4_321)
    assert ids.next() == 4_322
    ids.note_used(3)
    assert ids.next() == 4_323


def test_a_damaged_note_is_refused_with_advice() -> None:
    disk = Disk()
    disk.block = b"what\n"
    with pytest.raises(ValueError, match="restore it from a copy"):
        ProducerIds(disk)
