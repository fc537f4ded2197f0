"""The commands ``onceflow state``: what workers have stored, without them.

Local state is a copy of the changelogs: to reset it costs a restore and loses nothing. With
``--everything`` the command also deletes the changelogs and the committed offsets, and the
application starts from the beginning.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onceflow.cli.base import Failure, Group
from onceflow.cli.connect import Connection, connected
from onceflow.cli.output import json_option, print_json, print_rows
from onceflow.cli.record_text import as_text
from onceflow.cli.values import require_consent

if TYPE_CHECKING:
    from onceflow.processors.stores.reading import Entry, Place

_directory = click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".onceflow"),
    show_default=True,
    help="Directory for state, of the application's settings.",
)


@click.group(cls=Group, epilog="Example: onceflow state list --state-dir /var/lib/app")
def state() -> None:
    """Show, export and reset the local state of processor apps."""


@state.command("list", epilog="Example: onceflow state list")
@_directory
@json_option
def list_states(state_dir: Path, as_json: bool) -> None:
    """List the stores of all apps in a state directory."""
    from onceflow.processors.errors import StateDirectoryError
    from onceflow.processors.stores.reading import StoredMap, places

    rows: list[dict[str, object]] = []
    for place in places(state_dir):
        where = {"app": place.app, "task": f"{place.part}-{place.partition}"}
        try:
            with StoredMap(place.path) as found:
                for name, mark in found.marks.stores.items():
                    offset = {"changelog": mark.changelog, "offset": mark.offset}
                    size = {"type": mark.text, "bytes": found.disk_bytes}
                    rows.append({**where, "store": name, **size, **offset, "problem": None})
        except StateDirectoryError as error:
            rows.append({**where, "problem": str(error)})
    if as_json:
        print_json(rows)
        return
    columns = ["app", "task", "store", "type", "bytes", "changelog", "offset", "problem"]
    print_rows(rows, columns, f"there is no state in {state_dir}")


@state.command("inspect", epilog="Example: onceflow state inspect billing add.total --key alice")
@click.argument("app")
@click.argument("store")
@click.option("--partition", type=click.IntRange(0), help="Only the task of this partition.")
@click.option("--key", help="Only values of this record key.")
@click.option("--max", "limit", type=click.IntRange(1), default=20, show_default=True)
@_directory
@json_option
def inspect(
    app: str,
    store: str,
    partition: int | None,
    key: str | None,
    limit: int,
    state_dir: Path,
    as_json: bool,
) -> None:
    """Show values of a store, which is named FUNCTION.STATE."""
    wanted = None if key is None else key.encode()
    rows = list(islice(_shown(state_dir, app, store, partition, wanted), limit))
    if as_json:
        print_json(rows)
    else:
        print_rows(rows, ["partition", "key", "inner", "value"], "nothing is stored")


@state.command("export", epilog="Example: onceflow state export billing add.total > totals.jsonl")
@click.argument("app")
@click.argument("store")
@click.option("--partition", type=click.IntRange(0), help="Only the task of this partition.")
@_directory
@click.option("--json", is_flag=True, expose_value=False, help="Lines of JSON are its only form.")
def export(app: str, store: str, partition: int | None, state_dir: Path) -> None:
    """Print all values of a store as lines of JSON."""
    for row in _shown(state_dir, app, store, partition, None):
        click.echo(json.dumps(row, ensure_ascii=False, allow_nan=False))


def _shown(
    state_dir: Path, app: str, store: str, partition: int | None, key: bytes | None
) -> Iterator[dict[str, object]]:
    from onceflow.processors.errors import StateDirectoryError
    from onceflow.processors.stores.reading import StoredMap

    known: set[str] = set()
    found_any = False
    for place in _of(state_dir, app):
        if partition is not None and place.partition != partition:
            continue
        try:
            with StoredMap(place.path) as found:
                known |= found.marks.stores.keys()
                if store not in found.marks.stores:
                    continue
                found_any = True
                for each in found.entries(store):
                    if key is None or each.key == key:
                        yield _row(place, each)
        except StateDirectoryError as error:
            raise Failure(str(error), 1) from error
    if not found_any:
        names = ", ".join(sorted(known)) or "none"
        raise Failure(f"{app} has no store {store!r} here; it has {names}", 3)


def _row(place: Place, entry: Entry) -> dict[str, object]:
    from onceflow.sdk.serde import to_json

    value: Any = as_text(entry.value) if entry.is_raw else json.loads(to_json(entry.value))
    row: dict[str, object] = {"partition": place.partition, "key": as_text(entry.key)}
    if entry.inner is not None:
        row["inner"] = as_text(entry.inner) if isinstance(entry.inner, bytes) else entry.inner
    return {**row, "value": value}


def _of(state_dir: Path, app: str) -> list[Place]:
    """The state of one application.

    Raises:
        Failure: There is none.
    """
    from onceflow.processors.stores.reading import places

    every = list(places(state_dir))
    found = [place for place in every if place.app == app]
    if not found:
        names = ", ".join(sorted({place.app for place in every})) or "none"
        raise Failure(f"there is no state of {app!r} in {state_dir}; there is state of: {names}", 3)
    return found


@state.command("reset", epilog="Example: onceflow state reset billing --yes")
@click.argument("app")
@click.option(
    "--everything",
    is_flag=True,
    help="Also delete the changelogs and committed offsets: the app starts from the beginning.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_directory
@json_option
@connected
def reset(
    connection: Connection, app: str, everything: bool, yes: bool, state_dir: Path, as_json: bool
) -> None:
    """Delete the local state of a stopped app; the next start restores it from the changelogs.

    The identity of this host's workers stays.
    """
    from onceflow.processors.errors import StateDirectoryError
    from onceflow.processors.stores.reading import StoredMap

    found = _of(state_dir, app)
    changelogs: set[str] = set()
    try:
        for place in found:
            with StoredMap(place.path) as stored:
                changelogs |= {mark.changelog for mark in stored.marks.stores.values()} - {""}
    except StateDirectoryError as error:
        raise Failure(str(error), 1) from error
    more = f", the topics {', '.join(sorted(changelogs))} and its offsets" if everything else ""
    require_consent(f"delete the local state of {app}{more}?", yes)
    if everything:
        _begin_anew(connection, {place.group for place in found}, changelogs)
    for place in found:
        shutil.rmtree(place.path)
    rows = [{"task": f"{place.part}-{place.partition}", "result": "deleted"} for place in found]
    if as_json:
        deleted = sorted(changelogs) if everything else []
        print_json({"app": app, "tasks": rows, "topics": deleted})
    else:
        print_rows(rows, ["task", "result"])


def _begin_anew(connection: Connection, groups: set[str], changelogs: set[str]) -> None:
    """Delete committed offsets first: a group with members refuses, and nothing is lost then."""
    from onceflow.sdk.errors import GroupIdNotFoundError, UnknownTopicOrPartitionError

    with connection.admin() as admin:
        for group in sorted(groups):
            with contextlib.suppress(GroupIdNotFoundError):
                admin.delete_groups([group])
        for topic in sorted(changelogs):
            with contextlib.suppress(UnknownTopicOrPartitionError):
                admin.delete_topics([topic])
