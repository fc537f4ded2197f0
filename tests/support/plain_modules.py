"""The modules that may be compiled, loaded from their sources: plain Python beside what is in use.

A test that takes them sees both engines, whether machine code is there or not.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from onceflow.sdk.core.produce import appending, batch
from onceflow.sdk.core.produce import key_hash as key_hash_in_use
from onceflow.sdk.protocol import batch_building, batch_reading, record_kernel, record_validation

USERS = (batch_building, batch_reading, record_validation, appending)
"""Modules that call the record kernel, each by the name ``record_kernel``."""


def _from_source(path: Path) -> ModuleType:
    spec = spec_from_file_location(f"{path.stem}_source", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _accumulator_from_source(batch_source: ModuleType) -> ModuleType:
    """``accumulator`` over ``batch`` as it is in the source."""
    kept = sys.modules[batch.__name__]
    sys.modules[batch.__name__] = batch_source
    try:
        return _from_source(Path(appending.__file__).with_name("accumulator.py"))
    finally:
        sys.modules[batch.__name__] = kept


kernel = _from_source(Path(batch_building.__file__).with_name("record_kernel.py"))
"""``onceflow.sdk.protocol.record_kernel``."""

key_hash = _from_source(Path(appending.__file__).with_name("key_hash.py"))
"""``onceflow.sdk.core.produce.key_hash``."""

produce_batch = _from_source(Path(appending.__file__).with_name("batch.py"))
"""``onceflow.sdk.core.produce.batch``."""

accumulator = _accumulator_from_source(produce_batch)
"""``onceflow.sdk.core.produce.accumulator``, over that."""

assert not kernel.COMPILED
ENGINES = ("in use", "plain")


def use(engine: str, patch: pytest.MonkeyPatch) -> ModuleType:
    """Let the protocol's modules call one engine of ``ENGINES``; returns the kernel."""
    found = kernel if engine == "plain" else record_kernel
    for module in USERS:
        patch.setattr(module, "record_kernel", found)
    patch.setattr(appending, "key_hash", key_hash if engine == "plain" else key_hash_in_use)
    return found
