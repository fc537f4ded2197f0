"""Base classes of the serdes for all schema languages.

A serializer finds the subject of a value, asks the registry for the schema's id once, and caches
the codec that it makes from the schema. A deserializer caches a codec for each id. Both raise
`LookupNeeded` instead of sending a request, so that asyncio clients never block. The module of each
language parses schemas and makes the codecs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from onceflow.sdk.errors import (
    ConfigError,
    KafkaError,
    SchemaIdNotFoundError,
    SchemaNotFoundError,
    SerializationError,
)
from onceflow.sdk.schema_registry.aio import AsyncSchemaRegistry
from onceflow.sdk.schema_registry.cache import BoundedCache, mend_after_fork
from onceflow.sdk.schema_registry.client import SchemaRegistry
from onceflow.sdk.schema_registry.model import (
    RegisteredSchema,
    Schema,
    SchemaReference,
    SchemaType,
)
from onceflow.sdk.schema_registry.subjects import SubjectNameStrategy, subject_function
from onceflow.sdk.schema_registry.wire import PREFIX_BYTES, read_schema_id, write_prefix
from onceflow.sdk.serde import (
    LookupNeeded,
    Serde,
    TopicDeserializer,
    TopicSerializer,
)

T = TypeVar("T")
V = TypeVar("V")
Encode = Callable[[object], bytes]
Decode = Callable[[bytes], object]
REFERENCES_MAX: Final = 200
"""Most schemas that one schema may reference, directly and indirectly."""


@dataclass(frozen=True, slots=True)
class RegistrySerde:
    """A serializer and a deserializer that use one schema registry.

    Attributes:
        name: Name for error messages.
        serialize: For ``key_serializer`` or ``value_serializer``; called with value, topic, field.
        deserialize: For ``key_deserializer`` or ``value_deserializer``; called with data, topic,
            field.
    """

    name: str
    serialize: TopicSerializer
    deserialize: TopicDeserializer

    def bind(self, topic: str, field: str = "value") -> Serde[object]:
        """Return a plain serde for one topic, for code that passes no topic to its serdes.

        Args:
            topic: Topic.
            field: "key" or "value".
        """

        def serialize(value: object) -> bytes:
            data = self.serialize(value, topic, field)
            if data is None:
                raise SerializationError(
                    "the serializer returned None; send the value None for a tombstone"
                )
            return data

        return Serde(self.name, serialize, lambda data: self.deserialize(data, topic, field))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectOptions:
    """How a serializer finds and registers schemas; the names follow Confluent's clients.

    Attributes:
        subject_name_strategy: "topic", "record", "topic-record", or a function.
        auto_register: ``auto.register.schemas``: register a schema that the subject lacks; None
            does so unless `use_latest_version`.
        use_latest_version: ``use.latest.version``: write with the subject's newest schema.
        normalize: ``normalize.schemas``.
    """

    subject_name_strategy: SubjectNameStrategy = "topic"
    auto_register: bool | None = None
    use_latest_version: bool = False
    normalize: bool = False

    def __post_init__(self) -> None:
        subject_function(self.subject_name_strategy)
        if self.use_latest_version and self.auto_register:
            raise ConfigError(
                "use_latest_version",
                True,
                "excludes auto_register: a serializer either uses the newest version or registers "
                "a schema; leave out auto_register",
            )


def blocking_registry(registry: SchemaRegistry | AsyncSchemaRegistry) -> SchemaRegistry:
    """Return the blocking client, which the serdes use."""
    return registry.blocking if isinstance(registry, AsyncSchemaRegistry) else registry


class Prepared(NamedTuple):
    """The prefix and the codec for one kind of value under one subject."""

    prefix: bytes
    encode: Encode


class RegistrySerializer(TopicSerializer):
    """Writes values after the id of their schema."""

    def __init__(
        self, registry: SchemaRegistry | AsyncSchemaRegistry, options: SubjectOptions
    ) -> None:
        """Make a serializer; no request is sent."""
        self._registry = blocking_registry(registry)
        self._options = options
        self._subject = subject_function(options.subject_name_strategy)
        config = self._registry.config
        ttl_ms = config.cache_latest_ttl_ms if options.use_latest_version else None
        self._prepared: BoundedCache[Prepared] = BoundedCache(config.cache_capacity, ttl_ms)
        mend_after_fork(self._prepared)

    @abstractmethod
    def _describe(self, value: object) -> tuple[Hashable, str | None]:
        """Return the cache key and the record name of a value's kind; called for each value."""

    @abstractmethod
    def _schema_of(self, value: object) -> Schema | None:
        """Return the schema of a value; may register the schemas that it references."""

    @abstractmethod
    def _encoder(self, schema: Schema) -> Encode:
        """Make the codec of a schema; may ask the registry for referenced schemas."""

    def _place(self, value: object, schema_id: int) -> bytes:
        """Return the bytes between id and value; may ask the registry for the id's schema."""
        return b""

    def serialize(self, value: object, topic: str, field: str) -> bytes | None:
        """Return the bytes of a value; see the base class."""
        kind, name = self._describe(value)
        subject = self._subject(topic, field, name)
        prepared = self._prepared.get((subject, kind))
        if prepared is None:
            raise LookupNeeded(partial(self._prepare, subject, kind, value))
        return prepared.prefix + _guarded(prepared.encode, value, subject)

    def _prepare(self, subject: str, kind: Hashable, value: object) -> None:
        normalize, registry = self._options.normalize, self._registry
        schema = None if self._options.use_latest_version else self._schema_of(value)
        if self._options.use_latest_version:
            latest = registry.latest(subject)
            schema_id, schema = latest.schema_id, latest.schema
        elif schema is None:
            raise ConfigError("schema", None, "pass a schema, or use_latest_version=True")
        elif self._options.auto_register is not False:
            schema_id = registry.register(subject, schema, normalize=normalize)
        else:
            schema_id = registry.lookup(subject, schema, normalize=normalize).schema_id
        chosen = schema
        about = f"subject {subject!r}, schema id {schema_id}"
        prefix = write_prefix(schema_id) + compiled(lambda: self._place(value, schema_id), about)
        encode = compiled(lambda: self._encoder(chosen), about)
        self._prepared.put((subject, kind), Prepared(prefix, encode))


class RegistryDeserializer(TopicDeserializer, Generic[T]):
    """Reads values by the schema whose id precedes them."""

    _schema_type: SchemaType

    def __init__(self, registry: SchemaRegistry | AsyncSchemaRegistry) -> None:
        """Make a deserializer; no request is sent."""
        self._registry = blocking_registry(registry)
        self._decoders: BoundedCache[T] = BoundedCache(self._registry.config.cache_capacity)
        mend_after_fork(self._decoders)

    @abstractmethod
    def _decoder(self, schema: Schema) -> T:
        """Make the codec of a schema; may ask the registry for referenced schemas."""

    @abstractmethod
    def _decode(self, decoder: T, data: bytes) -> object:
        """Return the value of bytes that begin with a schema id."""

    def deserialize(self, data: bytes, topic: str, field: str) -> object:
        """Return the value of bytes; see the base class."""
        schema_id = read_schema_id(data)
        decoder = self._decoders.get(schema_id)
        if decoder is None:
            raise LookupNeeded(partial(self._load, schema_id))
        about = f"a value with schema id {schema_id}"
        return _guarded(lambda found: self._decode(decoder, found), data, about)

    def _load(self, schema_id: int) -> None:
        try:
            decoder = compiled(
                lambda: self._decoder(self._schema(schema_id)), f"schema id {schema_id}"
            )
        except SchemaNotFoundError as error:
            if error.retriable:
                raise
            # A referenced schema has not reached this node of the registry yet.
            raise SchemaIdNotFoundError(*error.args) from error
        self._decoders.put(schema_id, decoder)

    def _schema(self, schema_id: int) -> Schema:
        serialized = self._schema_type == "PROTOBUF"
        schema = self._registry.schema(schema_id, serialized=serialized)
        if schema.schema_type != self._schema_type:
            raise SerializationError(
                f"schema id {schema_id} is of type {schema.schema_type}, not {self._schema_type}; "
                "read the topic with the serde of that type"
            )
        return schema


class PayloadDeserializer(RegistryDeserializer[Decode]):
    """Reads values whose bytes follow the id directly."""

    def _decode(self, decoder: Decode, data: bytes) -> object:
        return decoder(data[PREFIX_BYTES:])


def used_schema(
    registry: SchemaRegistry, reference: SchemaReference, already: int
) -> RegisteredSchema:
    """Ask the registry for the schema of a reference.

    Args:
        registry: Client of the schema registry.
        reference: The reference.
        already: How many referenced schemas of the outermost one were found before.

    Raises:
        SerializationError: The outermost schema references too many others.
        KafkaError: The request failed.
    """
    if already >= REFERENCES_MAX:
        raise SerializationError(f"a schema references more than {REFERENCES_MAX} others")
    return registry.version(reference.subject, reference.version)


def referenced_schemas(registry: SchemaRegistry, schema: Schema) -> dict[str, RegisteredSchema]:
    """Return all referenced schemas by name, each after those that it references itself.

    Raises:
        SerializationError: There are too many.
        KafkaError: A request failed.
    """
    found: dict[str, RegisteredSchema] = {}

    def collect(user: Schema) -> None:
        for reference in user.references:
            if reference.name in found:
                continue
            used = used_schema(registry, reference, len(found))
            found[reference.name] = used  # before the recursion, so that a cycle ends
            collect(used.schema)
            found[reference.name] = found.pop(reference.name)

    collect(schema)
    return found


def compiled(make: Callable[[], T], about: str) -> T:
    """Make a codec, and name the schema in the error if that fails.

    Args:
        make: Makes the codec.
        about: The schema's name, for the message.

    Raises:
        SerializationError: The schema cannot be used.
    """
    try:
        return make()
    except KafkaError:
        raise
    except Exception as error:
        cause = _in_words(error)
        raise SerializationError(f"{about}: the schema cannot be used: {cause}") from error


def _guarded(work: Callable[[V], T], value: V, about: str) -> T:
    try:
        return work(value)
    except KafkaError:
        raise
    except Exception as error:  # the codecs' libraries raise errors of many classes
        raise SerializationError(f"{about}: {_in_words(error)}") from error


def _in_words(error: Exception) -> str:
    """Return an error's text, with its class unless it is a ValueError, whose text suffices."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def as_kind(kind: type[object] | None) -> Callable[[object], object]:
    """Return a function that converts plain values to a type.

    Args:
        kind: A type that ``msgspec`` supports, or a pydantic model; None leaves values unchanged.
    """
    if kind is None:
        return lambda value: value
    validate: Callable[[object], object] | None = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate
    import msgspec

    return lambda value: msgspec.convert(value, kind)
