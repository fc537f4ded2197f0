"""Goal: users of SCRAM are what was asked for, and stay it when the broker starts again.

Method: changes made to the users directly; a second object over the same metadata is a restart.
"""

from __future__ import annotations

import pytest

from onceflow.broker_lite.cluster_metadata import SCRAM_SECTION, ClusterMetadata
from onceflow.broker_lite.log import MemoryStorage
from onceflow.broker_lite.security.scram_users import Deletion, ScramUsers, Upsertion
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.scram import MAX_ITERATIONS, MIN_ITERATIONS


def upsertion(name: str, iterations: int) -> Upsertion:
    return Upsertion(name, 1, iterations, b"salt", b"salted")


@pytest.mark.parametrize(
    ("iterations", "code"),
    [
        (MIN_ITERATIONS - 1, ErrorCode.UNACCEPTABLE_CREDENTIAL),
        (MIN_ITERATIONS, None),
        (MAX_ITERATIONS, None),
        (MAX_ITERATIONS + 1, ErrorCode.UNACCEPTABLE_CREDENTIAL),
    ],
)
def test_iterations_have_bounds_that_belong_to_what_is_allowed(
    iterations: int, code: ErrorCode | None
) -> None:
    users = ScramUsers(ClusterMetadata(MemoryStorage()), "")
    refusal = users.alter([], [upsertion("u", iterations)])["u"]
    assert (refusal and refusal.code) == code
    assert (users.keys("SCRAM-SHA-256", "u") is None) == (code is not None)


def test_a_user_of_the_settings_who_was_deleted_does_not_come_back() -> None:
    storage = MemoryStorage()
    users = ScramUsers(ClusterMetadata(storage), "alice:secret,bob:other")
    for mechanism in (1, 2):
        assert users.alter([Deletion("alice", mechanism)], []) == {"alice": None}
    again = ScramUsers(ClusterMetadata(storage), "alice:secret,bob:other")
    assert again.keys("SCRAM-SHA-256", "alice") is None
    assert again.keys("SCRAM-SHA-256", "bob") == users.keys("SCRAM-SHA-256", "bob") is not None
    assert list(again.describe()) == ["bob"]


def test_a_user_without_a_credential_is_forgotten() -> None:
    storage = MemoryStorage()
    users = ScramUsers(ClusterMetadata(storage), "")
    assert users.alter([], [upsertion("u", MIN_ITERATIONS)]) == {"u": None}
    assert users.alter([Deletion("u", 1)], []) == {"u": None}
    assert ClusterMetadata(storage).section(SCRAM_SECTION) == {}
