"""AsyncSchemaRegistry: the calls of ``SchemaRegistry`` as coroutines."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

from onceflow.sdk.aio.connection.lookups import in_thread
from onceflow.sdk.schema_registry.client import SchemaRegistry
from onceflow.sdk.schema_registry.keywords import SchemaRegistryKeywords
from onceflow.sdk.schema_registry.model import Compatibility, RegisteredSchema, Schema


class AsyncSchemaRegistry:
    """A client of a schema registry for asyncio; it raises what ``SchemaRegistry`` raises.

    Each request runs in its own short-lived thread. Serdes use the ``blocking`` client and so share
    its caches; producers and consumers run their requests without blocking the loop.
    """

    def __init__(
        self,
        url: str | Sequence[str] = "http://localhost:8081",
        **settings: Unpack[SchemaRegistryKeywords],
    ) -> None:
        """Make a client, as ``SchemaRegistry``; no request is sent."""
        self._blocking = SchemaRegistry(url, **settings)

    @property
    def blocking(self) -> SchemaRegistry:
        """The blocking client that sends the requests."""
        return self._blocking

    async def close(self) -> None:
        """Do nothing: the client holds no connection between calls."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def register(self, subject: str, schema: Schema, *, normalize: bool = False) -> int:
        """See ``SchemaRegistry.register``."""
        return await in_thread(
            lambda: self._blocking.register(subject, schema, normalize=normalize)
        )

    async def lookup(
        self, subject: str, schema: Schema, *, normalize: bool = False
    ) -> RegisteredSchema:
        """See ``SchemaRegistry.lookup``."""
        return await in_thread(lambda: self._blocking.lookup(subject, schema, normalize=normalize))

    async def schema(self, schema_id: int, *, serialized: bool = False) -> Schema:
        """See ``SchemaRegistry.schema``."""
        return await in_thread(lambda: self._blocking.schema(schema_id, serialized=serialized))

    async def latest(self, subject: str) -> RegisteredSchema:
        """See ``SchemaRegistry.latest``."""
        return await in_thread(lambda: self._blocking.latest(subject))

    async def version(self, subject: str, version: int) -> RegisteredSchema:
        """See ``SchemaRegistry.version``."""
        return await in_thread(lambda: self._blocking.version(subject, version))

    async def versions(self, subject: str) -> list[int]:
        """See ``SchemaRegistry.versions``."""
        return await in_thread(lambda: self._blocking.versions(subject))

    async def subjects(self) -> list[str]:
        """See ``SchemaRegistry.subjects``."""
        return await in_thread(self._blocking.subjects)

    async def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """See ``SchemaRegistry.delete_subject``."""
        return await in_thread(lambda: self._blocking.delete_subject(subject, permanent=permanent))

    async def is_compatible(self, subject: str, schema: Schema, version: int | None = None) -> bool:
        """See ``SchemaRegistry.is_compatible``."""
        return await in_thread(lambda: self._blocking.is_compatible(subject, schema, version))

    async def compatibility(self, subject: str | None = None) -> str:
        """See ``SchemaRegistry.compatibility``."""
        return await in_thread(lambda: self._blocking.compatibility(subject))

    async def set_compatibility(self, level: Compatibility, subject: str | None = None) -> None:
        """See ``SchemaRegistry.set_compatibility``."""
        await in_thread(lambda: self._blocking.set_compatibility(level, subject))
