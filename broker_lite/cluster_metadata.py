"""The cluster's metadata beside topics, in one small file that each change writes as a whole.

It has sections by name (ACLs, users, quotas, changed settings, levels of features) and decides how
they survive a crash. The owner of a section decides on its content and must check it.
"""

from __future__ import annotations

import json
import zlib
from typing import TypeAlias

from onceflow.broker_lite.log import DataFolderError, Storage

CLUSTER_METADATA_FILE = "cluster-metadata.json"

FORMAT_VERSION = 1

SCRAM_SECTION = "scram-users"
"""Section of the users of SCRAM, which are not loaded if there are none."""

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
"""Content of a section; names are strings."""


class ClusterMetadata:
    """Sections of cluster metadata, in memory and in the root of the data folder.

    A change, for example of ACLs, is synced to the disk when :meth:`save` returns, so that no later
    start undoes it. All sections are in one file, so that a crash leaves each of them either before
    or after a change.

    Args:
        storage: The data folder, locked by this process.

    Raises:
        DataFolderError: The file is damaged or of a later version. Without its ACLs and users, the
            broker would be open to all clients.
    """

    __slots__ = ("_sections", "_storage")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        data = storage.read_bytes(CLUSTER_METADATA_FILE)
        self._sections = {} if data is None else _parse(data)

    def section(self, name: str) -> dict[str, Json]:
        """Return a copy of a section, empty if it was never saved."""
        found = json.loads(self._sections.get(name, "{}"))
        assert isinstance(found, dict)
        return found

    def save(self, name: str, value: dict[str, Json]) -> None:
        """Replace a section; it is synced to the disk when this returns.

        Args:
            name: Name of the section.
            value: Its whole content; an empty one removes the section.

        Raises:
            ValueError: The content is not JSON, and a later start would read another value.
            OSError: The file cannot be written. The section is unchanged here; a later start may
                find either.
        """
        text = _render(value)
        if json.loads(text) != value:
            raise ValueError(f"section {name} cannot be stored as JSON without a change: {value!r}")
        sections = {kept: body for kept, body in self._sections.items() if kept != name}
        if value:
            sections[name] = text
        self._storage.replace(CLUSTER_METADATA_FILE, _file(sections), durable=True)
        self._sections = sections


def _render(value: Json) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _file(sections: dict[str, str]) -> bytes:
    """Return the bytes of the file: version, checksum of all sections, and the sections."""
    content = {name: json.loads(text) for name, text in sections.items()}
    whole = {"version": FORMAT_VERSION, "checksum": _checksum(content), "sections": content}
    return (json.dumps(whole, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _checksum(content: dict[str, Json]) -> int:
    # A checksum of the values, not of the bytes, so that a tool may reformat the file.
    return zlib.crc32(_render(content).encode())


def _parse(data: bytes) -> dict[str, str]:
    """Return the sections of a file.

    Raises:
        DataFolderError: As for the class.
    """
    try:
        whole = json.loads(data)
        version = whole["version"]
        if version == FORMAT_VERSION:
            checksum, content = whole["checksum"], whole["sections"]
            if _checksum(content) != checksum:
                raise ValueError("the checksum differs")
            return {name: _render(dict(value)) for name, value in content.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataFolderError(
            f"{CLUSTER_METADATA_FILE} is damaged ({error!r}); it holds ACLs, users, quotas and "
            "changed settings. Restore it from a copy, or remove it to start without them"
        ) from None
    raise DataFolderError(
        f"{CLUSTER_METADATA_FILE} has version {version!r} and this broker reads {FORMAT_VERSION}: "
        "start it with the later broker that wrote the file"
    )
