"""What a Spark task needs of an application, as bytes.

The application travels by Spark's own cloudpickle: functions of a module that can be imported by
reference, those of a notebook or a script by value. Decoders and encoders of msgspec cannot be
pickled; they are made again from what they were made of.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from pyspark.cloudpickle import CloudPickler

from onceflow.processors.graph.topology import Topology
from onceflow.processors.settings import AppSettings
from onceflow.processors.state.task_state import StateRules
from onceflow.sdk.errors import ConfigError

_DECODERS: Final = (msgspec.json.Decoder, msgspec.msgpack.Decoder)
_ENCODERS: Final = (msgspec.json.Encoder, msgspec.msgpack.Encoder)
_CACHE: Final = "__msgspec_cache__"
"""Attribute in which msgspec keeps what it knows of a dataclass or named tuple."""


@dataclass(frozen=True, slots=True)
class Shipped:
    """An application as its tasks need it.

    Attributes:
        topology: Its nodes.
        counts: Partition count of the inputs, by sub-topology.
        record_bytes_max: Largest key and value of an output together.
        max_future_ms: How far an event time may be ahead of the clock.
        unit_records: Most records whose outputs and state are uncommitted within a task.
        unit_bytes: Most bytes of uncommitted state within a task.
        goes_on: Whether state of another type is logged instead of refused.
        dropped: States that were removed on purpose.
    """

    topology: Topology
    counts: Mapping[str, int]
    record_bytes_max: int
    max_future_ms: int
    unit_records: int
    unit_bytes: int
    goes_on: bool
    dropped: frozenset[str]

    @staticmethod
    def of(topology: Topology, settings: AppSettings, counts: Mapping[str, int]) -> Shipped:
        """Take what tasks need.

        Args:
            topology: The application.
            settings: Its settings.
            counts: Partition count by input topic.
        """
        parts = {part.name: counts[part.input_topics[0]] for part in topology.sub_topologies}
        return Shipped(
            topology,
            parts,
            settings.output_bytes_max,
            settings.max_future_ms,
            settings.commit_records,
            settings.commit_bytes,
            settings.on_state_gap == "continue",
            frozenset(settings.dropped_states),
        )

    def rules(self, part: str) -> StateRules:
        """To what the state of a sub-topology must correspond.

        Args:
            part: Name of the sub-topology.
        """
        topology = self.topology
        return StateRules(topology.group, self.counts[part], {}, self.goes_on, self.dropped)

    def packed(self) -> bytes:
        """Return it as bytes.

        Raises:
            ConfigError: The application holds something that cannot be pickled.
        """
        data = io.BytesIO()
        try:
            _Pickler(data).dump(self)  # type: ignore[no-untyped-call]
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise ConfigError(
                "application",
                self.topology.app,
                f"cannot be sent to Spark's tasks: {error}. Let a startup function open what "
                "cannot be pickled, such as clients",
            ) from error
        return data.getvalue()


def unpacked(data: bytes) -> Shipped:
    """Return what ``Shipped.packed`` gave.

    Raises:
        ConfigError: A module of the application is missing where the task runs.
    """
    try:
        found: Shipped = pickle.loads(data)
    except ModuleNotFoundError as error:
        raise ConfigError(
            "application",
            str(error.name),
            "Spark's Python workers have no such module; ship it with --py-files or "
            "spark.sparkContext.addPyFile, or install it there",
        ) from error
    return found


class _Pickler(CloudPickler):
    """Also takes decoders and encoders of msgspec."""

    def reducer_override(self, obj: object) -> Any:
        """Return how an object is made again; see ``pickle.Pickler``."""
        if isinstance(obj, _DECODERS):
            made = functools.partial(type(obj), obj.type, strict=obj.strict, dec_hook=obj.dec_hook)
            return made, ()
        if isinstance(obj, _ENCODERS):
            return functools.partial(type(obj), enc_hook=obj.enc_hook, order=obj.order), ()
        if isinstance(obj, type) and _CACHE in vars(obj):
            delattr(obj, _CACHE)  # Not picklable; msgspec makes it again when it needs it.
        return super().reducer_override(obj)  # type: ignore[no-untyped-call]
