"""Goal: so many connections as the settings say, by address and by time, and no trace of old ones.

Method: connections are counted in and out; the clock is an argument.
"""

from __future__ import annotations

from onceflow.broker_lite.net.connection_limits import ConnectionLimits
from onceflow.broker_lite.settings.broker_config import BrokerConfig


def limits(**settings: object) -> ConnectionLimits:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return ConnectionLimits(BrokerConfig.from_properties(named))


def admitted(made: ConnectionLimits, address: str, count: int = 10) -> int:
    return sum(made.admit("PLAINTEXT", address) is None for _ in range(count))


def test_an_address_may_have_more_or_fewer_than_the_others() -> None:
    made = limits(
        max_connections_per_ip=3, max_connections_per_ip_overrides="10.0.0.1:5,[::1]:1,10.0.0.2:0"
    )
    addresses = ("10.0.0.1", "::1", "10.0.0.2", "10.0.0.3")
    assert [admitted(made, address) for address in addresses] == [5, 1, 0, 3]


def test_who_is_gone_makes_room_and_leaves_nothing_behind() -> None:
    made = limits(max_connections_per_ip=1)
    for number in range(100):
        address = f"10.0.0.{number}"
        assert admitted(made, address, 2) == 1
        made.leave("PLAINTEXT", address)
        assert admitted(made, address, 2) == 1
        made.leave("PLAINTEXT", address)
    assert not made._by_address


def test_a_new_connection_waits_for_one_window_at_most() -> None:
    made = limits(max_connection_creation_rate=1)
    delays = [made.delay_ms("PLAINTEXT", 0) for _ in range(30)]
    assert delays[:11] == [0] * 10 + [1_000]
    assert max(delays) == 1_000
