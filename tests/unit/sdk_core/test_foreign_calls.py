"""Goal: who calls a client by another client's name is told what to write, and that is there.

Method: each name of the tables is asked of both faces, without a broker; the calls that the answers
name are looked up on the classes that they are about.
"""

from __future__ import annotations

import re

import pytest

from onceflow.sdk import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    ConsumerGroupMetadata,
    Producer,
    SecurityConfig,
)
from onceflow.sdk.settings.foreign_calls import ADMIN_CALLS, CONSUMER_CALLS, PRODUCER_CALLS

FACES: dict[type, dict[str, str]] = {
    Producer: dict(PRODUCER_CALLS),
    AsyncProducer: dict(PRODUCER_CALLS),
    Consumer: {name: how for name, how in CONSUMER_CALLS.items() if name != "commit_async"},
    AsyncConsumer: dict(CONSUMER_CALLS),
    Admin: dict(ADMIN_CALLS),
    AsyncAdmin: dict(ADMIN_CALLS),
}
CASES = [(face, name) for face, names in FACES.items() for name in names]
NOT_OF_THE_CLIENT = {"next", "anext", "NewTopic", "SecurityConfig"}


@pytest.mark.parametrize(("face", "name"), CASES)
def test_a_foreign_name_says_what_to_write(face: type, name: str) -> None:
    client = face.__new__(face)
    assert not hasattr(client, name)
    assert name not in dir(client)
    with pytest.raises(AttributeError) as raised:
        getattr(client, name)
    assert str(raised.value) == f"{face.__name__} has no {name!r}; {FACES[face][name]}"


@pytest.mark.parametrize(("face", "name"), CASES)
def test_what_is_to_be_written_is_there(face: type, name: str) -> None:
    others = Admin if "Admin's" in FACES[face][name] else face
    for call in re.findall(r"([A-Za-z_]+)\(", FACES[face][name]):
        if call not in NOT_OF_THE_CLIENT:
            assert callable(getattr(others, call)), call
    for field in re.findall(r"SecurityConfig\((\w+)=", FACES[face][name]):
        assert field in SecurityConfig.__dataclass_fields__
    if "().member_id" in FACES[face][name]:
        assert "member_id" in ConsumerGroupMetadata.__annotations__


def test_other_names_are_missing_as_ever() -> None:
    client = AsyncProducer.__new__(AsyncProducer)
    with pytest.raises(AttributeError, match="'AsyncProducer' object has no attribute 'sned'"):
        client.sned  # type: ignore[attr-defined]  # noqa: B018 - it is asked for


def test_listing_the_names_of_a_client_asks_for_none_of_them() -> None:
    class Careful(Producer):
        @property
        def careful(self) -> None:
            raise RuntimeError("asked for")

    assert "careful" in dir(Careful.__new__(Careful))
