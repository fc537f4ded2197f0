"""The value of ``max.connections.per.ip.overrides``: most connections of single addresses.

It only reads the text; ``net`` counts the connections.
"""

from __future__ import annotations

from collections.abc import Sequence

from onceflow.sdk.errors import ConfigError

OVERRIDES = "max.connections.per.ip.overrides"


def parse_overrides(entries: Sequence[str]) -> dict[str, int]:
    """Read the most connections by address.

    Raises:
        ConfigError: An entry is not ADDRESS:COUNT.
    """
    overrides: dict[str, int] = {}
    if not entries:
        return overrides
    import ipaddress

    for entry in entries:
        address, colon, count = entry.rpartition(":")
        try:
            address = str(ipaddress.ip_address(address.strip("[]")))
        except ValueError:
            colon = ""
        if not (colon and count.isascii() and count.isdigit()):
            raise ConfigError(OVERRIDES, entry, "give ADDRESS:COUNT for each address")
        overrides[address] = int(count)
    return overrides
