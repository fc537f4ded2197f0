"""Writes the blocking faces of clients from the asyncio ones.

``python tools/blocking_faces.py`` writes a module for each entry of ``FACES``; ``--check`` says
whether they are up to date. Signatures and docstrings are copied. What a call does comes from the
entry: most are handed on to another object, by way of the client's loop where they wait; without
such an object the body is copied, and each ``await`` in it crosses into the loop.

Calls that differ between the faces are written by hand in a class derived from the written one,
and their names stand in the entry.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
Method = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Face:
    """One module to be written.

    Attributes:
        source: Module of the asyncio class.
        source_class: Its name.
        written: Module to be written.
        written_class: Its class.
        text: Docstring of both.
        imports: Imports beside those of the source that the calls need.
        attributes: Annotations of what the calls use.
        renamed: Words that are called otherwise in the blocking face, in docstrings and code.
        by_hand: Calls that are left out.
        handed_to: Object that has the same calls; empty to copy bodies.
        waits: How a coroutine ``{call}`` is waited for.
        in_loop: Calls that do not wait but belong into the loop's thread.
    """

    source: str
    source_class: str
    written: str
    written_class: str
    text: str
    imports: tuple[str, ...]
    attributes: tuple[str, ...]
    renamed: dict[str, str]
    by_hand: frozenset[str]
    handed_to: str = ""
    waits: str = "self._portal.call(lambda: {call})"
    in_loop: frozenset[str] = field(default_factory=frozenset)


PORTAL = "from onceflow.sdk.sync.portal import Portal"

ADMIN_SUBJECTS = {
    "topics": "Topic",
    "configs": "Config",
    "groups": "Group",
    "offsets": "Offset",
    "transactions": "Transaction",
    "security": "Security",
    "cluster": "Cluster",
}
"""Modules of the admin client, and the word in the names of their classes."""


def _admin_face(subject: str, word: str) -> Face:
    return Face(
        source=f"sdk/aio/admin/{subject}.py",
        source_class=f"Async{word}Calls",
        written=f"sdk/sync/admin_calls/{subject}.py",
        written_class=f"{word}Calls",
        text=f"The blocking admin client's calls of the subject {subject}.",
        imports=("from onceflow.sdk.aio.admin.admin import AsyncAdmin", PORTAL),
        attributes=("_async: AsyncAdmin", "_portal: Portal"),
        renamed={"AsyncAdmin": "Admin"},
        by_hand=frozenset(),
        handed_to="self._async",
    )


FACES = (
    *(_admin_face(subject, word) for subject, word in ADMIN_SUBJECTS.items()),
    Face(
        source="sdk/aio/consume/consumer.py",
        source_class="AsyncConsumer",
        written="sdk/sync/consumer_calls.py",
        written_class="ConsumerCalls",
        text="The calls of the blocking consumer that run no callbacks and return no records.",
        imports=("from onceflow.sdk.aio.consume.consumer import AsyncConsumer", PORTAL),
        attributes=("_async: AsyncConsumer[object, object]", "_portal: Portal"),
        renamed={"AsyncConsumer": "Consumer"},
        by_hand=frozenset(
            {
                *("engine", "start", "stop", "close"),
                *("subscribe", "unsubscribe", "poll", "poll_columns", "wakeup"),
            }
        ),
        handed_to="self._async",
        in_loop=frozenset(
            {
                *("assign", "seek", "seek_to_beginning", "seek_to_end", "pause", "resume"),
                "commit_async",
            }
        ),
    ),
    Face(
        source="sdk/aio/produce/producer.py",
        source_class="AsyncProducer",
        written="sdk/sync/producer_calls.py",
        written_class="ProducerCalls",
        text="The calls of the blocking producer beside sending.",
        imports=(
            "from onceflow.sdk.aio.produce.engine import ProducerEngine",
            "from onceflow.sdk.aio.produce.transaction_driver import TransactionDriver",
            "from onceflow.sdk.core.produce.batch import DeliveryHandle",
            "from onceflow.sdk.sync.delivery import Deliveries, Delivery",
            PORTAL,
        ),
        attributes=(
            "_config: ProducerConfig",
            "_engine: ProducerEngine[Delivery]",
            "_transactions: TransactionDriver[Delivery]",
            "_portal: Portal",
        ),
        renamed={
            "AsyncProducer": "Producer",
            "AsyncDeliveries": "Deliveries",
            "``start``": "the constructor",
            "self._engine.check_usable()": "self._portal.check_usable()",
        },
        by_hand=frozenset(
            {
                *("start", "stop", "close", "send", "send_and_wait", "send_many"),
                *("partition_for", "transaction"),
            }
        ),
    ),
    Face(
        source="transactions/session.py",
        source_class="AsyncTransactionSession",
        written="transactions/session_calls.py",
        written_class="SessionCalls",
        text="The calls of the blocking session beside reading and sending.",
        imports=(
            "from onceflow.transactions.colour import run_blocking",
            "from onceflow.transactions.session_core import SessionCore",
        ),
        attributes=("_core: SessionCore",),
        renamed={"AsyncTransactionSession": "TransactionSession"},
        by_hand=frozenset(
            {
                *("start", "close", "poll", "poll_result", "records"),
                *("send", "send_many", "unit"),
            }
        ),
        handed_to="self._core",
        waits="run_blocking({call})",
    ),
    Face(
        source="transactions/sinks/session.py",
        source_class="AsyncSinkSession",
        written="transactions/sinks/session_calls.py",
        written_class="SinkSessionCalls",
        text="The calls of the blocking session with a sink beside reading.",
        imports=(
            "from onceflow.transactions.colour import run_blocking",
            "from onceflow.transactions.sinks.session_core import SinkSessionCore",
        ),
        attributes=("_core: SinkSessionCore",),
        renamed={"AsyncSinkSession": "SinkSession"},
        by_hand=frozenset({"start", "close", "poll"}),
        handed_to="self._core",
        waits="run_blocking({call})",
    ),
)


def methods_of(face: Face, tree: ast.Module) -> list[Method]:
    """The public calls of the asyncio class that are not written by hand."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == face.source_class:
            found = [each for each in node.body if isinstance(each, Method)]
            unknown = face.by_hand - {each.name for each in found}
            if unknown:
                raise SystemExit(f"{face.source_class} has no {', '.join(sorted(unknown))}")
            return [
                each
                for each in found
                if not each.name.startswith("_") and each.name not in face.by_hand
            ]
    raise SystemExit(f"{face.source} has no class {face.source_class}")


def arguments(method: Method) -> str:
    """What a call hands on, each by the kind of its parameter."""
    given = method.args
    assert not given.vararg, f"{method.name}: arguments by position cannot be handed on"
    assert not given.kwarg, f"{method.name}: further keywords cannot be handed on"
    names = [each.arg for each in (*given.posonlyargs, *given.args)][1:]
    return ", ".join([*names, *(f"{each.arg}={each.arg}" for each in given.kwonlyargs)])


def handed_on(face: Face, method: Method) -> str:
    """The body of a call that another object carries out."""
    is_property = any(ast.unparse(each) == "property" for each in method.decorator_list)
    call = f"{face.handed_to}.{method.name}"
    if not is_property:
        call += f"({arguments(method)})"
    if isinstance(method, ast.AsyncFunctionDef):
        call = face.waits.format(call=call)
    elif method.name in face.in_loop:
        call = f"self._portal.run(lambda: {call})"
    gives = method.returns is not None and ast.unparse(method.returns) != "None"
    return f"        {'return ' if gives else ''}{call}\n"


class Source:
    """The text of a module, cut by the places of its nodes."""

    def __init__(self, text: str) -> None:
        self.lines = text.encode().splitlines(keepends=True)

    def between(self, begin: tuple[int, int], end: tuple[int, int]) -> str:
        """The text from a place, as line and column in bytes, up to another one."""
        first, last = begin[0] - 1, end[0] - 1
        if first == last:
            return self.lines[first][begin[1] : end[1]].decode()
        middle = b"".join(self.lines[first + 1 : last])
        return (self.lines[first][begin[1] :] + middle + self.lines[last][: end[1]]).decode()

    def head(self, method: Method) -> str:
        """Decorators, signature and docstring."""
        assert ast.get_docstring(method), f"{method.name} has no docstring"
        first = min([method.lineno, *(each.lineno for each in method.decorator_list)])
        text = self.between((first, 0), ((method.body[0].end_lineno or 0) + 1, 0))
        return re.sub(r"^    async def ", "    def ", text, flags=re.M)

    def body(self, face: Face, method: Method) -> str:
        """The rest, with what is awaited carried out in the loop."""
        end = (method.end_lineno or 0, method.end_col_offset or 0)
        place = ((method.body[0].end_lineno or 0) + 1, 0)
        text = ""
        for node in self._awaits(method):
            text += self.between(place, (node.lineno, node.col_offset))
            inner = self.between(_begin(node.value), _end(node.value))
            text += face.waits.format(call=inner)
            place = _end(node)
        return text + self.between(place, end) + "\n"

    def _awaits(self, method: Method) -> list[ast.Await]:
        found = [node for node in ast.walk(method) if isinstance(node, ast.Await)]
        for node in found:
            inner = [each for each in ast.walk(node.value) if isinstance(each, ast.Await)]
            assert not inner, f"{method.name}: an await within another one"
        return sorted(found, key=_begin)


def _begin(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


def imports_of(tree: ast.Module, used: set[str]) -> Iterator[str]:
    """The source's imports of some names, those for type checkers alone at the end."""
    late = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom | ast.Import):
            yield from _import_lines(node, used)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for each in node.body:
                assert isinstance(each, ast.ImportFrom | ast.Import)
                late += _import_lines(each, used)
    if late:
        yield "from typing import TYPE_CHECKING"
        yield "if TYPE_CHECKING:"
        yield from (f"    {line}" for line in late)


def _import_lines(node: ast.ImportFrom | ast.Import, used: set[str]) -> Iterator[str]:
    for alias in node.names:
        bound = alias.asname or alias.name
        if bound in used:
            named = alias.name + (f" as {alias.asname}" if alias.asname else "")
            if isinstance(node, ast.Import):
                yield f"import {named}"
            elif node.module != "__future__":
                yield f"from {node.module} import {named}"


def own_names(face: Face, tree: ast.Module, used: set[str]) -> Iterator[str]:
    """Imports of what the source's module itself defines and the calls mention."""
    module = "onceflow." + face.source.removesuffix(".py").replace("/", ".")
    for node in tree.body:
        target: ast.AST | None = None
        if isinstance(node, ast.Assign):
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign):
            target = node.target
        elif isinstance(node, ast.ClassDef) and node.name != face.source_class:
            target = ast.Name(node.name)
        if isinstance(target, ast.Name) and target.id in used:
            yield f"from {module} import {target.id}"


def renamed(face: Face, text: str) -> str:
    """The text in the words of the blocking face."""
    for old, new in face.renamed.items():
        text = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _, new=new: new, text)
    return text


def page(face: Face) -> str:
    """A whole module."""
    text = (ROOT / face.source).read_text()
    tree, source = ast.parse(text), Source(text)
    calls = ""
    for method in methods_of(face, tree):
        body = handed_on(face, method) if face.handed_to else source.body(face, method)
        calls += "\n" + renamed(face, source.head(method) + body)
    attributes = "".join(f"    {each}\n" for each in face.attributes)
    of_class = f'class {face.written_class}:\n    """{face.text}"""\n\n{attributes}{calls}'
    nodes = ast.walk(ast.parse(of_class))
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    lines = [*face.imports, *own_names(face, tree, used), *imports_of(tree, used)]
    return (
        f'"""Blocking calls, written from ``{face.source}``; do not edit, run ``make fix``.\n\n'
        f"{face.text}\nThe tool is ``tools/blocking_faces.py``.\n"
        '"""\n\nfrom __future__ import annotations\n\n' + "\n".join(lines) + "\n\n\n" + of_class
    )


def formatted(text: str, path: Path) -> str:
    """The text as ``ruff`` leaves it."""
    tool = str(Path(sys.executable).with_name("ruff"))
    for command in (["check", "--fix", "--select", "I,F401,F811"], ["format"]):
        done = subprocess.run(
            [tool, *command, "--quiet", "--stdin-filename", str(path), "-"],
            input=text, capture_output=True, text=True, check=True, cwd=ROOT,
        )  # fmt: skip
        text = done.stdout
    return text


def modules(faces: Iterable[Face] = FACES) -> dict[str, str]:
    """The modules that are written, by path."""
    return {face.written: formatted(page(face), ROOT / face.written) for face in faces}


def main() -> None:
    """Write or check."""
    for name, text in modules().items():
        path = ROOT / name
        if "--check" not in sys.argv:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{name} is out of date: run python tools/blocking_faces.py")


if __name__ == "__main__":
    main()
