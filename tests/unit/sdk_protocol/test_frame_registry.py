"""Goal: the registry names every message once, and costs nothing until a message is used.

Method: compare the registry with the classes in the modules; look at what a fresh interpreter
imports.
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import pytest

from onceflow.sdk.protocol import api
from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.schema import Message, Request, Response


def test_each_entry_holds_the_two_messages_of_its_key() -> None:
    for api_key, (request_type, response_type) in API.items():
        assert issubclass(request_type, Request)
        assert issubclass(response_type, Response)
        assert request_type.api_key == response_type.api_key == api_key
        assert request_type.response_type is response_type
        assert request_type.versions == response_type.versions
        assert request_type.flexible_from == response_type.flexible_from


def test_every_declared_message_is_registered() -> None:
    declared = set()
    for module in pkgutil.iter_modules(api.__path__):
        names = vars(importlib.import_module(f"{api.__name__}.{module.name}")).values()
        for kind in names:
            if isinstance(kind, type) and issubclass(kind, (Request, Response)):
                declared.add(kind)
    registered = {message_type for entry in API.values() for message_type in entry}
    assert declared - {Request, Response} == registered


def test_an_unknown_key_is_a_key_error() -> None:
    assert API.get(9999) is None
    with pytest.raises(KeyError):
        API[9999]


def all_fields(message_type: type[Message]) -> list[str]:
    found = []
    for name, field in message_type.fields().items():
        found.append(name)
        inner = field.element or field
        if inner.struct_type is not None:
            found += all_fields(inner.struct_type)
    return found


def test_names_are_spelled_as_in_kafkas_schemas() -> None:
    for entry in API.values():
        for message_type in entry:
            for name in all_fields(message_type):
                assert name == name.lower()
                assert not name.startswith("_")


def test_importing_frames_loads_no_message_and_no_compiler() -> None:
    program = "import sys, onceflow.sdk.protocol.frame; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    modules = done.stdout.split()
    assert "onceflow.sdk.protocol.api" in modules
    assert not [m for m in modules if m.startswith("onceflow.sdk.protocol.api.")]
    assert "onceflow.sdk.protocol.compiler" not in modules
    assert not {"asyncio", "socket", "aiokafka", "threading"} & set(modules)
