"""Settings of the clients behind the Spark source and sink: options ``kafka.*``, and a file.

Every property of the SDK's clients is an option with ``kafka.`` before it. What a value means is
checked by the clients' own configurations; here is which names Spark's options have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar

from onceflow.sdk import ClientSettings, ConsumerConfig, ProducerConfig, SecurityConfig
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.settings.declare import Settings, plain, text
from onceflow.sdk.settings.names import reject_unknown
from onceflow.sdk.settings.sources import ClientSource

PREFIX: Final = "kafka."
_SPARK_OWN: Final = frozenset({"path", "paths", "outputmode", "numpartitions", "queryname"})

S = TypeVar("S", bound="SparkSettings")


class SparkSettings(Settings, in_kafka=False):
    """Options of both the source and the sink."""

    client: str | None = text(
        None,
        "File with settings of all clients, `*.toml` or Java's properties, read on the driver; "
        "options `kafka.*` win over it.",
    )


def read_options(kind: type[S], options: Mapping[str, str]) -> S:
    """Check Spark's own options; those that begin with ``kafka.`` are left to ``client_of``.

    Args:
        kind: What has the options.
        options: Values by name; Spark folds names to lower case.

    Raises:
        ConfigError: An option does not exist (the nearest one is named), or has a wrong value.
    """
    spelled = {setting.name.lower(): name for name, setting in kind.declared.items()}
    values = {}
    for option, value in options.items():
        folded = option.lower()
        if folded in _SPARK_OWN or folded.startswith(PREFIX):
            continue
        if folded not in spelled:
            known = (setting.name for setting in kind.declared.values())
            reject_unknown(kind.kind, known, [option])
        values[spelled[folded]] = kind.declared[spelled[folded]].read(value)
    return kind.build(values)


def client_of(
    options: Mapping[str, str],
    client: ClientSource | None = None,
    refused: Mapping[str, str] | None = None,
) -> ClientSettings:
    """Settings of the clients.

    Args:
        options: Spark's options; others than ``client`` and ``kafka.*`` are ignored.
        client: Settings that the options override.
        refused: What to do instead of giving a property that Spark's adapter decides.

    Raises:
        ConfigError: One is missing, does not exist, or has a value that cannot work.
    """
    folded = {name.lower(): value for name, value in options.items()}
    given = {n.removeprefix(PREFIX): v for n, v in folded.items() if n.startswith(PREFIX)}
    for name in given:
        if refused is not None and name in refused:
            raise ConfigError(PREFIX + name, "...", refused[name])
    found = ClientSettings.of(client)
    if "client" in folded:
        found = found.merged(ClientSettings.of(folded["client"]))
    with named_as_options(options):
        found = found.merged(ClientSettings.of(given))
        servers = found.values("admin").get("bootstrap_servers", "")
    if not servers or (isinstance(servers, str) and not servers.strip()):
        raise ConfigError("kafka.bootstrap.servers", "", "give the brokers as host:port,host:port")
    return found


@contextmanager
def named_as_options(options: Mapping[str, str]) -> Iterator[None]:
    """Raise errors of clients' settings under the names of the options that gave them.

    Args:
        options: Spark's options.

    Raises:
        ConfigError: As within.
    """
    try:
        yield
    except ConfigError as error:
        kinds: list[type[Settings]] = [ProducerConfig, ConsumerConfig, SecurityConfig]
        setting = next((k.declared[error.field] for k in kinds if error.field in k.declared), None)
        name = PREFIX + (error.field if setting is None else setting.kafka or error.field)
        given = {plain(option): option for option in options}.get(plain(name))
        problem = ConfigError(given or error.field, error.value, error.remedy)
    else:
        return
    raise problem  # outside of the other one, which says the same
