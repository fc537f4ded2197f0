"""What the serdes of all schema languages share: subject, id, and codecs remembered by schema.

A serializer turns topic and value into a subject, gets the schema's id once, and keeps the codec
that was made of the schema; a deserializer keeps a codec for each id. Whatever has to be asked for
is raised as `LookupNeeded`, so that asyncio clients never block. How a schema is read and a value
written is decided by the languages' own modules.
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
from onceflow.sdk.schema_registry.model import RegisteredSchema, Schema, SchemaReference
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
"""Schemas that one schema may use, over all levels."""


@dataclass(frozen=True, slots=True)
class RegistrySerde:
    """A serializer and a deserializer that use one schema registry.

    Attributes:
        name: Name for messages.
        serialize: For ``key_serializer`` or ``value_serializer``; called with value, topic, field.
        deserialize: For ``key_deserializer`` or ``value_deserializer``, likewise.
    """

    name: str
    serialize: TopicSerializer
    deserialize: TopicDeserializer

    def bind(self, topic: str, field: str = "value") -> Serde[object]:
        """A plain serde for one topic, for code that does not tell topics.

        Args:
            topic: Topic.
            field: "key" or "value".
        """

        def serialize(value: object) -> bytes:
            data = self.serialize(value, topic, field)
            if data is None:
                raise SerializationError(
                    "the serializer returned None; write None itself for a tombstone"
                )
            return data

        return Serde(self.name, serialize, lambda data: self.deserialize(data, topic, field))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectOptions:
    """How a serializer finds and registers schemas; names are those of Confluent's clients.

    Attributes:
        subject_name_strategy: "topic", "record", "topic-record", or a function.
        auto_register: ``auto.register.schemas``: register a schema that the subject lacks; None
            means so, unless the newest version is used.
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
    """The client that the serdes use."""
    return registry.blocking if isinstance(registry, AsyncSchemaRegistry) else registry


class Prepared(NamedTuple):
    """What is known of one kind of value under one subject: the bytes before it, and its codec."""

    prefix: bytes
    encode: Encode


class RegistrySerializer(TopicSerializer):
    """Writes values behind the id of their schema."""

    def __init__(
        self, registry: SchemaRegistry | AsyncSchemaRegistry, options: SubjectOptions
    ) -> None:
        """Make a serializer; nothing is asked.

        Args:
            registry: Where schemas are.
            options: Subjects and registration.
        """
        self._registry = blocking_registry(registry)
        self._options = options
        self._subject = subject_function(options.subject_name_strategy)
        config = self._registry.config
        ttl_ms = config.cache_latest_ttl_ms if options.use_latest_version else None
        self._prepared: BoundedCache[Prepared] = BoundedCache(config.cache_capacity, ttl_ms)
        mend_after_fork(self._prepared)

    @abstractmethod
    def _describe(self, value: object) -> tuple[Hashable, str | None]:
        """What tells kinds of values apart, and the name of this one's kind; cheap."""

    @abstractmethod
    def _schema_of(self, value: object) -> Schema | None:
        """The schema of a value; what it uses is registered where that is wanted."""

    @abstractmethod
    def _encoder(self, schema: Schema) -> Encode:
        """The codec of a schema; may ask the registry for what the schema uses."""

    def _place(self, value: object, schema_id: int) -> bytes:
        """Bytes between the id and the value; may ask the registry for the schema of the id."""
        return b""

    def serialize(self, value: object, topic: str, field: str) -> bytes | None:
        """The bytes of a value; see the base class."""
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
    """Reads values by the schema whose id stands before them."""

    def __init__(self, registry: SchemaRegistry | AsyncSchemaRegistry) -> None:
        """Make a deserializer; nothing is asked.

        Args:
            registry: Where schemas are.
        """
        self._registry = blocking_registry(registry)
        self._decoders: BoundedCache[T] = BoundedCache(self._registry.config.cache_capacity)
        mend_after_fork(self._decoders)

    @abstractmethod
    def _decoder(self, schema_id: int) -> T:
        """The codec of the schema with an id; asks the registry."""

    @abstractmethod
    def _decode(self, decoder: T, data: bytes) -> object:
        """The value of bytes that begin with a schema id."""

    def deserialize(self, data: bytes, topic: str, field: str) -> object:
        """The value of bytes; see the base class."""
        schema_id = read_schema_id(data)
        decoder = self._decoders.get(schema_id)
        if decoder is None:
            raise LookupNeeded(partial(self._load, schema_id))
        about = f"a value with schema id {schema_id}"
        return _guarded(lambda found: self._decode(decoder, found), data, about)

    def _load(self, schema_id: int) -> None:
        try:
            decoder = compiled(lambda: self._decoder(schema_id), f"schema id {schema_id}")
        except SchemaNotFoundError as error:
            if error.retriable:
                raise
            # A schema that this one uses has not reached the registry's node yet.
            raise SchemaIdNotFoundError(*error.args) from error
        self._decoders.put(schema_id, decoder)


class PayloadDeserializer(RegistryDeserializer[Decode]):
    """The same where a codec takes just the bytes behind the id."""

    def _decode(self, decoder: Decode, data: bytes) -> object:
        return decoder(data[PREFIX_BYTES:])


def used_schema(
    registry: SchemaRegistry, reference: SchemaReference, already: int
) -> RegisteredSchema:
    """The schema that a reference names.

    Args:
        registry: Where it is.
        reference: The reference.
        already: How many schemas the outermost one was found to use before.

    Raises:
        SerializationError: They are too many.
        KafkaError: The registry cannot be asked.
    """
    if already >= REFERENCES_MAX:
        raise SerializationError(f"a schema uses more than {REFERENCES_MAX} others")
    return registry.version(reference.subject, reference.version)


def referenced_schemas(registry: SchemaRegistry, schema: Schema) -> dict[str, RegisteredSchema]:
    """The schemas that one uses, by the names it calls them; used ones before their users.

    Args:
        registry: Where they are.
        schema: The user.

    Raises:
        SerializationError: They are too many.
        KafkaError: The registry cannot be asked.
    """
    found: dict[str, RegisteredSchema] = {}

    def collect(user: Schema) -> None:
        for reference in user.references:
            if reference.name in found:
                continue
            used = used_schema(registry, reference, len(found))
            found[reference.name] = used  # before its own, so that a circle ends
            collect(used.schema)
            found[reference.name] = found.pop(reference.name)

    collect(schema)
    return found


def compiled(make: Callable[[], T], about: str) -> T:
    """Make a codec, naming the schema in the error if it cannot be read.

    Args:
        make: Reads the schema.
        about: Which schema, for the message.

    Raises:
        SerializationError: The schema cannot be read.
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
    except Exception as error:  # the codecs' libraries raise whatever comes to hand
        raise SerializationError(f"{about}: {_in_words(error)}") from error


def _in_words(error: Exception) -> str:
    """An error in words; those of values speak for themselves."""
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def as_kind(kind: type[object] | None) -> Callable[[object], object]:
    """A function that makes a value of a type from plain values.

    Args:
        kind: A type that ``msgspec`` knows, or a pydantic model; None leaves values as they are.
    """
    if kind is None:
        return lambda value: value
    validate: Callable[[object], object] | None = getattr(kind, "model_validate", None)
    if validate is not None:
        return validate
    import msgspec

    return lambda value: msgspec.convert(value, kind)
