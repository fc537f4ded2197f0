"""Goal: every exception of the product survives pickling and copying, as between processes.

Method: all modules are imported, their exception classes found, and each made from samples for the
types that its constructor declares.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterator
from http import HTTPStatus

import house_rules
import pytest

import onceflow
from onceflow.sdk.protocol.error_codes import ErrorCode

SAMPLES: dict[str, object] = {
    "str": "text",
    "int": 7,
    "object": 7,
    "ErrorCode": ErrorCode.UNKNOWN_SERVER_ERROR,
    "HTTPStatus": HTTPStatus.FORBIDDEN,
    "tuple[RecordIssue, ...]": ((0, "wrong"),),
    "Sequence[RecordIssue]": ((0, "wrong"),),
    "Callable[[], object]": dict,
}
"""A value for each type that a constructor declares."""


def exception_classes() -> Iterator[type[BaseException]]:
    for module in pkgutil.walk_packages(onceflow.__path__, "onceflow."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[BaseException]] = [BaseException]
    for kind in found:
        found += [each for each in type.__subclasses__(kind) if each not in found]
    return (kind for kind in found if kind.__module__.partition(".")[0] == "onceflow")


def made(kind: type[BaseException]) -> BaseException:
    """An exception of a class, with its optional arguments too."""
    if not inspect.isfunction(kind.__init__):  # Python's own, which takes anything
        return kind("text")
    parameters = list(inspect.signature(kind).parameters.values())
    return kind(*(SAMPLES[str(parameter.annotation)] for parameter in parameters))


def told(error: BaseException) -> tuple[object, ...]:
    """All that an exception says."""
    return type(error), str(error), error.args, getattr(error, "__dict__", {})


def test_every_exception_survives_pickling_and_copying() -> None:
    lost = []
    classes = list(exception_classes())
    for kind in classes:
        error = made(kind)
        if hasattr(error, "__dict__"):  # One of a compiled class keeps no notes.
            error.add_note("noted")
        for way in (lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy):
            try:
                again = way(error)
            except Exception as refusal:  # noqa: BLE001 - all of them are told at once
                lost.append(f"{kind.__module__}.{kind.__qualname__}: {refusal}")
                break
            assert told(again) == told(error)
    assert lost == []
    areas = {kind.__module__.split(".")[1] for kind in classes}
    assert areas == {*house_rules.AREAS, *house_rules.OWN_AREAS}


def test_an_exception_that_does_not_survive_would_be_found() -> None:
    class Lost(Exception):
        def __init__(self, code: int, message: str) -> None:
            super().__init__(message)
            self.code = code

    with pytest.raises(TypeError):
        copy.copy(made(Lost))
