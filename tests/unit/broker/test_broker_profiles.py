"""Goal: with a profile the broker serves and announces what that release has, and nothing more.

Method: what is announced is compared with the answers of the released versions of Apache Kafka,
recorded from them (``tests/vectors``); requests beyond them cost the connection.
"""

from __future__ import annotations

import itertools

import pytest
from broker_requests import produce_request
from broker_wire import Wire, batch
from kafka_api_versions import recorded

from onceflow.broker_lite import Broker
from onceflow.broker_lite.profiles import PROFILES, profile_of
from onceflow.broker_lite.registry import load_handlers
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.protocol.api.cluster import ApiVersionsRequest, ApiVersionsResponse
from onceflow.sdk.protocol.api.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from onceflow.sdk.protocol.error_codes import ErrorCode

RECORDED = {release.rpartition(".")[0]: served for release, served in recorded().items()}
OURS = {each.request_type.api_key: each for each in load_handlers().registrations()}
FEATURES = {"transaction.version", "group.version", "eligible.leader.replicas.version"}
"""Those that this broker has; the others are about controllers and what is not served."""

SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}


async def announced(broker: Broker, api_version: int = 3) -> ApiVersionsResponse:
    async with Wire(broker) as wire:
        return await wire.ask(ApiVersionsRequest(**SOFTWARE), api_version, ApiVersionsResponse)


@pytest.mark.parametrize("profile", PROFILES)
async def test_what_is_announced_is_in_the_release_and_in_this_broker(profile: str) -> None:
    released = {key: text for key, text in keys_of(profile).items() if key in OURS}
    async with Broker(profile=profile) as broker:
        answer = await announced(broker, min(4, released[18][1]))
    expected = {
        key: (max(low, OURS[key].advertised_min_version), min(high, OURS[key].max_version))
        for key, (low, high) in released.items()
        if high >= OURS[key].min_version  # WriteTxnMarkers 0 was the only one before 2.8.
    }
    assert {e.api_key: (e.min_version, e.max_version) for e in answer.api_keys} == expected
    levels = {e.name: f"{e.min_version}-{e.max_version}" for e in answer.supported_features}
    theirs = RECORDED[profile]["supported"]
    assert levels == {name: text for name, text in theirs.items() if name in FEATURES}
    in_force = {each.name: each.max_version_level for each in answer.finalized_features}
    finalized = RECORDED[profile]["finalized"]
    assert in_force == {name: level for name, level in finalized.items() if name in FEATURES}


@pytest.mark.parametrize("profile", PROFILES)
def test_the_table_of_releases_is_what_they_answer(profile: str) -> None:
    """Of everything that is in the table; what this broker may serve one day is there too."""
    released = profile_of(profile)
    assert released is not None
    theirs = keys_of(profile)
    assert released.versions == {key: theirs[key] for key in theirs if key in OURS}
    levels = {name: f"{low}-{high}" for name, (low, high) in released.features.items()}
    served = RECORDED[profile]
    # Levels from 0 on are told from version 4 of the answer on; before 3.9 nobody asks for it.
    assert levels == served["supported"]
    assert {name: text for name, text in levels.items() if text[0] != "0"} == served["supported_3"]


def keys_of(profile: str) -> dict[int, tuple[int, int]]:
    found = {}
    for key, text in RECORDED[profile]["api_keys"].items():
        low, _, high = text.partition("-")
        found[int(key)] = (int(low), int(high))
    return found


@pytest.mark.parametrize("profile", ["3.7", "3.8", "3.9"])
async def test_early_access_to_consumer_groups_is_announced_and_refused(profile: str) -> None:
    async with Broker(profile=profile) as broker, Wire(broker) as wire:
        request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0)
        answer = await wire.ask(request, 0, ConsumerGroupHeartbeatResponse)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        if profile > "3.7":
            look = ConsumerGroupDescribeRequest(group_ids=["g"])
            described = await wire.ask(look, 0, ConsumerGroupDescribeResponse)
            assert [g.error_code for g in described.groups] == [ErrorCode.UNSUPPORTED_VERSION]


async def test_a_version_that_the_release_lacks_is_not_served() -> None:
    async with Broker(profile="2.8") as broker:
        broker.create_topic("t")
        async with Wire(broker) as wire:
            wire.send(produce_request("t", batch(b"a")), 10)
            assert await wire.closed()
        async with Wire(broker) as wire:
            # KIP-511: an ApiVersions that is too new is told the range that there is.
            wire.send(ApiVersionsRequest(**SOFTWARE), 4)
            frame = await wire.receive_frame()
        answer, _ = ApiVersionsResponse.decode(frame, 0, 4)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert [(e.api_key, e.max_version) for e in answer.api_keys] == [(18, 3)]


async def test_a_request_that_the_release_lacks_is_not_served() -> None:
    async with Broker(profile="2.1") as broker:
        keys = {each.api_key for each in (await announced(broker, 2)).api_keys}
    assert 60 not in keys
    assert 44 not in keys
    assert 37 in keys


def test_unknown_profile_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match=r"2\.8") as caught:
        Broker(profile="1.0")
    assert caught.value.field == "onceflow.profile"


def test_history_only_grows() -> None:
    for older, newer in itertools.pairwise(PROFILES):
        before, after = profile_of(older), profile_of(newer)
        assert before is not None
        assert after is not None
        for api_key, (_, high) in before.versions.items():
            if api_key in (50, 51) and newer == "3.3":
                continue  # SCRAM came to KRaft with 3.5.
            assert after.versions[api_key][1] >= high
