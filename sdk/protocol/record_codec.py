"""Where the compiled record codec comes from: aiokafka's extension, without the client around it.

`import aiokafka.record` loads aiokafka's whole client (about 210 modules), because a package's
start runs before its submodules. This module loads the two extension files alone, which takes
about a millisecond. They stay in `sys.modules` under their own names, since an extension of this
kind can be initialised only once per process; a later `import aiokafka` finds and uses them.
Import this module late: importing it is what loads the codec, and Python's import lock makes sure
that it happens once. How records are read and written is decided in `records`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Protocol, cast

from onceflow.sdk.protocol.primitives import Buffer

__all__ = [
    "COMPILED",
    "BatchBuilder",
    "BatchReader",
    "RawRecord",
    "new_builder",
    "new_reader",
]

_RECORDS = "aiokafka.record._crecords.default_records"
_UTILITIES = "aiokafka.record._crecords.cutil"


class RawRecord(Protocol):
    """One decoded record, as the codec makes it."""

    @property
    def offset(self) -> int:
        """Position in the partition."""

    @property
    def timestamp(self) -> int | None:
        """Milliseconds since 1970, None when the record has none."""

    @property
    def key(self) -> bytes | None:
        """The key's bytes."""

    @property
    def value(self) -> bytes | None:
        """The value's bytes."""

    @property
    def headers(self) -> list[tuple[str, bytes | None]]:
        """Pairs of name and value."""


class BatchReader(Protocol):
    """Reads the records of one batch, once."""

    def __call__(self, buffer: Buffer) -> Iterator[RawRecord]:
        """Open the batch that fills `buffer`, header included; compression must be undone."""


class RecordSize(Protocol):
    """What a builder answers for an appended record."""

    @property
    def size(self) -> int:
        """Bytes that the record takes in the batch."""


class BatchBuilder(Protocol):
    """Writes the records of one batch."""

    def append(
        self,
        offset: int,
        timestamp: int,
        key: Buffer | None,
        value: Buffer | None,
        headers: list[tuple[str, bytes | None]],
    ) -> RecordSize | None:
        """Add a record under its offset delta; None when the batch is full."""

    def build(self) -> bytearray:
        """Write the header and give the batch away."""

    def size(self) -> int:
        """Bytes used so far, header included."""


class _BatchBuilderType(Protocol):
    def __call__(
        self,
        magic: int,
        compression_type: int,
        is_transactional: int,
        producer_id: int,
        producer_epoch: int,
        base_sequence: int,
        batch_size: int,
    ) -> BatchBuilder: ...


class _ExtensionError(ValueError):
    """The extension found a malformed record while aiokafka itself was never imported."""


def _late_error(name: str) -> Callable[[str], Exception]:
    """Stand in for an exception class: makes aiokafka's own one if that is loaded by then."""

    def make(message: str) -> Exception:
        errors = sys.modules.get("aiokafka.errors")
        kind = _ExtensionError if errors is None else getattr(errors, name)
        return cast(Exception, kind(message))

    return make


def _late_codec(name: str) -> Callable[..., object]:
    """Stand in for a function of `aiokafka.codec`: imports it when called."""

    def call(*arguments: object, **options: object) -> object:
        function: Callable[..., object] = getattr(import_module("aiokafka.codec"), name)
        return function(*arguments, **options)

    return call


def _load_alone() -> ModuleType:
    """Load the extension without running the start of the packages around it.

    Raises:
        ImportError: aiokafka is not laid out as expected, or has no extension here.
    """
    spec = PathFinder.find_spec("aiokafka")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("aiokafka is not installed as a package")
    folder = Path(spec.submodule_search_locations[0]) / "record" / "_crecords"
    # While an extension starts, it asks for these three modules. The stand-ins give it what it
    # needs and leave again, so that a later import of aiokafka begins from nothing.
    errors, codec = ModuleType("aiokafka.errors"), ModuleType("aiokafka.codec")
    errors.__getattr__ = _late_error  # type: ignore[method-assign]
    codec.__getattr__ = _late_codec  # type: ignore[method-assign]
    stand_ins = {"aiokafka": ModuleType("aiokafka"), errors.__name__: errors, codec.__name__: codec}
    sys.modules.update(stand_ins)
    try:
        _load_extension(_UTILITIES, folder)
        return _load_extension(_RECORDS, folder)
    finally:
        for name in stand_ins:
            sys.modules.pop(name, None)


def _load_extension(name: str, folder: Path) -> ModuleType:
    stem = name.rpartition(".")[2]
    for suffix in EXTENSION_SUFFIXES:
        path = folder / (stem + suffix)
        if path.exists():
            break
    else:
        raise ImportError(f"aiokafka has no extension {stem} for this Python")
    spec = spec_from_file_location(name, path, loader=ExtensionFileLoader(name, str(path)))
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load() -> ModuleType:
    if "aiokafka" not in sys.modules:
        try:
            return _load_alone()
        except ImportError:
            pass  # Another layout: pay for the whole package.
    return import_module("aiokafka.record.default_records")


_module = _load()
new_reader: BatchReader = _module.DefaultRecordBatch
new_builder: _BatchBuilderType = _module.DefaultRecordBatchBuilder
COMPILED: bool = new_reader.__module__ == _RECORDS
"""Whether the codec is the extension (else it is aiokafka's much slower Python one)."""
