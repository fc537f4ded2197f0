"""What the broker knows of its cluster beside topics: one small file, written whole at each change.

It keeps sections by name (ACLs, users, quotas, changed settings, levels of features) and decides
how they survive a crash. What a section holds is its owner's business, who must check it as well.
"""

from __future__ import annotations

import json
import zlib
from typing import TypeAlias

from onceflow.broker_lite.log import DataFolderError, Storage

CLUSTER_METADATA_FILE = "cluster-metadata.json"

FORMAT_VERSION = 1

SCRAM_SECTION = "scram-users"
"""Section of the users of SCRAM; they are not even read where there are none."""

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
"""What can be kept; names are text."""


class ClusterMetadata:
    """Sections of cluster metadata, in memory and in the root of the data folder.

    A change is on the disk, with its folder synced, when :meth:`save` returns: what it decides
    (who may do what) must not come back as it was before. All sections are one file, so that a
    crash leaves each of them either before or after a change.

    Args:
        storage: The data folder, which this process has locked.

    Raises:
        DataFolderError: The file is damaged or of a later form. Nothing is guessed: without
            its ACLs and users, a broker would be open.
    """

    __slots__ = ("_sections", "_storage")

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        data = storage.read_bytes(CLUSTER_METADATA_FILE)
        self._sections = {} if data is None else _parse(data)

    def section(self, name: str) -> dict[str, Json]:
        """A copy of a section, empty if it was never saved."""
        found = json.loads(self._sections.get(name, "{}"))
        assert isinstance(found, dict)
        return found

    def save(self, name: str, value: dict[str, Json]) -> None:
        """Replace a section; it is safe on the disk when this returns.

        Args:
            name: Which section.
            value: Its whole content; an empty one removes the section.

        Raises:
            ValueError: The content is not JSON, and would come back as something else.
            OSError: The file cannot be written. The section counts as it was; a later start may
                find either.
        """
        text = _render(value)
        if json.loads(text) != value:
            raise ValueError(f"section {name} would not come back as it is: {value!r}")
        sections = {kept: body for kept, body in self._sections.items() if kept != name}
        if value:
            sections[name] = text
        self._storage.replace(CLUSTER_METADATA_FILE, _file(sections), durable=True)
        self._sections = sections


def _render(value: Json) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _file(sections: dict[str, str]) -> bytes:
    """Bytes of the file: version, checksum of all sections, and the sections."""
    content = {name: json.loads(text) for name, text in sections.items()}
    whole = {"version": FORMAT_VERSION, "checksum": _checksum(content), "sections": content}
    return (json.dumps(whole, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _checksum(content: dict[str, Json]) -> int:
    # Of the values and not of the bytes, so that a tool may reformat the file.
    return zlib.crc32(_render(content).encode())


def _parse(data: bytes) -> dict[str, str]:
    """Sections of a file.

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
        f"{CLUSTER_METADATA_FILE} has form {version!r} and this broker reads {FORMAT_VERSION}: "
        "start it with the later broker that wrote the file"
    )
