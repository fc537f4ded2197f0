"""Goal: the blocking faces are what their tool makes of the asyncio ones, and leave nothing out.

Method: the modules are made again and compared; the tool is given a small class whose calls wait,
do not wait, and wait more than once; the public names of both faces are compared.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import blocking_faces
import house_rules
import pytest

from onceflow.sdk import Admin, AsyncAdmin, AsyncConsumer, AsyncProducer, Consumer, Producer
from onceflow.transactions import AsyncTransactionSession, TransactionSession
from onceflow.transactions.sinks import AsyncSinkSession, SinkSession

ASYNCIO = '''
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from decimal import Decimal

LIMIT_MS = 5


class AsyncThing:
    """See AsyncThing."""

    async def close(self) -> None:
        """By hand."""

    @property
    def name(self) -> str:
        """Its name."""
        return self._name

    # Counted in the loop.
    def count(self, what: Iterable[int]) -> int:
        """Count."""
        return len(list(what))

    async def pay(self, sum_: Decimal, *, timeout_ms: int = LIMIT_MS) -> None:
        """Pay, as `AsyncThing.count` counts."""
        first = await self._purse.take(sum_)  # AsyncThing keeps the first.
        await self._purse.give(first, (await_ := 1))

    async def _hidden(self) -> Sequence[int]:
        return ()
'''


def face(folder: Path, handed_to: str) -> blocking_faces.Face:
    source = folder / "thing.py"
    source.write_text(ASYNCIO)
    return blocking_faces.Face(
        source=str(source),
        source_class="AsyncThing",
        written=str(folder / "written.py"),
        written_class="ThingCalls",
        text="Calls.",
        imports=(),
        attributes=("_portal: object",),
        renamed={"AsyncThing": "Thing"},
        by_hand=frozenset({"close"}),
        handed_to=handed_to,
        in_loop=frozenset({"count"}),
    )


def test_the_written_modules_are_up_to_date() -> None:
    for name, text in blocking_faces.modules().items():
        assert (house_rules.ROOT / name).read_text() == text, "run make fix"


def test_calls_are_handed_on_by_way_of_the_loop_where_they_wait(tmp_path: Path) -> None:
    text = blocking_faces.page(face(tmp_path, "self._async"))
    assert "return self._async.name\n" in text
    assert "return self._portal.run(lambda: self._async.count(what))\n" in text
    assert (
        "        self._portal.call(lambda: self._async.pay(sum_, timeout_ms=timeout_ms))\n" in text
    )
    assert "def pay(self, sum_: Decimal, *, timeout_ms: int = LIMIT_MS) -> None:" in text
    assert '"""Pay, as `Thing.count` counts."""' in text


def test_bodies_are_copied_and_every_await_crosses_into_the_loop(tmp_path: Path) -> None:
    text = blocking_faces.page(face(tmp_path, ""))
    assert (
        "first = self._portal.call(lambda: self._purse.take(sum_))  # Thing keeps the first."
        in text
    )
    assert "self._portal.call(lambda: self._purse.give(first, (await_ := 1)))" in text
    assert "async" not in text.partition("class ")[2]


def test_what_is_written_imports_what_it_mentions_and_nothing_else(tmp_path: Path) -> None:
    head = blocking_faces.page(face(tmp_path, "self._async")).partition("class ")[0]
    assert "import Iterable" in head
    assert "    from decimal import Decimal" in head
    assert "import LIMIT_MS" in head
    assert "Sequence" not in head


def test_a_misspelt_call_and_an_await_within_an_await_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "thing.py"
    wrong = face(tmp_path, "")
    source.write_text(ASYNCIO.replace("def close", "def shut"))
    with pytest.raises(SystemExit, match="has no close"):
        blocking_faces.page(wrong)
    source.write_text(ASYNCIO.replace("give(first,", "give(await first,"))
    with pytest.raises(AssertionError, match="an await within another one"):
        blocking_faces.page(wrong)


@pytest.mark.parametrize(
    ("asyncio_face", "blocking_face", "only_asyncio", "only_blocking"),
    [
        (AsyncAdmin, Admin, {"start", "stop"}, set()),
        (AsyncConsumer, Consumer, {"start", "stop", "engine"}, set()),
        (AsyncProducer, Producer, {"start", "stop", "send_and_wait"}, set()),
        (AsyncTransactionSession, TransactionSession, {"start"}, set()),
        (AsyncSinkSession, SinkSession, {"start"}, set()),
    ],
)
def test_both_faces_have_the_same_calls_with_the_same_arguments(
    asyncio_face: type, blocking_face: type, only_asyncio: set[str], only_blocking: set[str]
) -> None:
    one, other = public(asyncio_face), public(blocking_face)
    assert one.keys() - other.keys() == only_asyncio
    assert other.keys() - one.keys() == only_blocking
    for name in one.keys() & other.keys():
        assert one[name] == other[name], name


def public(face: type) -> dict[str, list[str]]:
    found = {}
    for name, member in inspect.getmembers(face):
        if not name.startswith("_"):
            function = callable(member)
            found[name] = list(inspect.signature(member).parameters) if function else []
    return found
