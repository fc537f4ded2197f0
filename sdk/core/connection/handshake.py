"""The first requests on a connection: which versions the broker offers.

It has version negotiation (KIP-35, KIP-511) as a flow, and the choice of a version for a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from onceflow.sdk.core.flow import Flow, ask
from onceflow.sdk.errors import RemoteProtocolError, UnsupportedVersionError
from onceflow.sdk.model.special_values import TRANSACTION_VERSION
from onceflow.sdk.protocol.api.cluster import ApiVersionsRequest, ApiVersionsResponse
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for
from onceflow.sdk.protocol.schema import Request

SOFTWARE_NAME = "onceflow"
TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")
"""First bytes of a TLS alert and of a TLS handshake message (RFC 8446, section 5.1)."""

SPEAKS_TLS: Final = "it speaks TLS; set security_protocol to SSL or SASL_SSL"
"""Remedy for an address that answers in TLS."""


@dataclass(frozen=True, slots=True)
class BrokerVersions:
    """Versions and features that a broker offers.

    Attributes:
        ranges: Least and greatest version by API key.
        features: Finalized feature levels by name, such as ``transaction.version``.
    """

    ranges: Mapping[int, tuple[int, int]]
    features: Mapping[str, int] = field(default_factory=dict)

    def pick(self, request_type: type[Request], max_version: int | None = None) -> int | None:
        """Return the highest version that client and broker have.

        Args:
            request_type: The request.
            max_version: Upper bound from the caller.

        Returns:
            The version, None if there is none.
        """
        offered = self.ranges.get(request_type.api_key)
        if offered is None:
            return None
        least, most = request_type.versions
        if max_version is not None:
            most = min(most, max_version)
        version = min(most, offered[1])
        return version if version >= max(least, offered[0]) else None

    def require(self, request_type: type[Request], max_version: int | None = None) -> int:
        """Return the version as ``pick``, or raise an error if there is none.

        Args:
            request_type: The request.
            max_version: Upper bound from the caller.

        Returns:
            The version.

        Raises:
            UnsupportedVersionError: There is no common version; the message says which ones are
                offered.
        """
        version = self.pick(request_type, max_version)
        if version is None:
            name = request_type.__name__.removesuffix("Request")
            offered = self.ranges.get(request_type.api_key)
            has = f"versions {offered[0]}-{offered[1]}" if offered else "no version of it"
            least, most = request_type.versions
            limit = most if max_version is None else min(most, max_version)
            too_old = offered is None or offered[1] < least
            since = served_since(request_type, least) if too_old else ""
            raise UnsupportedVersionError(
                f"this client needs {name} in version {least} to {limit}{since}; the broker "
                f"offers {has}"
            )
        return version

    @property
    def transaction_version(self) -> int:
        """Level of ``transaction.version``: 2 is KIP-890's protocol; 0 if the broker has none."""
        return self.features.get(TRANSACTION_VERSION, 0)


def served_since(request_type: type[Request], version: int) -> str:
    """Return the release that has a version of a request, for the middle of a sentence; "" if
    unknown."""
    from onceflow.sdk.protocol.releases import first_release  # Late: for errors only.

    release = first_release(request_type.api_key, version)
    return f", which Apache Kafka serves from {release} on" if release else ""


BEFORE_NEGOTIATION = BrokerVersions(ranges={18: (0, 4), 17: (0, 1), 36: (0, 2)})
"""Requests that may be sent before the broker's versions are known."""


def negotiate_versions(software_version: str) -> Flow[BrokerVersions]:
    """Ask for the broker's versions, newest form first.

    A broker that does not know our newest ApiVersions answers in version 0 with error 35 and, from
    KIP-511 on, with the range that it knows. Then the request is repeated in that version.

    Args:
        software_version: Version of this library, for the broker's log and metrics.

    Returns:
        The versions and features that the broker offers.

    Raises:
        BrokerError: The answer is an error.
        RemoteProtocolError: Its answer has an empty range.
    """
    request = ApiVersionsRequest(
        client_software_name=SOFTWARE_NAME, client_software_version=software_version
    )
    reply = yield from ask(request, ApiVersionsResponse)
    if reply.error_code == ErrorCode.UNSUPPORTED_VERSION:
        known = [key.max_version for key in reply.api_keys if key.api_key == 18]
        version = min(known[0], ApiVersionsRequest.versions[1]) if known else 0
        plain = ApiVersionsRequest() if version < 3 else request
        reply = yield from ask(plain, ApiVersionsResponse, max_version=max(version, 0))
    if reply.error_code:
        raise error_for(reply.error_code)
    ranges = {key.api_key: (key.min_version, key.max_version) for key in reply.api_keys}
    if any(least > most for least, most in ranges.values()):
        raise RemoteProtocolError("the broker offers a version range that is empty")
    features = {f.name: f.max_version_level for f in reply.finalized_features or ()}
    return BrokerVersions(ranges, features)


def foreign_protocol(first: bytes) -> str:
    """Name the protocol of a peer that does not speak Kafka's.

    Args:
        first: The first bytes that it sent.

    Returns:
        Its protocol and the remedy, as the end of a message; empty if unknown.
    """
    if first[:2] in TLS_RECORDS:
        return SPEAKS_TLS
    if first.startswith(b"HTTP/"):
        return "it is a web server; use the address of a Kafka listener"
    if first.startswith(b"SSH-"):
        return "it is an SSH server; use the address of a Kafka listener"
    return ""
