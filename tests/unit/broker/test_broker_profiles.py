"""Goal: with a profile the broker serves and announces what that release has, and nothing more.

Method: what is announced is compared with the table, and with a few ranges that are written down
here from each release's own documentation; requests beyond them cost the connection.
"""

from __future__ import annotations

import itertools

import pytest
from broker_requests import produce_request
from broker_wire import Wire, batch

from onceflow.broker_lite import Broker
from onceflow.broker_lite.dispatch import load_handlers
from onceflow.broker_lite.profiles import PROFILES, profile_of
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.protocol.api.cluster import ApiVersionsRequest, ApiVersionsResponse
from onceflow.sdk.protocol.error_codes import ErrorCode

KNOWN = {
    "2.1": {0: 7, 1: 10, 3: 7, 11: 3, 18: 2, 26: 1},
    "2.8": {0: 9, 1: 12, 2: 6, 3: 11, 8: 8, 10: 3, 11: 7, 18: 3, 22: 4, 26: 3, 60: 0, 61: 0},
    "3.9": {0: 11, 1: 17, 2: 9, 3: 12, 9: 9, 10: 6, 18: 4, 22: 5, 26: 4, 28: 4, 65: 0, 66: 1},
    "4.0": {0: 12, 1: 17, 3: 13, 15: 6, 26: 5, 28: 5},
    "4.4": {0: 13, 1: 18, 2: 11, 3: 13, 8: 10, 9: 10},
}
"""Highest versions by release and api key."""

SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}


async def announced(broker: Broker, api_version: int = 3) -> ApiVersionsResponse:
    async with Wire(broker) as wire:
        return await wire.ask(ApiVersionsRequest(**SOFTWARE), api_version, ApiVersionsResponse)


@pytest.mark.parametrize("profile", PROFILES)
async def test_what_is_announced_is_in_the_release_and_in_this_broker(profile: str) -> None:
    released = profile_of(profile)
    assert released is not None
    ours = {each.request_type.api_key: each for each in load_handlers().registrations()}
    async with Broker(profile=profile) as broker:
        answer = await announced(broker, min(3, released.versions[18][1]))
    for each in answer.api_keys:
        low, high = released.versions[each.api_key]
        assert low <= each.min_version <= each.max_version <= high
        assert each.max_version == min(high, ours[each.api_key].max_version)
    for api_key, high in KNOWN.get(profile, {}).items():
        found = {each.api_key: each.max_version for each in answer.api_keys}
        assert found[api_key] == min(high, ours[api_key].max_version)


@pytest.mark.parametrize(
    ("profile", "features"),
    [("2.8", set()), ("3.9", set()), ("4.0", {"transaction.version"})],
)
async def test_features_begin_with_their_release(profile: str, features: set[str]) -> None:
    async with Broker(profile=profile) as broker:
        answer = await announced(broker)
    found = {each.name for each in answer.finalized_features}
    assert found & {"transaction.version", "group.version"} >= features
    assert not (profile < "4" and found & {"transaction.version", "group.version"})


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
