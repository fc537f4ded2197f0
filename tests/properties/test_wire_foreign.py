"""Goal: every message in every version has exactly the bytes that independent encoders write.

Method: random messages (seeded per message and version; the seed is in the test's name) are encoded
by us, by kafka-python and by kio; all must agree, and our decoder must return the same message.
Which message and version an encoder lacks is written down here, so that nothing is skipped unseen;
at least one encoder must know each.
"""

from __future__ import annotations

import random

from wire_foreign import kafka_python_bytes, kio_bytes
from wire_values import all_message_versions, each_version, per_message, random_message

from onceflow.sdk.protocol.schema import Message

ROUNDS = 25

KAFKA_PYTHON_LACKS: dict[str, range] = {
    "UnregisterBrokerRequest": range(1),
    "UnregisterBrokerResponse": range(1),
    "ConsumerGroupDescribeRequest": range(2),
    "ConsumerGroupDescribeResponse": range(2),
    "ConsumerGroupHeartbeatRequest": range(2),
    "ConsumerGroupHeartbeatResponse": range(2),
}
KIO_LACKS: dict[str, range] = {}


@per_message
@each_version
def test_bytes_equal_those_of_independent_encoders(
    message_type: type[Message], version: int
) -> None:
    name = message_type.__name__
    for number in range(ROUNDS):
        seed = f"{name} {version} {number}"
        message = random_message(message_type, version, random.Random(seed))
        ours = message.encode(version)
        assert message_type.decode(ours, version) == (message, len(ours)), seed
        theirs = {}
        if version not in KAFKA_PYTHON_LACKS.get(name, ()):
            theirs["kafka-python"] = kafka_python_bytes(message, version)
        if version not in KIO_LACKS.get(name, ()):
            theirs["kio"] = kio_bytes(message, version)
        assert theirs, "no independent encoder knows this version"
        assert theirs == dict.fromkeys(theirs, ours), seed


def test_the_lists_of_what_an_encoder_lacks_are_exact() -> None:
    lacking = {"kafka-python": set(), "kio": set()}
    for message_type, version in all_message_versions():
        message = random_message(message_type, version, random.Random(0))
        if kafka_python_bytes(message, version) is None:
            lacking["kafka-python"].add((message_type.__name__, version))
        if kio_bytes(message, version) is None:
            lacking["kio"].add((message_type.__name__, version))
    for library, listed in (("kafka-python", KAFKA_PYTHON_LACKS), ("kio", KIO_LACKS)):
        assert lacking[library] == {(n, v) for n, versions in listed.items() for v in versions}
