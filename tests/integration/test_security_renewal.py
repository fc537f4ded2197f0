"""Goal: a certificate that is renewed is shown without a restart, and nobody is cut off meanwhile.

Method: the keystore's file is replaced while clients are connected and the broker's clock moves on
to its next look; raw TLS connections tell which certificate they were shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from broker_wire import DEADLINE_SECONDS, until
from tls_world import PASSWORD, Identity, TlsWorld

from onceflow.broker_lite import Broker
from onceflow.broker_lite.net.server import TLS_FILES_PAUSE_MS
from onceflow.sdk import AsyncProducer, SecurityConfig


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    return TlsWorld(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=["PEM", "PKCS12"])
async def served(
    request: pytest.FixtureRequest, world: TlsWorld, tmp_path: Path
) -> AsyncIterator[tuple[Broker, Path, str]]:
    """A broker, the file of its keystore, and what its identities' files of that form end with."""
    ending = {"PEM": "both.pem", "PKCS12": "p12"}[request.param]
    world.issue("first")
    keystore = tmp_path / "keystore"
    shutil.copy(world.folder / f"first.{ending}", keystore)
    settings = {"ssl.keystore.location": str(keystore), "ssl.keystore.type": request.param}
    if request.param == "PKCS12":
        settings["ssl.keystore.password"] = PASSWORD
    async with Broker(listeners="SSL://127.0.0.1:0", settings=settings) as broker:
        yield broker, keystore, ending


async def shown(broker: Broker, world: TlsWorld) -> bytes | None:
    """The certificate that a new connection is shown."""
    host, _, port = broker.bootstrap_servers_of("SSL").rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=world.client_context())
    certificate: bytes | None = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return certificate


def replace(keystore: Path, source: Path) -> None:
    """As tools that renew certificates do: a new file takes the place of the old one."""
    beside = keystore.with_name("new")
    shutil.copy(source, beside)
    beside.replace(keystore)


async def renewed(broker: Broker, world: TlsWorld, identity: Identity) -> None:
    broker.advance(TLS_FILES_PAUSE_MS)
    async with asyncio.timeout(DEADLINE_SECONDS):
        while await shown(broker, world) != identity.der:
            pass


async def test_a_renewed_certificate_is_shown_to_new_connections(
    served: tuple[Broker, Path, str], world: TlsWorld
) -> None:
    broker, keystore, ending = served
    security = SecurityConfig(security_protocol="SSL", ssl_cafile=str(world.authority))
    servers = broker.bootstrap_servers_of("SSL")
    async with AsyncProducer(bootstrap_servers=servers, security=security) as producer:
        await (await producer.send("t", b"0"))
        for label in ("second", "third"):
            identity = world.issue(label)
            replace(keystore, world.folder / f"{label}.{ending}")
            await renewed(broker, world, identity)
            await (await producer.send("t", b"1"))  # On the connection that it has.


async def test_a_relative_location_is_found_again(
    world: TlsWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(world.issue("first").both, tmp_path / "keystore")
    monkeypatch.chdir(tmp_path)
    settings = {"ssl.keystore.location": "keystore"}
    async with Broker(listeners="SSL://127.0.0.1:0", settings=settings) as broker:
        monkeypatch.chdir("/")
        identity = world.issue("second")
        replace(tmp_path / "keystore", identity.both)
        await renewed(broker, world, identity)


async def test_a_file_that_cannot_be_used_is_told_and_the_certificate_stays(
    served: tuple[Broker, Path, str], world: TlsWorld, caplog: pytest.LogCaptureFixture
) -> None:
    broker, keystore, ending = served
    before = await shown(broker, world)
    caplog.set_level(logging.WARNING, "onceflow.broker_lite.security")
    for damage in (lambda: keystore.write_bytes(b"half a fi"), keystore.unlink):
        caplog.clear()
        damage()
        broker.advance(TLS_FILES_PAUSE_MS)
        await until(lambda: "keeps its present certificate" in caplog.text)
        assert "ssl.keystore.location" in caplog.text
        assert await shown(broker, world) == before
    identity = world.issue("repaired")
    replace(keystore, world.folder / f"repaired.{ending}")
    await renewed(broker, world, identity)
