"""Goal: applications and sessions work on a cluster that asks for TLS, SASL and permissions.

Method: a broker that takes SCRAM over TLS only and decides by ACLs. One properties file, as a
hosting service hands it out, is all that the programs are told; an application makes its topics,
keeps state, loses its disk and restores it from the changelog. Without a permission, or with
another password, the error says so.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processor_processes import Workers, wait_for, workers_in
from secured_broker import Grant, as_file, as_root, grant, properties, secured_broker
from tls_world import TlsWorld

from onceflow.broker_lite import Broker
from onceflow.processors import App, State
from onceflow.sdk import (
    Admin,
    ClientSettings,
    Consumer,
    NewTopic,
    Producer,
    TopicPartition,
)
from onceflow.sdk.errors import (
    KafkaError,
    SaslAuthenticationFailedError,
    TransactionalIdAuthorizationFailedError,
)
from onceflow.transactions import SessionConfig, TransactionSession

GRANTED: list[Grant] = [
    ("TOPIC", "words", "LITERAL", ("READ",)),
    ("TOPIC", "counts", "LITERAL", ("WRITE", "CREATE", "DESCRIBE")),
    ("TOPIC", "counting-", "PREFIXED", ("READ", "WRITE", "CREATE", "DESCRIBE_CONFIGS")),
    ("GROUP", "counting", "LITERAL", ("READ",)),
    ("TRANSACTIONAL_ID", "counting-", "PREFIXED", ("WRITE", "DESCRIBE")),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> TlsWorld:
    made = TlsWorld(tmp_path_factory.mktemp("tls"))
    made.issue("broker")
    return made


@pytest.fixture
def broker(world: TlsWorld) -> Iterator[Broker]:
    with secured_broker(world) as running:
        yield running


@pytest.fixture
def root(broker: Broker, world: TlsWorld) -> ClientSettings:
    """Settings of a user who may do everything; the topic and the permissions are there."""
    client = as_root(broker, world)
    with Admin(config=client.admin()) as admin:
        admin.create_topics([NewTopic("words", partitions=2)])
    grant(client, GRANTED)
    return client


@pytest.fixture
def config_file(broker: Broker, world: TlsWorld, root: ClientSettings, tmp_path: Path) -> Path:
    return as_file(broker, world, tmp_path / "client.properties")


def counting(client: object, state_dir: Path) -> App:
    app = App("counting", client=client, state_dir=state_dir)  # type: ignore[arg-type]

    @app.processor("words", to="counts")
    def count(word: str, seen: State[int]) -> str:
        seen.set(seen.get(0) + 1)
        return f"{word} {seen.get(0)}"

    return app


def run_until(app: App, done: Callable[[], bool]) -> None:
    """Run an application until a condition holds; what it raises is raised."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            app.run()
        except Exception as error:  # noqa: BLE001 - raised where the result is looked at
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        wait_for(lambda: bool(raised) or done(), "the application has done its work")
    finally:
        app.stop()
        thread.join(30)
    assert not thread.is_alive()
    if raised:
        raise raised[0]


def send(root: ClientSettings, *words: str) -> None:
    with Producer(config=root.producer()) as producer:
        for word in words:
            producer.send("words", word, key=word)


def counts(root: ClientSettings) -> list[str]:
    """Committed outputs, sorted."""
    with Consumer(config=root.reader(auto_offset_reset="earliest")) as consumer:
        try:
            partitions = consumer.partitions_for_topic("counts") or ()
        except KafkaError:
            return []
        here = [TopicPartition("counts", each) for each in partitions]
        if not here:
            return []
        consumer.assign(here)
        ends = consumer.end_offsets(here)
        found: list[str] = []
        while any(consumer.position(each) < ends[each] for each in here):
            for batch in consumer.poll(timeout_ms=1_000).values():
                found += [(record.value or b"").decode() for record in batch]
        return sorted(found)


def test_an_application_makes_topics_keeps_state_and_restores_it(
    root: ClientSettings, config_file: Path, tmp_path: Path
) -> None:
    send(root, "a", "b", "a")
    run_until(counting(config_file, tmp_path / "one"), lambda: len(counts(root)) == 3)
    assert counts(root) == ["a 1", "a 2", "b 1"]
    send(root, "a", "b")
    # Another disk: the state comes from the changelog.
    run_until(counting(config_file, tmp_path / "two"), lambda: len(counts(root)) == 5)
    assert counts(root) == ["a 1", "a 2", "a 3", "b 1", "b 2"]


@pytest.mark.parametrize("form", ["mapping", "object", "keywords"])
def test_every_form_of_settings_serves_an_application(
    form: str, broker: Broker, world: TlsWorld, root: ClientSettings, tmp_path: Path
) -> None:
    given = properties(broker, world, "app", "hunter2")
    settings = ClientSettings.of(given)
    app = counting(settings if form == "object" else given, tmp_path)
    if form == "keywords":
        app = counting(None, tmp_path)
        values = settings.values("client")
        app.configure(bootstrap_servers=values["bootstrap_servers"], security=values["security"])
    send(root, "a")
    run_until(app, lambda: counts(root) == ["a 1"])


def test_the_command_takes_the_file(
    root: ClientSettings, config_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counting.py").write_text(
        "from onceflow.processors import App\n"
        "app = App('counting', 'nowhere.invalid:1')\n"
        "@app.processor('words', to='counts')\n"
        "def shout(word: str) -> str:\n"
        "    return word.upper()\n"
    )
    monkeypatch.chdir(tmp_path)
    program = (
        "import sys; from onceflow.cli import main; "
        "main(['run', 'counting:app', '--config', sys.argv[1], '--state-dir', 'state'])"
    )
    with workers_in(tmp_path) as workers:
        worker = Workers.start(workers, program, str(config_file))
        send(root, "a")
        wait_for(lambda: counts(root) == ["A"], "the record is processed")
        assert worker.stop() == 0
        assert "127.0.0.1" in worker.output()
        assert "hunter2" not in worker.output()


def test_a_wrong_password_ends_an_application_with_its_reason(
    broker: Broker, world: TlsWorld, root: ClientSettings, tmp_path: Path
) -> None:
    app = counting(properties(broker, world, "app", "wrong"), tmp_path)
    with pytest.raises(SaslAuthenticationFailedError):
        run_until(app, lambda: False)


def test_a_session_takes_the_same_file(root: ClientSettings, config_file: Path) -> None:
    send(root, "a")
    with Admin(config=root.admin()) as admin:
        admin.create_topics([NewTopic("counts", partitions=1)])
    with TransactionSession(
        client=config_file,
        topics=["words"],
        group_id="counting",
        transactional_id="counting-by-hand",
        linger_ms=0,
    ) as session:
        assert session.config.producer.linger_ms == 0
        found: list[object] = []
        while not found:
            for batch in session.poll(1_000).values():
                found += [record.value for record in batch]
                for record in batch:
                    session.send("counts", record.value, key=record.key)
        assert session.commit()
    assert counts(root) == ["a"]


def test_a_session_without_a_permission_says_so(root: ClientSettings, config_file: Path) -> None:
    config = SessionConfig(client=config_file, topics=["words"], group_id="counting", slot="x")
    strange = config.replace(transactional_id="another-1")
    with pytest.raises(TransactionalIdAuthorizationFailedError):
        TransactionSession(strange)
