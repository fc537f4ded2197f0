"""Settings of listeners and of who may connect, under Kafka's property names.

They are fields of ``BrokerConfig``; what they mean is decided in ``listeners`` and ``security``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from onceflow.broker_lite.setting import INT_MAX, Kind, declare, declare_int, declare_long


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """See each field's declaration for property, bounds and meaning.

    Attributes:
        listener_overrides: Settings of single listeners: by name of the listener in capitals, then
            by the property behind ``listener.name.NAME.``.
    """

    listeners: str = declare(
        "listeners",
        Kind.LIST,
        "",
        "Addresses to listen on, as NAME://HOST:PORT separated by commas; an empty host means "
        "every address. Unset, there is one: the daemon's --listen, or host and port in process.",
    )
    advertised_listeners: str = declare(
        "advertised.listeners",
        Kind.STRING,
        "",
        "Addresses that clients are told, as NAME://HOST:PORT separated by commas; a listener "
        "that is not named tells its own.",
    )
    listener_security_protocol_map: str = declare(
        "listener.security.protocol.map",
        Kind.STRING,
        "SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "Protocol of each listener name, as NAME:PROTOCOL separated by commas.",
    )
    onceflow_allow_insecure_network: bool = declare(
        "onceflow.allow.insecure.network",
        Kind.BOOLEAN,
        False,
        "Listen on addresses that other machines can reach without asking anybody who they are.",
    )
    max_connections: int = declare_int(
        "max.connections", INT_MAX, "Most connections at a time; further ones are closed."
    )
    connections_max_idle_ms: int = declare_long(
        "connections.max.idle.ms", 600_000, "Close a connection without requests after this.", -1
    )
    sasl_enabled_mechanisms: str = declare(
        "sasl.enabled.mechanisms",
        Kind.LIST,
        "",
        "Mechanisms that clients must use to authenticate; empty for none. PLAIN is served.",
    )
    onceflow_sasl_plain_credentials: str = declare(
        "onceflow.sasl.plain.credentials",
        Kind.PASSWORD,
        "",
        "Users of SASL PLAIN as NAME:PASSWORD, separated by commas.",
    )
    listener_overrides: Mapping[str, Mapping[str, str]] = dataclasses.field(
        default_factory=dict, repr=False
    )
