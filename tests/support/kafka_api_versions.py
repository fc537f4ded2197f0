"""What brokers say that they serve, as plain data: to compare releases with our profiles of them.

As a program it starts releases of Apache Kafka, one after the other, and writes down their answers:
``PYTHONPATH=src:tests/support python tests/support/kafka_api_versions.py 3.9.1 4.0.0``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TypedDict

import real_kafka
from differential_world import Connection

from onceflow.sdk.protocol.api.cluster import ApiVersionsRequest, ApiVersionsResponse
from onceflow.sdk.protocol.error_codes import ErrorCode

FILE = Path(__file__).parents[1] / "vectors" / "kafka_api_versions.json"
FEATURES_VERSION = 3
"""First version of ApiVersions that tells features; it leaves out those that begin at level 0."""


class Served(TypedDict):
    """One broker's answers.

    Attributes:
        api_keys: "LOWEST-HIGHEST" version by api key.
        supported: "LOWEST-HIGHEST" level by feature, in the newest answer that the broker knows.
        supported_3: The same in version 3 of the answer.
        finalized: Level in force by feature.
    """

    api_keys: dict[str, str]
    supported: dict[str, str]
    supported_3: dict[str, str]
    finalized: dict[str, int]


def asked(bootstrap_servers: str) -> Served:
    """Ask a broker; all versions that it knows must name the same requests."""
    host, _, port = bootstrap_servers.rpartition(":")
    connection = Connection((host, int(port)))
    try:
        keys = _api_keys(_answer(connection, 0))
        known = min(keys[18][1], ApiVersionsRequest.versions[1])
        answers = [_answer(connection, version) for version in range(known + 1)]
        too_new = min(known + 1, ApiVersionsRequest.versions[1])
        refused = _api_keys(_answer(connection, too_new))
    finally:
        connection.socket.close()
    # KIP-511, from 2.4 on: a version that is too new is told the range that there is.
    if too_new > known:
        assert refused == ({18: keys[18]} if too_new > FEATURES_VERSION else {})
    assert all(_api_keys(answer) == keys for answer in answers), bootstrap_servers
    told = [_supported(answer) for answer in answers[FEATURES_VERSION:]] or [{}]
    return Served(
        api_keys={str(key): f"{low}-{high}" for key, (low, high) in sorted(keys.items())},
        supported=told[-1],
        supported_3=told[0],
        finalized={
            each.name: each.max_version_level
            for each in sorted(answers[-1].finalized_features, key=lambda each: each.name)
        },
    )


def _answer(connection: Connection, version: int) -> ApiVersionsResponse:
    software = {"client_software_name": "test", "client_software_version": "1"}
    connection.send(ApiVersionsRequest(**software), version)
    frame = connection.receive_frame()
    assert isinstance(frame, bytes), frame
    refused = int.from_bytes(frame[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION
    return ApiVersionsResponse.decode(frame, 0 if refused else version, 4)[0]


def _api_keys(answer: ApiVersionsResponse) -> dict[int, tuple[int, int]]:
    return {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}


def _supported(answer: ApiVersionsResponse) -> dict[str, str]:
    found = {
        each.name: f"{each.min_version}-{each.max_version}" for each in answer.supported_features
    }
    return dict(sorted(found.items()))


def recorded() -> dict[str, Served]:
    """The answers of Apache Kafka that were written down, by release."""
    found: dict[str, Served] = json.loads(FILE.read_text())
    return found


def main() -> None:
    """Record each release that is named."""
    for version in sys.argv[1:]:
        with (
            tempfile.TemporaryDirectory() as folder,
            real_kafka.ApacheKafka(Path(folder) / "data", version=version) as kafka,
        ):
            served = asked(kafka.bootstrap_servers)
        known = recorded() if FILE.exists() else {}
        known[version] = served
        lines = ",\n".join(
            f"{json.dumps(release)}: {json.dumps(known[release])}"
            for release in sorted(known, key=lambda text: [int(n) for n in text.split(".")])
        )
        FILE.write_text(f"{{\n{lines}\n}}\n")
        print(version, flush=True)


if __name__ == "__main__":
    main()
