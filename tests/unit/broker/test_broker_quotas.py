"""Goal: who takes too much is told how long to wait, by Kafka's rules and to the millisecond.

Method: measures and look-ups by themselves; then requests to a broker whose clock is moved by hand.
Waiting times that a sentence calls Kafka's were taken from Apache Kafka 4.4 for the same requests.
"""

from __future__ import annotations

import pytest
from admin_answers import CLIENT, IP, USER, Entity, create, delete, quotas
from broker_requests import fetch_request, produce_request
from broker_state import SocketlessBroker
from broker_wire import batch

from onceflow.broker_lite.cluster_metadata import ClusterMetadata
from onceflow.broker_lite.log import DataFolderError, MemoryStorage
from onceflow.broker_lite.quotas import ClientQuotas, QuotaFilter
from onceflow.broker_lite.quotas.client_quotas import make_entity
from onceflow.broker_lite.quotas.rates import TokenBucket, WindowedRate
from onceflow.broker_lite.request_context import RequestContext
from onceflow.sdk.model.special_values import QuotaMatch
from onceflow.sdk.protocol.api.admin import CreateTopicsRequest, CreateTopicsResponse
from onceflow.sdk.protocol.api.admin_quotas import AlterClientQuotasResponse
from onceflow.sdk.protocol.api.cluster import MetadataRequest, MetadataResponse
from onceflow.sdk.protocol.api.fetch import FetchResponse
from onceflow.sdk.protocol.api.produce import ProduceResponse

RATE = "producer_byte_rate"


def allow(broker: SocketlessBroker, entity: Entity, key: str, value: float | None) -> None:
    response = broker.ask(quotas(entity, (key, value)), 1)
    assert isinstance(response, AlterClientQuotasResponse)
    assert [entry.error_code for entry in response.entries] == [0]


def produced(broker: SocketlessBroker, size: int) -> ProduceResponse:
    response = broker.ask(produce_request("t", batch(b"x" * size)), 9)
    assert isinstance(response, ProduceResponse)
    assert response.responses[0].partition_responses[0].error_code == 0
    return response


def fetched(broker: SocketlessBroker, offset: int = 0) -> tuple[int, int]:
    """Milliseconds to wait, and bytes that came."""
    request = fetch_request("t", offset, max_bytes=1_000_000)
    response = broker.ask(request, 11)
    assert isinstance(response, FetchResponse)
    size = sum(
        len(partition.records or b"") for t in response.responses for partition in t.partitions
    )
    return response.throttle_time_ms, size


@pytest.fixture
def broker() -> SocketlessBroker:
    made = SocketlessBroker()
    made.ask(create("t"), 7)
    return made


# --- measures


def test_a_burst_counts_against_all_windows() -> None:
    rate = WindowedRate(11, 1000)
    rate.record(20_000, 5)
    assert rate.throttle_ms(1000, 5) == 10_000
    assert rate.throttle_ms(1000, 5_005) == 10_000
    assert rate.throttle_ms(1000, 10_005) == 10_000
    assert rate.throttle_ms(1000, 11_005) == 0, "what is older than every window is forgotten"


def test_a_rate_at_its_limit_is_not_throttled() -> None:
    rate = WindowedRate(11, 1000)
    for second in range(30):
        rate.record(1000, second * 1000)
        assert rate.throttle_ms(1100, second * 1000) == 0
    rate.record(5_000, 30_000)
    assert rate.throttle_ms(1100, 30_000) > 0


def test_what_is_taken_back_does_not_count() -> None:
    rate = WindowedRate(11, 1000)
    rate.record(50_000, 0)
    rate.record(-50_000, 10)
    assert rate.per_second(10) == 0


def test_tokens_come_back_at_their_rate_up_to_the_burst() -> None:
    """Kafka's: 1 a second in 11 windows; 20 taken from 11 are missed for 9 seconds."""
    bucket = TokenBucket(11, 1000)
    bucket.take(20, 1.0, 0)
    assert bucket.throttle_ms(1.0, 0) == 9_000
    assert bucket.throttle_ms(1.0, 8_999) == 1
    assert bucket.throttle_ms(1.0, 9_000) == 0
    bucket.take(11, 1.0, 1_000_000)
    assert bucket.throttle_ms(1.0, 1_000_000) == 0
    bucket.take(1, 1.0, 1_000_000)
    assert bucket.throttle_ms(1.0, 1_000_000) == 1_000, "no more than the burst had been saved"


# --- whose quota it is


def test_the_most_specific_entity_wins() -> None:
    found = ClientQuotas(ClusterMetadata(MemoryStorage()))
    order: list[tuple[Entity, tuple[str, str]]] = [
        ([("client-id", None)], ("", "c")),
        ([("client-id", "c")], ("", "c")),
        ([("user", None)], ("u", "")),
        ([("user", None), ("client-id", None)], ("u", "c")),
        ([("user", None), ("client-id", "c")], ("u", "c")),
        ([("user", "u")], ("u", "")),
        ([("user", "u"), ("client-id", None)], ("u", "c")),
        ([("user", "u"), ("client-id", "c")], ("u", "c")),
    ]
    for value, (entity, shared_by) in enumerate(order, 1):
        found.alter(make_entity(entity), {RATE: value})
        assert found.limit(RATE, "u", "c") == (value, shared_by)
    for value, (entity, _) in reversed(list(enumerate(order, 1))):
        limit = found.limit(RATE, "u", "c")
        assert limit is not None
        assert limit.value == value
        found.alter(make_entity(entity), {RATE: None})
    assert found.limit(RATE, "u", "c") is None


def test_another_quota_of_a_more_specific_entity_hides_nothing() -> None:
    found = ClientQuotas(ClusterMetadata(MemoryStorage()))
    found.alter(make_entity([("user", "u")]), {RATE: 5})
    found.alter(make_entity([("user", "u"), ("client-id", "c")]), {"request_percentage": 1})
    limit = found.limit(RATE, "u", "c")
    assert limit == (5, ("u", ""))


def test_quotas_survive_a_restart() -> None:
    storage = MemoryStorage()
    first = SocketlessBroker(storage=storage)
    allow(first, USER + CLIENT, RATE, 7.0)
    allow(first, [("ip", None)], "connection_creation_rate", 3.0)
    first.close()
    again = SocketlessBroker(storage=storage).state.quotas
    assert again.active
    limit = again.quotas.limit(RATE, "admin-u", "admin-c")
    assert limit is not None
    assert limit.value == 7.0
    assert again.quotas.connection_rate("1.2.3.4") == 3.0


@pytest.mark.parametrize("kept", [[5], [{"entity": {}, "values": {}}], [{"entity": {"user": "a"}}]])
def test_quotas_that_make_no_sense_stop_the_start(kept: list[object]) -> None:
    storage = MemoryStorage()
    ClusterMetadata(storage).save("quotas", {"entries": kept})  # type: ignore[dict-item]
    with pytest.raises(DataFolderError, match="quota"):
        SocketlessBroker(storage=storage)


# --- who has to wait


def test_a_producer_waits_for_what_is_beyond_his_rate(broker: SocketlessBroker) -> None:
    """Kafka's: 15,193 ms after 25,193 bytes of requests at 1,000 a second."""
    allow(broker, [("client-id", "test")], RATE, 1000.0)
    assert produced(broker, 5_000).throttle_time_ms == 0
    throttled = produced(broker, 20_000).throttle_time_ms
    assert 15_000 < throttled < 15_300
    broker.advance(throttled)
    assert produced(broker, 100).throttle_time_ms == 0


def test_a_quota_is_nobody_elses(broker: SocketlessBroker) -> None:
    allow(broker, [("client-id", "other")], RATE, 1.0)
    allow(broker, [("user", "nobody")], RATE, 1.0)
    assert produced(broker, 50_000).throttle_time_ms == 0


def test_a_removed_quota_is_gone_at_once(broker: SocketlessBroker) -> None:
    allow(broker, [("user", "ANONYMOUS")], RATE, 10.0)
    assert produced(broker, 1_000).throttle_time_ms > 0
    allow(broker, [("user", "ANONYMOUS")], RATE, None)
    assert produced(broker, 50_000).throttle_time_ms == 0


def test_a_consumer_beyond_his_rate_gets_nothing_until_he_waited(broker: SocketlessBroker) -> None:
    for _ in range(4):
        produced(broker, 4_000)
    allow(broker, [("client-id", "test")], "consumer_byte_rate", 1000.0)
    throttled, size = fetched(broker)
    assert (throttled, size // 4_000) == (0, 2), "no more than the windows hold"
    throttled, size = fetched(broker, 2)
    assert throttled > 0
    assert size == 0
    assert fetched(broker, 2) == (throttled, 0), "what was not given is not counted"
    broker.advance(11_000)
    assert fetched(broker, 2)[1] > 0


def test_one_fetch_gives_no_more_than_all_windows_but_one(broker: SocketlessBroker) -> None:
    context = RequestContext(9, "test", 1, "/1", "User:u", "PLAINTEXT", broker.connection)
    assert broker.state.quotas.fetch_room(context) is None
    allow(broker, [("client-id", "test")], "consumer_byte_rate", 1000.0)
    assert broker.state.quotas.fetch_room(context) == 10_000


def test_a_batch_larger_than_the_quota_is_given_all_the_same(broker: SocketlessBroker) -> None:
    produced(broker, 50_000)
    allow(broker, [("client-id", "test")], "consumer_byte_rate", 1000.0)
    throttled, size = fetched(broker)
    assert size > 50_000
    assert throttled > 30_000, "and is paid for afterwards"


def test_time_is_a_quota_too(broker: SocketlessBroker) -> None:
    allow(broker, [("client-id", "test")], "request_percentage", 1.0)
    clock = iter(range(0, 10**12, 200_000_000))  # Every request takes 200 ms.
    broker.state.work_clock_ns = lambda: next(clock)
    waits = []
    for _ in range(2):
        response = broker.ask(MetadataRequest(topics=[]), 9)
        assert isinstance(response, MetadataResponse)
        waits.append(response.throttle_time_ms)
    assert waits == [1000, 1000], "20 and 40 percent of a second, 1 is allowed; one window at most"


def made(broker: SocketlessBroker, name: str, count: int, version: int = 7) -> tuple[int, int]:
    request = create(name, count)
    assert isinstance(request, CreateTopicsRequest)
    response = broker.ask(request, version)
    assert isinstance(response, CreateTopicsResponse)
    return response.throttle_time_ms, response.topics[0].error_code


def test_changes_to_topics_are_refused_beyond_the_quota(broker: SocketlessBroker) -> None:
    """Kafka's: also a check that makes nothing counts; versions without the error only wait."""
    allow(broker, [("client-id", "test")], "controller_mutation_rate", 1.0)
    assert made(broker, "a", 20) == (0, 0)
    assert made(broker, "b", 1) == (9_000, 89)
    assert made(broker, "c", 1, version=5) == (10_000, 0)
    broker.ask(delete("a"), 6)
    assert broker.state.topics.get("a") is not None
    broker.advance(10_000)
    broker.ask(delete("a"), 6)
    assert broker.state.topics.get("a") is None


def test_topics_made_by_asking_for_them_are_bounded_and_count_too(
    broker: SocketlessBroker,
) -> None:
    def asked(*names: str) -> list[int]:
        topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
        response = broker.ask(MetadataRequest(topics=topics), 9)
        assert isinstance(response, MetadataResponse)
        return [topic.error_code for topic in response.topics]

    names = [f"n{number}" for number in range(150)]
    assert asked(*names) == [0] * 100 + [3] * 50
    assert asked(*names) == [0] * 150
    allow(broker, [("client-id", "test")], "controller_mutation_rate", 1.0)
    assert made(broker, "a", 20) == (0, 0)
    assert asked("b", "a") == [3, 0]
    broker.advance(10_000)
    assert asked("b", "a") == [0, 0]


def test_an_address_may_open_so_many_connections() -> None:
    broker = SocketlessBroker()
    enforcement = broker.state.quotas
    assert enforcement.connected("10.9.8.7", 0) == 0
    allow(broker, IP, "connection_creation_rate", 2.0)
    assert [enforcement.connected("10.9.8.7", 0) for _ in range(20)] == [0] * 20
    assert enforcement.connected("10.9.8.7", 0) == 500
    assert enforcement.connected("10.9.8.7", 500) == 0, "the refused one does not count"
    assert enforcement.connected("10.9.8.8", 0) == 0
    assert enforcement.connected("10.9.8.7", 11_000) == 0


def test_measures_of_any_number_of_clients_are_bounded(
    broker: SocketlessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceflow.broker_lite.quotas.enforcement.MEASURES_MAX", 10)
    monkeypatch.setattr("onceflow.broker_lite.quotas.client_quotas.KNOWN_LIMITS_MAX", 10)
    allow(broker, [("client-id", None)], RATE, 10.0)
    context = RequestContext(9, "", 1, "/1", "User:u", "PLAINTEXT", broker.connection)
    measured = broker.state.quotas
    for number in range(50):
        measured.produced(context._replace(client_id=f"c{number}"), 1, broker.now_ms)
    assert len(measured._rates) <= 10
    assert len(measured.quotas._lookups) <= 10


def test_a_strict_filter_leaves_out_what_has_more_parts() -> None:
    found = ClientQuotas(ClusterMetadata(MemoryStorage()))
    alone, both = make_entity([("user", "u")]), make_entity([("user", "u"), ("client-id", "c")])
    for entity in (alone, both):
        found.alter(entity, {RATE: 5.0})
    wanted = [QuotaFilter("user", QuotaMatch.EXACT, "u")]
    assert [entity for entity, _ in found.matching(wanted, strict=True)] == [alone]
    assert [entity for entity, _ in found.matching(wanted, strict=False)] == [alone, both]
