"""Writes the keyword arguments of clients, registries, sessions and apps as types for checkers.

``python tools/settings_keywords.py`` writes a ``keywords.py`` beside the declarations that it is
made of; ``--check`` only tells whether one is out of date.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from onceflow.processors.settings import AppSettings
from onceflow.sdk.schema_registry.config import SchemaRegistryConfig
from onceflow.sdk.settings.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig
from onceflow.sdk.settings.declare import Settings
from onceflow.transactions.config import SessionConfig, SessionSettings

ROOT = Path(__file__).resolve().parents[1]
HEAD = '''"""Keyword arguments as types. Written by ``tools/settings_keywords.py``; do not edit."""

from __future__ import annotations

from typing import TypedDict
'''


HANDED_ON = {
    "client": "ClientSource",
    "consumer_settings": "Mapping[str, object]",
    "producer_settings": "Mapping[str, object]",
}
BASES = {
    **dict.fromkeys(
        (
            *("CommonOwn", "CommonKeywords", "ClientKeywords"),
            *("ProducerOwn", "ConsumerRest", "ConsumerOwn", "AdminOwn"),
        ),
        "onceflow.sdk.settings.keywords",
    ),
    "SessionOwn": "onceflow.transactions.keywords",
    "SessionRest": "onceflow.transactions.keywords",
    "ClientSource": "onceflow.sdk.settings.sources",
}


class Keywords(NamedTuple):
    """One ``TypedDict``.

    Attributes:
        name: Its name.
        settings: Whose declared settings are keywords.
        bases: Names of those that it extends.
        without: Settings that the bases have, or that are no keywords.
        further: Types of other keywords by name.
    """

    name: str
    settings: type[Settings]
    bases: tuple[str, ...] = ()
    without: frozenset[str] = frozenset()
    further: Mapping[str, str] = {}


def client_keywords(settings: type[ClientConfig]) -> list[Keywords]:
    """Those of a client: its own ones, and with all that its constructor takes."""
    name = settings.__name__.removesuffix("Config")
    common = frozenset({*ClientConfig.declared, "interceptors"})
    objects = {"config": f"{name}Config | Mapping[str, object]"}
    if "interceptors" in settings.declared:
        objects["interceptors"] = types_of(settings)["interceptors"]
    return [
        Keywords(f"{name}Own", settings, (), common),
        Keywords(
            f"{name}Keywords",
            settings,
            ("CommonKeywords", f"{name}Own"),
            frozenset(settings.declared),
            objects,
        ),
    ]


def consumer_keywords() -> list[Keywords]:
    """Those of a consumer; its constructor names the deserializers apart, for their types."""
    own, all_of_it = client_keywords(ConsumerConfig)
    typing_ones = frozenset(n for n in ConsumerConfig.declared if n.endswith("_deserializer"))
    rest = own._replace(name="ConsumerRest", without=own.without | typing_ones)
    reader = all_of_it._replace(
        name="ReaderKeywords",
        bases=("CommonKeywords", "ConsumerRest"),
        further={"interceptors": all_of_it.further["interceptors"]},
    )
    own = own._replace(
        bases=("ConsumerRest",), without=frozenset(ConsumerConfig.declared) - typing_ones
    )
    return [rest, own, reader, all_of_it]


def types_of(settings: type[Settings]) -> dict[str, str]:
    """Types of settings as they are written, by name."""
    found: dict[str, str] = {}
    for cls in reversed(settings.__mro__):
        found.update(vars(cls).get("__annotations__", {}))
    return found


def homes(settings: type[Settings]) -> dict[str, str]:
    """Modules of the names that types of a class are written with."""
    found: dict[str, str] = {}
    for cls in settings.__mro__[::-1]:
        if cls.__module__ in ("builtins", "typing"):
            continue
        for node in ast.parse(inspect.getsource(sys.modules[cls.__module__])).body:
            if isinstance(node, ast.ImportFrom):
                found.update({alias.name: str(node.module) for alias in node.names})
            elif isinstance(node, ast.Import):
                found.update({alias.name: "" for alias in node.names})
            elif isinstance(node, ast.ClassDef):
                found[node.name] = cls.__module__
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                found[ast.unparse(target)] = cls.__module__
    return {"Mapping": "collections.abc", **found}


def page(all_keywords: Iterable[Keywords], here: str) -> str:
    """A whole module."""
    imports: set[tuple[str, str]] = set()
    parts = []
    for keywords in all_keywords:
        types = types_of(keywords.settings)
        fields = {
            name: types[name] for name in keywords.settings.declared if name not in keywords.without
        } | dict(keywords.further)
        known = BASES | homes(keywords.settings)
        imports |= {(BASES[base], base) for base in keywords.bases}
        for kind in fields.values():
            for name in re.findall(
                r"(?<![\w.])[A-Za-z_]+", re.sub(r"'[^']*'|\"[^\"]*\"", "", kind)
            ):
                if not hasattr(builtins, name):
                    imports.add((known[name], name))
        bases = ", ".join((*(keywords.bases or ("TypedDict",)), "total=False"))
        body = "".join(f"    {name}: {kind}\n" for name, kind in fields.items())
        doc = f'    """See ``{keywords.settings.__name__}``."""\n'
        parts.append(f"\n\nclass {keywords.name}({bases}):\n{doc}" + ("\n" + body if body else ""))
    lines = [
        f"from {module} import {name}\n" if module else f"import {name}\n"
        for module, name in sorted(imports)
        if module != here
    ]
    return HEAD + "\n" + "".join(lines) + "".join(parts)


def pages() -> dict[str, list[Keywords]]:
    """What is written, by path."""
    common = frozenset(ClientConfig.declared)
    any_client = ("CommonKeywords", "ProducerOwn", "ConsumerOwn")
    return {
        "sdk/settings/keywords.py": [
            Keywords("CommonOwn", ClientConfig, without=frozenset({"bootstrap_servers"})),
            Keywords(
                "CommonKeywords", ClientConfig, ("CommonOwn",), common - {"bootstrap_servers"}
            ),
            *client_keywords(ProducerConfig),
            *consumer_keywords(),
            *client_keywords(AdminConfig),
            Keywords("ClientKeywords", ClientConfig, any_client, common),
        ],
        "sdk/schema_registry/keywords.py": [
            Keywords("SchemaRegistryKeywords", SchemaRegistryConfig, without=frozenset({"url"})),
        ],
        "transactions/keywords.py": [
            Keywords(
                "SessionOwn", SessionSettings, without=frozenset({"client"}), further=HANDED_ON
            ),
            Keywords(
                "SessionRest",
                SessionConfig,
                ("CommonKeywords", "ProducerOwn", "ConsumerRest", "SessionOwn"),
                frozenset(SessionSettings.declared),
            ),
            Keywords(
                "SessionKeywords",
                SessionConfig,
                ("SessionRest", "ConsumerOwn"),
                frozenset(SessionConfig.declared),
            ),
        ],
        "processors/keywords.py": [
            Keywords(
                "AppKeywords",
                AppSettings,
                ("CommonOwn", "ProducerOwn", "ConsumerOwn", "SessionOwn"),
                frozenset({*SessionSettings.declared, "state_dir"}),
                {"state_dir": "str | Path"},
            ),
        ],
    }


def formatted(text: str, path: Path) -> str:
    """The text as ``ruff`` leaves it."""
    tool = str(Path(sys.executable).with_name("ruff"))
    for command in (["check", "--fix", "--select", "I,F401"], ["format"]):
        done = subprocess.run(
            [tool, *command, "--quiet", "--stdin-filename", str(path), "-"],
            input=text, capture_output=True, text=True, check=True, cwd=ROOT,
        )  # fmt: skip
        text = done.stdout
    return text


def modules() -> dict[str, str]:
    """The modules that are written, by path."""
    found = {}
    for name, keywords in pages().items():
        module = "onceflow." + name.removesuffix(".py").replace("/", ".")
        found[name] = formatted(page(keywords, module), ROOT / name)
    return found


def main() -> None:
    """Write or check."""
    for name, text in modules().items():
        if "--check" not in sys.argv:
            (ROOT / name).write_text(text)
        elif (ROOT / name).read_text() != text:
            sys.exit(f"{name} is out of date: run python tools/settings_keywords.py")


if __name__ == "__main__":
    main()
