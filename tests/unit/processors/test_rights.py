"""Goal: what an application needs follows from its topology, and a passing refusal ends nothing.

Method: topologies of each kind, and an admin client that tells what is allowed as the test says.
The whole way, with brokers, is in `test_application_rights`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest

from onceflow.processors import App, RightsMissingError, State
from onceflow.processors.calls import InPlace
from onceflow.processors.provisioning import TopicAdmin
from onceflow.processors.rights import DELETE, GROUP, READ, TOPIC, WRITE, explain, needs
from onceflow.processors.worker.purging import PURGED_S, Purge
from onceflow.sdk.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    NoBrokersAvailableError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from onceflow.sdk.model.acl_enums import AclOperation, AclResourceType
from onceflow.sdk.model.partitions import TopicPartition
from onceflow.transactions.colour import run_blocking

Allowed = frozenset[AclOperation] | None
EVERYTHING: Allowed = frozenset(AclOperation)
UNKNOWN: Allowed = None


class FakeAdmin(TopicAdmin):
    """Tells what is allowed by name; everything else is."""

    def __init__(self, by_name: Mapping[str, Allowed], error: KafkaError | None = None) -> None:
        self.by_name = by_name
        self.error = error

    def allowed(self, kind: AclResourceType, name: str) -> Allowed:
        if self.error is not None:
            raise self.error
        return self.by_name.get(name, EVERYTHING)

    def purge(self, before: Mapping[TopicPartition, int]) -> None:
        raise TopicAuthorizationFailedError("no")


def shop(**settings: object) -> App:
    app = App("shop", "localhost:1", **settings)  # type: ignore[arg-type]

    @app.processor("orders", to="bills", dead_letter="bad", key=lambda cents: cents % 7)
    def bill(cents: int, total: State[int]) -> int:
        return cents

    return app


def refused(error: KafkaError, admin: FakeAdmin) -> str | None:
    """What ends a worker after a refusal; None if nothing does."""
    app = shop()
    try:
        run_blocking(explain(error, app.topology(), app.settings, None, admin))
    except RightsMissingError as told:
        return str(told)
    return None


def test_needs_follow_from_the_topology() -> None:
    app = shop()
    topology = app.topology()
    (own,) = topology.repartition_topics
    (state,) = topology.states
    found = {need.name: need.operations for need in needs(topology, app.settings, "3")}
    assert found == {
        "orders": (READ,),
        "bills": (WRITE,),
        "bad": (WRITE,),
        own: (READ, WRITE, DELETE),
        state.changelog: (READ, WRITE),
        "shop": (READ,),
        "shop-3": (WRITE,),
    }


def test_without_transactions_no_transactional_id_is_needed() -> None:
    app = shop(processing_guarantee="at_least_once")
    found = {need.kind for need in needs(app.topology(), app.settings, "3")}
    assert found == {TOPIC, GROUP}


def test_a_refusal_that_passes_ends_nothing() -> None:
    for error in (TopicAuthorizationFailedError("x"), GroupAuthorizationFailedError("x")):
        assert refused(error, FakeAdmin({})) is None


def test_brokers_that_cannot_tell_are_doubted_where_the_error_names_the_kind() -> None:
    unknown = FakeAdmin({"shop": UNKNOWN, "shop-0": UNKNOWN, "orders": UNKNOWN})
    assert refused(TopicAuthorizationFailedError("x"), unknown) is None
    told = refused(GroupAuthorizationFailedError("x"), unknown)
    assert told is not None
    assert "READ on group shop" in told
    assert "shop-0" not in told
    told = refused(TransactionalIdAuthorizationFailedError("x"), unknown)
    assert told is not None
    assert "acls add User:NAME write --resource transactional-id --name shop- --prefixed" in told


def test_all_that_lacks_is_told_at_once() -> None:
    admin = FakeAdmin({"orders": frozenset(), "bills": frozenset({READ}), "shop": frozenset()})
    told = refused(TopicAuthorizationFailedError("x"), admin)
    assert told is not None
    for command in (
        "acls add User:NAME read --resource topic --name orders",
        "acls add User:NAME write --resource topic --name bills",
        "acls add User:NAME read --resource group --name shop",
    ):
        assert command in told


def test_brokers_that_do_not_answer_prove_nothing() -> None:
    away = FakeAdmin({}, NoBrokersAvailableError("away"))
    assert refused(TopicAuthorizationFailedError("x"), away) is None


def test_a_worker_that_may_not_purge_goes_on_and_tells_the_command(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (own,) = shop().topology().repartition_topics
    admin = FakeAdmin({own: frozenset({READ, WRITE})})
    assert refused(TopicAuthorizationFailedError("x"), admin) is None
    purge = Purge([own], 0.0)
    with caplog.at_level(logging.WARNING):
        run_blocking(purge.step(InPlace(), admin, [TopicPartition(own, 0)], lambda _: 5, PURGED_S))
    assert f"acls add User:NAME delete --resource topic --name {own}" in caplog.text
