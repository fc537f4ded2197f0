"""SchemaRegistry: registers and reads schemas, and caches answers.

Answers that never change (the schema of an id, the id of a schema under a subject) stay cached
until the cache is full. Answers that may change (the latest version, an unknown id) expire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar, Unpack, cast
from urllib.parse import quote

from onceflow.sdk.errors import (
    SchemaIdNotFoundError,
    SchemaNotFoundError,
    SchemaRegistryError,
)
from onceflow.sdk.schema_registry.cache import BoundedCache, SingleFlight, mend_after_fork
from onceflow.sdk.schema_registry.config import SchemaRegistryConfig
from onceflow.sdk.schema_registry.http import RegistryHttp
from onceflow.sdk.schema_registry.keywords import SchemaRegistryKeywords
from onceflow.sdk.schema_registry.model import (
    Compatibility,
    RegisteredSchema,
    Schema,
    SchemaReference,
    SchemaType,
)
from onceflow.sdk.schema_registry.wire import SCHEMA_ID_MAX

T = TypeVar("T")


class SchemaRegistry:
    """A blocking client of a schema registry with Confluent's HTTP interface.

    It is thread-safe. It holds no connection between calls, so that it needs no closing and
    survives a fork. Every call may raise:

    - ``SchemaRegistryUnavailableError``: no address answered, after ``max_retries`` repetitions.
    - ``SchemaNotFoundError``: the subject or version does not exist; for an id its retriable
      subclass ``SchemaIdNotFoundError``.
    - ``SchemaRegistryError``: the registry refused; the message names the subject and what to do.
    """

    def __init__(
        self,
        url: str | Sequence[str] = "http://localhost:8081",
        **settings: Unpack[SchemaRegistryKeywords],
    ) -> None:
        """Make a client; no request is sent.

        Args:
            url: Address of the registry, or several.
            **settings: Fields of ``SchemaRegistryConfig``.

        Raises:
            ConfigError: A setting is unknown or has an invalid value.
        """
        self._config = SchemaRegistryConfig(url=url, **settings)
        self._http = RegistryHttp(self._config)
        capacity, ttl_ms = self._config.cache_capacity, self._config.cache_latest_ttl_ms
        self._schemas: BoundedCache[Schema] = BoundedCache(capacity)
        self._registered: BoundedCache[RegisteredSchema] = BoundedCache(capacity)
        self._ids: BoundedCache[int] = BoundedCache(capacity)
        self._latest: BoundedCache[RegisteredSchema] = BoundedCache(capacity, ttl_ms)
        missing_ttl_ms = self._config.missing_id_cache_ttl_ms
        self._missing: BoundedCache[SchemaIdNotFoundError] = BoundedCache(capacity, missing_ttl_ms)
        self._flights = SingleFlight()
        mend_after_fork(self._schemas, self._ids, self._registered)
        mend_after_fork(self._latest, self._missing, self._flights)

    def __repr__(self) -> str:
        return f"SchemaRegistry({self._config!r})"

    @property
    def config(self) -> SchemaRegistryConfig:
        """The settings."""
        return self._config

    def close(self) -> None:
        """Do nothing: the client holds no connection between calls."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # schemas

    def register(self, subject: str, schema: Schema, *, normalize: bool = False) -> int:
        """Register a schema under a subject, if it is not registered yet, and return its id.

        Args:
            subject: Subject.
            schema: Schema.
            normalize: Let the registry ignore differences of form, such as the order of properties.

        Raises:
            IncompatibleSchemaError: The schema breaks the subject's compatibility rule.
            SchemaRegistryError: See the class.
        """
        key = (subject, schema, normalize)
        known = self._ids.get(key)
        if known is not None:
            return known
        return self._flights.run(("register", *key), lambda: self._register(*key))

    def _register(self, subject: str, schema: Schema, normalize: bool) -> int:
        path = f"/subjects/{quote(subject, safe='')}/versions{_normalize(normalize)}"
        about = f"registering a schema of subject {subject!r}"
        answer = self._http.request("POST", path, _body(schema), about=about)
        schema_id = _schema_id(answer, about)
        self._ids.put((subject, schema, normalize), schema_id)
        self._latest.forget(lambda known: known == subject)
        return schema_id

    def lookup(self, subject: str, schema: Schema, *, normalize: bool = False) -> RegisteredSchema:
        """Return the id and version under which a schema is registered.

        Args:
            subject: Subject.
            schema: Schema.
            normalize: As for ``register``.

        Raises:
            SchemaNotFoundError: The schema is not registered under the subject.
            SchemaRegistryError: See the class.
        """
        key = (subject, schema, normalize)
        known = self._registered.get(key)
        if known is not None:
            return known
        return self._flights.run(("lookup", *key), lambda: self._lookup(*key))

    def _lookup(self, subject: str, schema: Schema, normalize: bool) -> RegisteredSchema:
        path = f"/subjects/{quote(subject, safe='')}{_normalize(normalize)}"
        about = f"looking up a schema of subject {subject!r}"
        answer = self._http.request("POST", path, _body(schema), about=about)
        found = _registered(answer, subject, about)
        self._registered.put((subject, schema, normalize), found)
        self._ids.put((subject, schema, normalize), found.schema_id)
        return found

    def schema(self, schema_id: int, *, serialized: bool = False) -> Schema:
        """Return the schema of an id.

        Args:
            schema_id: Id, as in the prefix of a value.
            serialized: Ask for a Protobuf schema as a FileDescriptorProto in base64.

        Raises:
            SchemaIdNotFoundError: The registry does not know the id, or not yet. The client asks
                again ``missing_id_cache_ttl_ms`` later.
            SchemaRegistryError: See the class.
        """
        key = (schema_id, serialized)
        known = self._schemas.get(key)
        if known is not None:
            return known
        missing = self._missing.get(schema_id)
        if missing is not None:
            raise missing.with_traceback(None)
        return self._flights.run(("schema", *key), lambda: self._schema(*key))

    def _schema(self, schema_id: int, serialized: bool) -> Schema:
        about = f"reading the schema with id {schema_id}"
        path = f"/schemas/ids/{schema_id}" + ("?format=serialized" if serialized else "")
        try:
            answer = self._http.request("GET", path, about=about)
        except SchemaNotFoundError as error:
            missing = SchemaIdNotFoundError(*error.args)
            self._missing.put(schema_id, missing)
            raise missing from None
        found = _schema(answer, about)
        self._schemas.put((schema_id, serialized), found)
        return found

    # versions

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the newest version of a subject, cached for ``cache_latest_ttl_ms``.

        Args:
            subject: Subject.

        Raises:
            SchemaNotFoundError: The subject does not exist.
            SchemaRegistryError: See the class.
        """
        known = self._latest.get(subject)
        if known is not None:
            return known
        return self._flights.run(("latest", subject), lambda: self._ask_latest(subject))

    def _ask_latest(self, subject: str) -> RegisteredSchema:
        found = self._version(subject, "latest")
        self._latest.put(subject, found)
        return found

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """Return one version of a subject.

        Args:
            subject: Subject.
            version: Number, from 1.

        Raises:
            SchemaNotFoundError: The subject or version does not exist.
            SchemaRegistryError: See the class.
        """
        key = (subject, version)
        known = self._registered.get(key)
        if known is None:
            known = self._flights.run(
                ("version", *key), lambda: self._version(subject, str(version))
            )
            self._registered.put(key, known)
        return known

    def _version(self, subject: str, version: str) -> RegisteredSchema:
        about = f"reading version {version} of subject {subject!r}"
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
        return _registered(self._http.request("GET", path, about=about), subject, about)

    def versions(self, subject: str) -> list[int]:
        """Return the version numbers of a subject.

        Args:
            subject: Subject.

        Raises:
            SchemaRegistryError: See the class.
        """
        about = f"listing the versions of subject {subject!r}"
        path = f"/subjects/{quote(subject, safe='')}/versions"
        return _list(self._http.request("GET", path, about=about), int, about)

    def subjects(self) -> list[str]:
        """Return the names of all subjects.

        Raises:
            SchemaRegistryError: See the class.
        """
        about = "listing the subjects"
        return _list(self._http.request("GET", "/subjects", about=about), str, about)

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete a subject and return the deleted versions; their schemas stay readable by id.

        Args:
            subject: Subject.
            permanent: Remove for ever a subject that is deleted already, with its schemas.

        Raises:
            SchemaRegistryError: See the class.
        """
        about = f"deleting subject {subject!r}"
        path = f"/subjects/{quote(subject, safe='')}" + ("?permanent=true" if permanent else "")
        deleted = _list(self._http.request("DELETE", path, about=about), int, about)
        self._latest.forget(lambda key: key == subject)
        for cache in (self._ids, self._registered):
            cache.forget(lambda key: isinstance(key, tuple) and key[0] == subject)
        return deleted

    # compatibility

    def is_compatible(self, subject: str, schema: Schema, version: int | None = None) -> bool:
        """Whether a schema is compatible with a subject's versions.

        Args:
            subject: Subject.
            schema: Schema.
            version: Version to compare with; None compares with those that the subject's
                compatibility rule requires.

        Raises:
            SchemaRegistryError: See the class.
        """
        about = f"comparing a schema with subject {subject!r}"
        which = "" if version is None else f"/{version}"
        path = f"/compatibility/subjects/{quote(subject, safe='')}/versions{which}"
        answer = self._http.request("POST", path, _body(schema), about=about)
        return _field(answer, "is_compatible", bool, about)

    def compatibility(self, subject: str | None = None) -> str:
        """Return the compatibility rule of a subject, or the registry's.

        Args:
            subject: Subject; None asks for the registry's rule.

        Raises:
            SchemaNotFoundError: No rule is set for the subject; the registry's applies.
            SchemaRegistryError: See the class.
        """
        about = f"reading the compatibility rule of {subject or 'the registry'!r}"
        answer = self._http.request("GET", _config_path(subject), about=about)
        return _field(answer, "compatibilityLevel", str, about)

    def set_compatibility(self, level: Compatibility, subject: str | None = None) -> None:
        """Set the compatibility rule of a subject, or the registry's.

        Args:
            level: Rule, such as BACKWARD.
            subject: Subject; None sets the registry's rule.

        Raises:
            SchemaRegistryError: See the class.
        """
        about = f"setting the compatibility rule of {subject or 'the registry'!r}"
        body = {"compatibility": level}
        self._http.request("PUT", _config_path(subject), body, about=about)


def _config_path(subject: str | None) -> str:
    return "/config" if subject is None else f"/config/{quote(subject, safe='')}"


def _normalize(normalize: bool) -> str:
    return "?normalize=true" if normalize else ""


def _body(schema: Schema) -> dict[str, object]:
    body: dict[str, object] = {"schema": schema.text}
    if schema.schema_type != "AVRO":
        body["schemaType"] = schema.schema_type
    if schema.references:
        body["references"] = [
            {"name": entry.name, "subject": entry.subject, "version": entry.version}
            for entry in schema.references
        ]
    return body


def _field(answer: object, name: str, kind: type[T], about: str) -> T:
    value = answer.get(name) if isinstance(answer, Mapping) else None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise SchemaRegistryError(f"{about}: the answer has no {name!r}; is this a registry?", 200)
    return value


def _schema_id(answer: object, about: str) -> int:
    schema_id = _field(answer, "id", int, about)
    if not 0 < schema_id <= SCHEMA_ID_MAX:
        raise SchemaRegistryError(f"{about}: the answer's id {schema_id} is invalid", 200)
    return schema_id


def _list(answer: object, kind: type[T], about: str) -> list[T]:
    if not isinstance(answer, list) or not all(isinstance(entry, kind) for entry in answer):
        raise SchemaRegistryError(f"{about}: the answer is not a list; is this a registry?", 200)
    return cast("list[T]", answer)


def _schema(answer: object, about: str) -> Schema:
    text = _field(answer, "schema", str, about)
    assert isinstance(answer, Mapping)
    schema_type = answer.get("schemaType", "AVRO")
    if schema_type not in ("AVRO", "JSON", "PROTOBUF"):
        raise SchemaRegistryError(
            f"{about}: schema type {schema_type!r} is not supported; only AVRO, JSON and PROTOBUF"
        )
    references = tuple(
        SchemaReference(
            _field(entry, "name", str, about),
            _field(entry, "subject", str, about),
            _field(entry, "version", int, about),
        )
        for entry in _list(answer.get("references") or [], object, about)
    )
    return Schema(text, cast("SchemaType", schema_type), references)


def _registered(answer: object, subject: str, about: str) -> RegisteredSchema:
    return RegisteredSchema(
        _schema(answer, about),
        _schema_id(answer, about),
        subject,
        _field(answer, "version", int, about),
    )
