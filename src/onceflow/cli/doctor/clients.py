"""Checks of clients: how they connect, what they read, how they are called, how they are built."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Final

from onceflow.cli.doctor.facts import Facts
from onceflow.cli.doctor.findings import Check, Fault
from onceflow.sdk.model.partitions import IsolationLevel

WITHOUT_TLS: Final = "SASL_PLAINTEXT"
OPEN_MECHANISMS: Final = frozenset({"PLAIN", "OAUTHBEARER"})
"""Mechanisms that send what is secret as it is."""
DEFAULT_CLIENT_ID: Final = re.compile(
    r"onceflow|rdkafka|sarama|kafka-python.*|aiokafka.*|consumer-.*-\d+|"
)
"""Names that clients give themselves; that two of them are equal is nobody's choice."""


def open_passwords(facts: Facts) -> Iterator[Fault]:
    """Passwords that are sent without TLS."""
    security = facts.clients.admin().security
    if security.security_protocol == WITHOUT_TLS and security.sasl_mechanism in OPEN_MECHANISMS:
        yield Fault(
            "the security settings",
            f"sasl_mechanism={security.sasl_mechanism} with security_protocol={WITHOUT_TLS}",
            "security_protocol=SASL_SSL, and a listener of that protocol; without TLS at least "
            "sasl_mechanism=SCRAM-SHA-512",
        )


def uncommitted_readers(facts: Facts) -> Iterator[Fault]:
    """Consumers that read what is aborted later."""
    if facts.clients.reader().isolation is IsolationLevel.READ_UNCOMMITTED:
        yield Fault(
            "the settings of consumers",
            "isolation_level=read_uncommitted",
            "leave isolation_level out, or set read_committed",
        )


def equal_client_ids(facts: Facts) -> Iterator[Fault]:
    """Members of one group under one name."""
    for name, group in facts.groups.items():
        counts = Counter(member.client_id for member in group.members)
        for client_id, count in sorted(counts.items()):
            if count > 1 and not DEFAULT_CLIENT_ID.fullmatch(client_id):
                hosts = sorted({m.client_host for m in group.members if m.client_id == client_id})
                yield Fault(
                    f"group {name}",
                    f"{count} members have client_id={client_id!r}, on {', '.join(hosts)}",
                    "give each process a client_id of its own, such as the name of its host",
                )


def plain_build(facts: Facts) -> Iterator[Fault]:
    """An installation without compiled modules."""
    from onceflow.sdk.protocol import record_kernel

    if not record_kernel.COMPILED:
        yield Fault(
            f"onceflow in {sys.prefix}",
            "its modules that handle records are not compiled",
            "install a wheel for this Python and platform, or install from source with a C "
            "compiler and ONCEFLOW_COMPILE unset; onceflow --version tells which it is",
        )


CHECKS: Final = (
    Check(
        "open-password",
        "whoever can read the network reads the password, and can use it",
        open_passwords,
    ),
    Check(
        "read-uncommitted",
        "records of aborted transactions are read, and those of repeated ones twice",
        uncommitted_readers,
    ),
    Check(
        "client-id-twice",
        "quotas, metrics and the brokers' logs take the processes for one",
        equal_client_ids,
    ),
    Check(
        "plain-build",
        "producing and reading take several times as long",
        plain_build,
    ),
)
