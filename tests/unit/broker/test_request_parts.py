"""Goal: every request can be refused in whole and in part, and nothing of it gets lost on the way.

Method: random requests of every kind and version that is served; they are divided by chance, and
the halves and answers are encoded and counted.
"""

from __future__ import annotations

import random

import pytest
from wire_values import random_message

from onceflow.broker_lite.registry import Registration, load_handlers
from onceflow.broker_lite.testing.plain_messages import plain_message
from onceflow.broker_lite.testing.request_parts import LEVELS, error_answer, merge, parts, split
from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.api.fetch import FetchRequest
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.api.transactions import WriteTxnMarkersRequest
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.schema import Request

SEED = 3
CODE = ErrorCode.REQUEST_TIMED_OUT


def random_requests(registration: Registration) -> list[tuple[Request, int]]:
    rng = random.Random(SEED)
    found = []
    for version in range(registration.min_version, registration.max_version + 1):
        request = random_message(registration.request_type, version, rng)
        assert isinstance(request, Request)
        found.append((request, version))
    return found


def leaves(plain: object, above: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Everything that a message says, each with what stands above it."""
    if not isinstance(plain, dict):
        return [(*above, plain)]
    own = tuple(str(v) if isinstance(v, dict) else v for v in plain.values() if type(v) is not list)
    lists = [element for value in plain.values() if type(value) is list for element in value]
    if not lists:
        return [(*above, *own)]
    return [leaf for element in lists for leaf in leaves(element, (*above, *own))]


WITHOUT_PLACE = {34, 35, 49, 51}
"""Kinds whose answers, at least in some versions, do not mirror the request."""


@pytest.mark.parametrize(
    "registration",
    load_handlers().registrations(),
    ids=lambda registration: registration.request_type.__name__,
)
class TestEveryKind:
    @pytest.mark.parametrize("each_part", [False, True])
    def test_an_error_can_be_answered_in_every_version(
        self, registration: Registration, each_part: bool
    ) -> None:
        refused = 0
        for request, version in random_requests(registration):
            try:
                answer = error_answer(request, version, CODE, each_part=each_part)
            except ValueError:
                refused += 1
                continue
            decoded, _ = type(answer).decode(answer.encode(version), version)
            said = leaves(plain_message(decoded, version))
            levels = LEVELS.get(request.api_key, ())
            named = any(part.partition is not None for part in parts(request, version))
            if named or not any(each.then for each in levels):
                asked = [getattr(request, each.asked) for each in levels]
                assert not any(asked) or any(int(CODE) in values for values in said)
        assert bool(refused) == (registration.request_type.api_key in WITHOUT_PLACE)

    def test_two_halves_make_the_whole(self, registration: Registration) -> None:
        rng = random.Random(SEED)
        for request, version in random_requests(registration):
            before = request.encode(version)
            chosen = {part: rng.random() < 0.5 for part in parts(request, version)}
            halves = split(request, version, chosen.__getitem__)
            found = [set(parts(half, version)) if half else set() for half in halves]
            assert found[0] == {part for part in chosen if chosen[part]}
            assert found[1] == {part for part in chosen if not chosen[part]}
            assert request.encode(version) == before

    def test_two_answers_make_one_that_speaks_of_everything(
        self, registration: Registration
    ) -> None:
        rng = random.Random(SEED)
        for request, version in random_requests(registration):
            if request.api_key not in LEVELS or request.api_key == WriteTxnMarkersRequest.api_key:
                continue  # Markers of one producer cannot be told apart; nobody divides them.
            one, two = split(request, version, lambda part: rng.random() < 0.5)
            if one is None or two is None:
                continue
            answers = [error_answer(half, version, CODE, each_part=True) for half in (one, two)]
            said = {leaf for each in answers for leaf in leaves(plain_message(each, version))}
            merged = merge(answers[0], answers[1], request.api_key, version)
            # A topic without partitions is a leaf of one half and none of the whole.
            found = set(leaves(plain_message(merged, version)))
            assert found <= said
            assert {leaf for leaf in said - found if int(CODE) in leaf} == set()


def test_the_table_names_fields_that_there_are() -> None:
    for api_key, levels in LEVELS.items():
        if api_key not in API:
            continue
        for first in levels:
            request, answer = API[api_key].request_type, API[api_key].response_type
            level = first
            while level is not None:
                asked = request.fields()[level.asked].element
                answered = answer.fields()[level.answered].element
                assert answered is not None
                assert answered.struct_type is not None
                answer = answered.struct_type  # type: ignore[assignment]
                assert not level.error or level.error in answer.fields()
                if asked is not None and asked.struct_type is not None:
                    request = asked.struct_type  # type: ignore[assignment]
                level = level.then  # type: ignore[assignment]


def test_the_second_answer_counts_where_both_speak_of_a_partition() -> None:
    def fetch(*partitions: int) -> FetchRequest:
        return FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            topics=[
                FetchRequest.FetchTopic(
                    topic="t",
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=number, fetch_offset=0, partition_max_bytes=1
                        )
                        for number in partitions
                    ],
                )
            ],
        )

    good = error_answer(fetch(0, 1), 12, ErrorCode.NONE)
    bad = error_answer(fetch(1), 12, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    merged = merge(good, bad, FetchRequest.api_key, 12)
    answered = merged.responses[0].partitions  # type: ignore[attr-defined]
    assert [(each.partition_index, each.error_code) for each in answered] == [(0, 0), (1, 6)]


def test_a_request_without_parts_is_one_part() -> None:
    request = ProduceRequest(acks=1, timeout_ms=1, topic_data=[], transactional_id="x")
    assert [part.transactional_id for part in parts(request, 9)] == ["x"]
    assert split(request, 9, lambda part: part.transactional_id == "x") == (request, None)
