"""What every area's tests share: their order, and servers that a run starts once when asked for.

Properties have no deadline for a single example: how long one takes depends on what else the
machine does, and a test that hangs meets pytest's limit.
"""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Iterator
from hashlib import sha256
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import postgres_server
import pytest
import real_kafka
import suite_order
from hypothesis import HealthCheck, settings

settings.register_profile("onceflow", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("onceflow")

# Most installations have no uvloop; ONCEFLOW_UVLOOP=1 runs the suite with it. Inherited by every
# process that a test starts.
os.environ.setdefault("ONCEFLOW_UVLOOP", "0")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is in a job that a shell has put into the background, and so it would be in every
    # process that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionstart() -> None:
    """Machine code of another source would be tested instead of the source that is there."""
    root, suffix = Path(__file__).parents[1], EXTENSION_SUFFIXES[0]
    if not any(root.joinpath("sdk").rglob(f"*{suffix}")):
        return
    made_of = root / f"sdk/compiled{suffix}.sources"  # written by tools/build_backend.py
    for line in made_of.read_text().splitlines() if made_of.exists() else ["? the sources"]:
        digest, name = line.split(maxsplit=1)
        source = root / name
        if not source.exists() or sha256(source.read_bytes()).hexdigest() != digest:
            pytest.exit(f"{name}: the machine code is of another one: run make setup", 1)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, and may take longer."""
    suite_order.longest_first(items)
    for item in items:
        if item.get_closest_marker("spark") and not item.get_closest_marker("timeout"):
            # The first one also starts Java; one that is cut off takes all the others with it.
            item.add_marker(pytest.mark.timeout(400))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """All of Spark goes to one worker."""
    return suite_order.scheduler(config, log)


@pytest.fixture(autouse=True, scope="module")
def published_clients_are_gone(request: pytest.FixtureRequest) -> Iterator[None]:
    """kafka-python leaves sockets to the garbage collector: not in a test that is about others."""
    yield
    if any(item.path == request.path and _is_foreign(item) for item in request.session.items):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def _is_foreign(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in ("foreign", "kafka"))


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[real_kafka.ApacheKafka]:
    """A running Apache Kafka; skipped, with the reason, only where Java or Maven is missing."""
    if reason := real_kafka.unavailable_reason():
        if os.environ.get("ONCEFLOW_REQUIRE_KAFKA"):
            pytest.fail(f"Apache Kafka is required here: {reason}")
        pytest.skip(f"Apache Kafka cannot run here: {reason}")
    folder = tmp_path_factory.mktemp("apache-kafka")
    with real_kafka.ApacheKafka(folder, settings=real_kafka.ANYBODY_MAY) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_server.PostgresServer]:
    """A running PostgreSQL; skipped, with the reason, only where its programs are missing."""
    if reason := postgres_server.unavailable_reason():
        if os.environ.get("ONCEFLOW_REQUIRE_POSTGRES"):
            pytest.fail(f"PostgreSQL is required here: {reason}")
        pytest.skip(f"PostgreSQL cannot run here: {reason}")
    with postgres_server.postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_tools() -> None:
    """Kafka's own command-line tools (``real_kafka.tool``); skipped like ``apache_kafka``."""
    if reason := real_kafka.unavailable_reason():
        if os.environ.get("ONCEFLOW_REQUIRE_KAFKA"):
            pytest.fail(f"Apache Kafka's tools are required here: {reason}")
        pytest.skip(f"Apache Kafka's tools cannot run here: {reason}")
