"""Goal: the blocking and the asyncio face of each client have the same names and arguments.

Method: their public methods are compared one by one; what only one of them can have is listed here.
"""

from __future__ import annotations

import inspect

import pytest

from onceflow import sdk, transactions

ONLY_ASYNC = {
    "Producer": {"start", "stop", "send_and_wait"},  # aiokafka's names; a Producer starts at once
    "Consumer": {"start", "stop", "engine"},
    "Admin": {"start", "stop"},
    "TransactionSession": {"start"},  # the other one starts at once
}
ONLY_BLOCKING = {
    "Delivery": {"result"},  # there it is awaited
    "Deliveries": {"result"},
}


def public(face: type) -> set[str]:
    return {name for name in dir(face) if not name.startswith("_") and hasattr(face, name)}


def both(name: str) -> tuple[type, type]:
    module = transactions if hasattr(transactions, name) else sdk
    return getattr(module, name), getattr(module, f"Async{name}")


def arguments(face: type, name: str) -> list[tuple[str, object, object]] | None:
    member = getattr(face, name)
    if not callable(member):
        return None
    signature = inspect.signature(member)
    return [(p.name, p.kind, p.default) for p in signature.parameters.values()]


@pytest.mark.parametrize(
    "name",
    [
        "Producer",
        "Consumer",
        "Admin",
        "Transaction",
        "Delivery",
        "Deliveries",
        "TransactionSession",
    ],
)
def test_both_faces_are_called_alike(name: str) -> None:
    blocking, asynchronous = both(name)
    shared = public(blocking) & public(asynchronous)
    assert public(blocking) - shared == ONLY_BLOCKING.get(name, set())
    assert public(asynchronous) - shared == ONLY_ASYNC.get(name, set())
    differing = [m for m in shared if arguments(blocking, m) != arguments(asynchronous, m)]
    assert differing == []


@pytest.mark.parametrize("name", ["Producer", "Consumer", "Admin", "TransactionSession"])
def test_both_faces_are_made_alike(name: str) -> None:
    blocking, asynchronous = (arguments(face, "__init__") for face in both(name))
    assert blocking == asynchronous
