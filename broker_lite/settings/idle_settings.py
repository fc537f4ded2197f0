"""Warns about settings without effect, because the feature that they belong to is off.

The log of a start names them. They are not refused, because Apache Kafka accepts them without a
message. But the user may expect a protection or a limit that does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from onceflow.broker_lite.settings.security_settings import STANDARD_AUTHORIZER

if TYPE_CHECKING:
    from onceflow.broker_lite.settings.broker_config import BrokerConfig
    from onceflow.broker_lite.settings.listeners import Listener

_OF_SASL = ("sasl.", "onceflow.sasl.", "connections.max.reauth.ms")
_OF_TLS = ("ssl.", "onceflow.ssl.")
_OF_ACLS = ("super.users", "allow.everyone.if.no.acl.found")
_MARKER_DELAY = "onceflow.end.txn.marker.delay.ms"
_EARLY_ANSWER = "onceflow.end.txn.early.answer"


def without_effect(config: BrokerConfig, listeners: Sequence[Listener]) -> list[str]:
    """Return warnings about settings that differ from their defaults and have no effect.

    Args:
        config: The broker's settings.
        listeners: Its listeners.

    Returns:
        A sentence for each cause, with the settings' names and the remedy; never a value.
    """
    given = [
        setting.name
        for field, setting in config.declared.items()
        if getattr(config, field) != setting.default
    ]
    return [
        f"without effect: {', '.join(names)}; {remedy}"
        for names, remedy in _causes(config, listeners, given)
        if names
    ]


def _causes(
    config: BrokerConfig, listeners: Sequence[Listener], given: Sequence[str]
) -> Iterator[tuple[list[str], str]]:
    protocols = [listener.protocol for listener in listeners]
    if not any(protocol.uses_sasl for protocol in protocols):
        names = [name for name in given if name.startswith(_OF_SASL)]
        yield names, "no listener speaks SASL: give listeners one of SASL_PLAINTEXT or SASL_SSL"
    if not any(protocol.uses_tls for protocol in protocols):
        names = [name for name in given if name.startswith(_OF_TLS)]
        yield names, "no listener is encrypted: give listeners one of SSL or SASL_SSL"
    if not config.authorizer_class_name:
        names = [name for name in given if name in _OF_ACLS]
        yield names, f"everybody may do everything: set authorizer.class.name={STANDARD_AUTHORIZER}"
    if not config.value(_EARLY_ANSWER):
        names = [name for name in given if name == _MARKER_DELAY]
        yield names, f"EndTxn waits for its markers: set {_EARLY_ANSWER}=true"
