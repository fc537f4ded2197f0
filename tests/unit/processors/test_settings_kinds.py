"""Goal: a wrong setting is refused by name when it is written down, before anything is sent.

Method: every field of every configuration, from the SDK's to the processors', is given values of
every wrong kind; only ConfigError and DeclarationError may come, and they must name the field.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from onceflow.processors import App, DeadLetterLimits, DeclarationError, Retries, State
from onceflow.processors.settings import NOT_OF_APPS, AppSettings
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.settings.config import AdminConfig, ConsumerConfig, ProducerConfig, SecurityConfig
from onceflow.sdk.settings.declare import Settings
from onceflow.transactions import SessionConfig

ODD: list[object] = [1.5, float("nan"), 2**70, b"x", object(), {1: 2}, [3], -7]
SESSION = {"topics": ["in"], "bootstrap_servers": "h:1", "group_id": "g"}
CONFIGS: dict[type[Settings], dict[str, object]] = {
    AdminConfig: {},
    AppSettings: {},
    ConsumerConfig: {"group_id": "g"},
    DeadLetterLimits: {},
    ProducerConfig: {},
    Retries: {},
    SecurityConfig: {},
    SessionConfig: SESSION,
}
FIELDS = [(kind, name) for kind in CONFIGS for name in kind.declared]
# Anything that the client makes sense of later, with its own refusal.
OPEN = {(ConsumerConfig, "partition_assignment_strategy")}


@pytest.mark.parametrize(
    ("kind", "name"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS]
)
def test_value_of_another_kind_is_refused_by_name(kind: type[Settings], name: str) -> None:
    if (kind, name) in OPEN:
        pytest.skip("its members are looked at by the consumer, which knows the assignors")
    for odd in ODD:
        with pytest.raises(ConfigError) as caught:
            kind(**CONFIGS[kind] | {name: odd})
        assert name in str(caught.value)


@pytest.mark.parametrize("owner", ["consumer_settings", "producer_settings"])
def test_settings_handed_on_to_clients_are_checked_at_once(owner: str) -> None:
    """Not when the session starts: its first step fences the predecessor."""
    with pytest.raises(ConfigError, match="lingerms"):
        SessionConfig(**SESSION | {owner: {"lingerms": 5}})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="request_timeout_ms"):
        App("a", **{owner: {"request_timeout_ms": "5 s"}})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NOT_OF_APPS)
def test_settings_that_an_application_makes_itself_are_refused(name: str) -> None:
    """Else the handler would be given what it does not declare, or workers would share an id."""
    of_producers = name in ProducerConfig.declared
    owner = "producer_settings" if of_producers else "consumer_settings"
    value = "id" if name.endswith("_id") else lambda data: data
    ways: list[dict[str, object]] = [{name: value}, {owner: {name: value}}]
    for settings in ways:
        with pytest.raises(ConfigError, match=f"{name}=.*leave it out"):
            App("a", "h:1", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "x" * 101, None, 5, b"a"])
def test_application_name_that_is_no_directory_is_refused(name: object) -> None:
    with pytest.raises(DeclarationError, match="application name"):
        App(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("parameter", ["topic", "to", "dead_letter"])
@pytest.mark.parametrize("topic", ["", "not a name!", "x" * 250, 5, b"in", [["in"]], "."])
def test_topic_that_is_none_is_refused_at_the_declaration(parameter: str, topic: object) -> None:
    with pytest.raises(
        DeclarationError, match=rf"{parameter}=.*(not a valid topic name|must be a topic)"
    ):
        declare(lambda value: value, **{parameter: topic})


@pytest.mark.parametrize(
    "options",
    [
        {"on_error": "ignore"},
        {"format": "xml"},
        {"store": "rocksdb"},
        {"limits": 5},
        {"dead_letter": "in"},
        {"name": ""},
        {"name": 5},
    ],
    ids=str,
)
def test_contradiction_is_refused_at_the_declaration(options: dict[str, object]) -> None:
    with pytest.raises(DeclarationError):
        declare(lambda value: value, **options)


def test_state_needs_names_that_topics_can_have() -> None:
    app = App("a" * 100)

    def keep(value: bytes, seen: State[int]) -> None: ...

    for name in ("grün", "a/b", ".."):
        with pytest.raises(DeclarationError, match="becomes part of topic names"):
            app.processor("in", name=name)(keep)

    def long(value: bytes, n234567890123456789012345678901234567890: State[int]) -> None: ...

    with pytest.raises(DeclarationError, match="more than 249 characters"):
        app.processor("in", name="b" * 100)(long)


def declare(function: Callable[..., object], **options: object) -> None:
    def handle(value: bytes) -> object:
        return function(value)

    App("a").processor(**({"topic": "in"} | options))(handle)  # type: ignore[arg-type]


def test_security_is_for_every_client_of_an_application() -> None:
    """An application makes an admin client and a reader of changelogs too."""
    secret = SecurityConfig(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-256",
        sasl_username="u",
        sasl_password="p",
    )
    sections = {
        "consumer_settings": {"security": secret},
        "producer_settings": {"security": secret},
    }
    with pytest.raises(ConfigError, match=r"security.*producer and consumer alone.*to the App"):
        App("a", **sections)  # type: ignore[arg-type]
    settings = App("a", security=secret).settings
    session = settings.session_config("a", ["in"], "0")
    for config in (
        settings.admin_config(),
        settings.restoring_config(),
        session.consumer,
        session.producer,
    ):
        assert config.security == secret


def test_a_relative_state_directory_stays_where_it_was_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    app, named = App("a"), App("a", state_dir="states")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert app.settings.state_dir == tmp_path / ".onceflow"
    named.configure(slot="s")
    assert named.settings.state_dir == tmp_path / "states"
    named.configure(state_dir=Path("here"))
    assert named.settings.state_dir == tmp_path / "elsewhere" / "here"
