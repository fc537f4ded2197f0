"""Goal: the registry's client asks what it should, remembers what it may, and explains refusals.

Method: a served fake of the registry's HTTP interface that counts requests and fails on order.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from schema_registry_fake import FakeRegistry

from onceflow.sdk.errors import (
    ConfigError,
    IncompatibleSchemaError,
    SchemaIdNotFoundError,
    SchemaNotFoundError,
    SchemaRegistryError,
    SchemaRegistryUnavailableError,
)
from onceflow.sdk.schema_registry import (
    AsyncSchemaRegistry,
    Schema,
    SchemaReference,
    SchemaRegistry,
    SchemaRegistryConfig,
)
from onceflow.sdk.schema_registry.cache import BoundedCache, SingleFlight

LONG = Schema('"long"')
TEXT = Schema('"string"')
ORDER = Schema('{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}')
WIDER = Schema(ORDER.text.replace("]}", ', {"name": "note", "type": "string"}]}'))


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with FakeRegistry() as registry:
        yield registry


def client(fake: FakeRegistry) -> SchemaRegistry:
    return SchemaRegistry(fake.url, retries_wait_ms=1)


def test_a_schema_is_registered_once_and_read_by_its_id(fake: FakeRegistry) -> None:
    registry = client(fake)
    schema_id = registry.register("a/b c-value", ORDER)
    assert registry.register("a/b c-value", ORDER) == schema_id
    assert registry.schema(schema_id) == registry.schema(schema_id) == ORDER
    assert fake.requests == [
        ("POST", "/subjects/a%2Fb%20c-value/versions"),
        ("GET", f"/schemas/ids/{schema_id}"),
    ]


def test_each_form_of_a_schema_is_remembered_for_itself(fake: FakeRegistry) -> None:
    registry = client(fake)
    schema_id = registry.register("s", ORDER)
    for _ in range(2):
        registry.schema(schema_id, serialized=True)
        registry.schema(schema_id)
    path = f"/schemas/ids/{schema_id}"
    asked = [target for method, target in fake.requests if method == "GET"]
    assert asked == [f"{path}?format=serialized", path]


def test_versions_subjects_and_deletion(fake: FakeRegistry) -> None:
    registry = client(fake)
    registry.set_compatibility("NONE")
    first, second = registry.register("s", LONG), registry.register("s", TEXT)
    assert registry.subjects() == ["s"]
    assert registry.versions("s") == [1, 2]
    assert registry.version("s", 1).schema_id == first
    assert registry.latest("s").schema_id == second
    assert registry.lookup("s", TEXT).version == 2
    assert registry.delete_subject("s") == [1, 2]
    with pytest.raises(SchemaNotFoundError, match=r"'s'.*40401"):
        registry.latest("s")
    with pytest.raises(SchemaNotFoundError):
        registry.lookup("s", TEXT)


def test_a_newer_version_of_our_own_is_seen_at_once(fake: FakeRegistry) -> None:
    registry = client(fake)
    registry.set_compatibility("NONE", "s")
    registry.register("s", LONG)
    assert registry.latest("s").schema == LONG
    registry.register("s", TEXT)
    assert registry.latest("s").schema == TEXT


def test_references_and_types_travel(fake: FakeRegistry) -> None:
    registry = client(fake)
    schema = Schema('{"title": "x"}', "JSON", (SchemaReference("y", "other", 3),))
    assert registry.schema(registry.register("s", schema)) == schema


def test_an_incompatible_schema_names_subject_and_remedy(fake: FakeRegistry) -> None:
    registry = client(fake)
    registry.register("orders-value", ORDER)
    assert registry.is_compatible("orders-value", ORDER)
    assert not registry.is_compatible("orders-value", WIDER)
    with pytest.raises(IncompatibleSchemaError, match=r"'orders-value'.*409.*note.*level") as found:
        registry.register("orders-value", WIDER)
    assert (found.value.status, found.value.code) == (409, 409)
    again = pickle.loads(pickle.dumps(found.value))
    assert (str(again), again.status) == (str(found.value), 409)
    assert registry.compatibility() == "BACKWARD"
    with pytest.raises(SchemaNotFoundError):
        registry.compatibility("orders-value")


def test_an_unknown_id_is_asked_for_once_in_a_while(fake: FakeRegistry) -> None:
    registry = SchemaRegistry(fake.url, missing_id_cache_ttl_ms=600_000)
    for _ in range(3):
        with pytest.raises(SchemaIdNotFoundError, match="id 1") as found:
            registry.schema(1)
        assert found.value.retriable
    assert len(fake.requests) == 1
    impatient = SchemaRegistry(fake.url, missing_id_cache_ttl_ms=1)
    with pytest.raises(SchemaIdNotFoundError):
        impatient.schema(1)
    client(fake).register("s", ORDER)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(SchemaIdNotFoundError):
            assert impatient.schema(1) == ORDER
            break
    else:
        pytest.fail("the id is never asked for again")


def test_what_passes_is_tried_again_and_what_does_not_is_not(fake: FakeRegistry) -> None:
    registry = client(fake)
    fake.faults.extend([503, 500, 429])
    assert registry.register("s", LONG) == 1
    assert len(fake.requests) == 4
    fake.faults.append(422)
    with pytest.raises(SchemaRegistryError, match="422"):
        registry.register("s", TEXT)
    assert len(fake.requests) == 5
    fake.faults.extend([503] * 4)
    with pytest.raises(SchemaRegistryUnavailableError, match="503") as found:
        registry.register("s", TEXT)
    assert found.value.retriable


def test_another_address_is_asked_when_one_is_gone(fake: FakeRegistry) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    registry = SchemaRegistry([f"http://127.0.0.1:{port}", fake.url], max_retries=0)
    assert registry.register("s", LONG) == 1
    alone = SchemaRegistry(f"http://user:hidden@127.0.0.1:{port}", max_retries=0)
    with pytest.raises(SchemaRegistryUnavailableError, match=f"127.0.0.1:{port}") as found:
        alone.subjects()
    assert "hidden" not in str(found.value)
    assert "hidden" not in repr(alone)


@pytest.mark.parametrize(
    "answer",
    [
        b"<html>", b"[]", b'{"id": "1"}', b'{"id": true}', b"[" * 100_000, b"\xff",
        b'{"id": 0}', b'{"id": -1}', b'{"id": 2147483648}', b'{"id": 1e3}',
    ],
)  # fmt: skip
def test_answers_that_no_registry_gives_are_refused(fake: FakeRegistry, answer: bytes) -> None:
    fake.faults.append(answer)
    with pytest.raises(SchemaRegistryError, match="subject 's'"):
        client(fake).register("s", LONG)


@pytest.mark.parametrize(
    "answer",
    [
        b'{"schema": 5}',
        b'{"schema": "x", "schemaType": "XML"}',
        b'{"schema": "x", "references": 5}',
        b'{"schema": "x", "references": [5]}',
        b'{"schema": "x", "references": {"a": 1}}',
        b'{"schema": "x", "references": [{"name": "a", "subject": "b", "version": "c"}]}',
    ],
)
def test_schemas_that_cannot_be_are_refused(fake: FakeRegistry, answer: bytes) -> None:
    fake.faults.append(answer)
    with pytest.raises(SchemaRegistryError, match="id 1"):
        client(fake).schema(1)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(fake: FakeRegistry, status: int) -> None:
    """It would take the credentials along."""
    registry = SchemaRegistry(fake.url, basic_auth_user_info="me:secret")
    fake.faults.append(f"redirect {status} http://elsewhere:hidden@example.invalid/x")
    with pytest.raises(
        SchemaRegistryError, match=r"redirects to http://example\.invalid/x"
    ) as found:
        registry.subjects()
    assert "hidden" not in str(found.value)
    assert len(fake.requests) == 1


def test_an_answer_may_not_be_larger_than_allowed(fake: FakeRegistry) -> None:
    registry = SchemaRegistry(fake.url, max_response_bytes=1_000, max_retries=0)
    fake.faults.append(b'"' + b"x" * 5_000 + b'"')
    with pytest.raises(SchemaRegistryUnavailableError, match="1000 bytes"):
        registry.subjects()


@pytest.mark.parametrize("how", ["hang", "drip status", "drip headers", "drip body"])
def test_a_registry_that_hangs_or_drips_costs_the_limit_only(fake: FakeRegistry, how: str) -> None:
    registry = SchemaRegistry(fake.url, timeout_ms=50, max_retries=0)
    fake.faults.append(how)
    with pytest.raises(SchemaRegistryUnavailableError, match="TimeoutError"):
        registry.subjects()


def test_the_limit_holds_with_tls_too(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with FakeRegistry(context) as fake:
        registry = SchemaRegistry(
            fake.url, timeout_ms=500, max_retries=0, ssl_cafile=str(certificate)
        )
        for how in ("drip status", "drip body"):
            fake.faults.append(how)
            with pytest.raises(SchemaRegistryUnavailableError, match="TimeoutError"):
                registry.subjects()


@pytest.mark.parametrize("credentials", ["user:pass:word", "Bearer token"])
def test_credentials_are_sent_and_never_shown(credentials: str) -> None:
    with FakeRegistry(credentials=credentials) as fake:
        if credentials.startswith("Bearer"):
            good = SchemaRegistry(fake.url, bearer_auth_token=lambda: "token")
            assert SchemaRegistry(fake.url, bearer_auth_token="token").subjects() == []
        else:
            good = SchemaRegistry(fake.url, basic_auth_user_info=credentials)
            embedded = fake.url.replace("://", "://user:pass%3Aword@")
            assert SchemaRegistry(embedded).subjects() == []
        assert good.subjects() == []
        assert "word" not in repr(good) + repr(good.config)
        wrong = SchemaRegistry(fake.url, basic_auth_user_info="user:secret")
        with pytest.raises(SchemaRegistryError, match="basic_auth_user_info") as found:
            wrong.subjects()
        assert "secret" not in str(found.value)


def hunter2() -> str:
    raise RuntimeError("hunter2")


@pytest.mark.parametrize(
    ("token", "kind"),
    [
        (hunter2, SchemaRegistryUnavailableError),
        (lambda: "hunter2\r\nX: y", ConfigError),
        (lambda: None, ConfigError),
        ("hunter2\n", ConfigError),
    ],
)
def test_a_token_that_cannot_be_had_or_sent_is_not_shown(
    fake: FakeRegistry, token: Any, kind: type[Exception]
) -> None:
    registry = SchemaRegistry(fake.url, bearer_auth_token=token, max_retries=0)
    with pytest.raises(kind, match="bearer_auth_token") as found:
        registry.subjects()
    assert "hunter2" not in str(found.value)
    assert fake.requests == []


def test_tls_checks_the_registry(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with FakeRegistry(context) as fake:
        assert SchemaRegistry(fake.url, ssl_cafile=str(certificate)).subjects() == []
        with pytest.raises(SchemaRegistryUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            SchemaRegistry(fake.url, max_retries=0).subjects()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost that signs itself."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"url": ""}, "url"),
        ({"url": "localhost:8081"}, "url"),
        ({"url": "http://h:99999"}, "url"),
        ({"basic_auth_user_info": "user"}, "basic_auth_user_info"),
        ({"basic_auth_user_info": "a:b", "bearer_auth_token": "t"}, "bearer_auth_token"),
        ({"ssl_cafile": "x"}, "url"),
        ({"url": "https://h", "ssl_keyfile": "x"}, "ssl_keyfile"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"cache_capacity": "many"}, "cache_capacity"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as found:
        SchemaRegistryConfig(**settings)  # type: ignore[arg-type]
    assert found.value.field == field
    with pytest.raises(ConfigError, match="did you mean timeout_ms"):
        SchemaRegistry("http://h", timeout=3)  # type: ignore[call-arg]
    for setting in ("ssl_cafile", "ssl_certfile"):
        with pytest.raises(ConfigError, match=r"/nowhere.*cannot load") as found:
            SchemaRegistry("https://h", **{setting: "/nowhere"})  # type: ignore[arg-type]
        assert found.value.field == setting


def test_caches_stay_within_their_capacity(fake: FakeRegistry) -> None:
    registry = SchemaRegistry(fake.url, cache_capacity=3)
    schemas = [Schema(f'{{"type": "fixed", "name": "F{i}", "size": {i + 1}}}') for i in range(9)]
    for i, schema in enumerate(schemas):
        registry.register(f"s{i}", schema)
    asked = len(fake.requests)
    registry.register("s8", schemas[8])
    assert len(fake.requests) == asked
    registry.register("s0", schemas[0])
    assert len(fake.requests) == asked + 1
    assert len(registry._ids) == 3


def test_entries_grow_old_and_the_least_used_goes_first() -> None:
    now = 0.0
    cache: BoundedCache[int] = BoundedCache(2, 1_000, lambda: now)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("b"), cache.get("a"), cache.get("c")) == (None, 1, 3)
    now = 1.1
    assert (cache.get("a"), len(cache)) == (None, 0)
    cache.put("d", 4)
    cache.put("e", 5)
    cache.forget(lambda key: key == "d")
    assert (cache.get("d"), cache.get("e")) == (None, 5)


def test_threads_that_want_the_same_share_one_request() -> None:
    flights, begun, go = SingleFlight(), threading.Event(), threading.Event()
    calls = []

    def work() -> int:
        calls.append(1)
        begun.set()
        assert go.wait(30)
        raise ValueError("for all of them")

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(flights.run, "key", work)
        assert begun.wait(30)
        others = [pool.submit(flights.run, "key", work) for _ in range(3)]
        other = pool.submit(flights.run, "another", lambda: 5)
        go.set()
        assert all(isinstance(f.exception(10), ValueError) for f in (first, *others))
        assert other.result(20) == 5
    assert flights.run("key", lambda: 6) == 6


async def test_the_asyncio_client_does_not_hold_up_the_loop(fake: FakeRegistry) -> None:
    async with AsyncSchemaRegistry(fake.url, timeout_ms=60_000) as registry:
        fake.faults.append("hang")
        waiting = asyncio.create_task(registry.subjects())
        while not fake.requests:  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0)
        assert await registry.register("s", LONG) == 1
        assert (await registry.schema(1)).text == LONG.text
        assert (await registry.latest("s")).version == 1
        assert (await registry.version("s", 1)).schema_id == 1
        assert (await registry.lookup("s", LONG)).schema_id == 1
        assert await registry.versions("s") == [1]
        assert await registry.is_compatible("s", LONG)
        await registry.set_compatibility("FULL", "s")
        assert await registry.compatibility("s") == "FULL"
        assert await registry.delete_subject("s", permanent=True) == [1]
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(SchemaNotFoundError):
            await registry.schema(99)
