"""Goal: the path of a sent record is the same program compiled and as plain Python.

Method: random calls to an accumulator as it is in use here and to one made of the sources: the same
answers, the same memory, the same batches. Where nothing is compiled both are plain.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import plain_modules
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceflow.sdk.core.produce import accumulator
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.sync import delivery

batch_source, accumulator_source = plain_modules.produce_batch, plain_modules.accumulator


class PlainMaker(batch_source.HandleMaker):  # type: ignore[misc, name-defined]
    def make(self, batch: object, index: int, timestamp_ms: int) -> object:
        return batch_source.DeliveryHandle(batch, index, timestamp_ms)


data = st.none() | st.binary(max_size=90)
odd = st.sampled_from(["text", 5, bytearray(b"b"), memoryview(b"m")])
headers = st.lists(st.tuples(st.text(max_size=5), data), max_size=2)
steps = st.lists(
    st.tuples(st.just("plain"), data | odd, data | odd, st.floats(0, 2e9))
    | st.tuples(st.just("append"), st.integers(-1, 2), data, data, headers, st.integers(-1, 9)),
    max_size=60,
)


def outcome(module: ModuleType, maker: object, calls: Sequence[tuple[Any, ...]]) -> list[object]:
    """What each call answers and leaves behind, and the bytes of all batches."""
    woken: list[int] = []
    at = module.Accumulator(
        lock=threading.Lock(),
        clock_ms=lambda: 7,
        random=lambda: 0.5,
        handles=maker,
        on_ready=lambda: woken.append(1),
        batch_size=400,
        linger_ms=5,
        max_request_size=600,
        buffer_memory=1_500,
        codec=0,
    )
    state = at.topic_state("t", 3, range(3))
    found: list[object] = []
    for kind, *arguments in calls:
        try:
            if kind == "plain":
                handle = at.append_plain("t", *arguments)
            else:
                handle = at.append(state, *arguments)
        except KafkaError as error:
            found.append(str(error))
            continue
        if handle is not None:
            found.append((handle.partition, handle._index, handle._timestamp_ms, handle.done()))
        found.append((handle is None, at.memory_used, len(woken), at.batch_sealed))
    for waiting in at.remove_open_and_sealed():
        waiting.base_sequence = 3
        waiting.build(False)
        found.append((waiting.partition, waiting.count, bytes(waiting.data)))
    return found


@settings(max_examples=50)
@given(steps)
def test_both_answer_alike_and_make_the_same_batches(calls: list[tuple[Any, ...]]) -> None:
    compiled = outcome(accumulator, delivery.DeliveryMaker(), calls)
    assert outcome(accumulator_source, PlainMaker(), calls) == compiled
    with pytest.MonkeyPatch.context() as patch:
        plain_modules.use("plain", patch)
        assert outcome(accumulator_source, PlainMaker(), calls) == compiled


@pytest.mark.parametrize("engine", plain_modules.ENGINES)
def test_a_record_that_cannot_be_written_is_refused_and_leaves_the_lock_free(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [("append", 0, b"k", b"v", [], 1 << 63), ("append", 0, b"k", b"v", [("name", 5)], 1)]
    calls = [("append", 0, b"k", b"v", [], 1), *wrong, ("append", 0, b"k", b"w", [], 1)]
    plain_modules.use(engine, monkeypatch)
    cases = [(accumulator_source, PlainMaker())]
    if engine == "in use":
        cases.append((accumulator, delivery.DeliveryMaker()))
    for module, maker in cases:
        found = outcome(module, maker, calls)
        assert sum(isinstance(each, str) for each in found) == len(wrong)
        *_, (_, count, _) = found  # type: ignore[misc]
        assert count == 2
