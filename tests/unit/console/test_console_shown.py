"""Goal: keys and values become text that can be read, and none is too long for a page.

Method: bytes of each format, and bytes that look like another one.
"""

from __future__ import annotations

import base64
import json

import msgspec
import pytest

from onceflow.console.history import NAMES_MAX, RATE_MS, SAMPLES_MAX, History
from onceflow.console.shown import SHOWN_BYTES_MAX, shown


@pytest.mark.parametrize(
    ("data", "form", "text"),
    [
        (b"", "text", ""),
        (b"plain", "text", "plain"),
        (b"12", "text", "12"),
        ("größer".encode(), "text", "größer"),
        (b"{broken", "text", "{broken"),
        (b"\xff\xfe", "base64", base64.b64encode(b"\xff\xfe").decode()),
        (b"\x00\x00\x00\x01\x02\x08abc", "schema 258", base64.b64encode(b"\x08abc").decode()),
    ],
)
def test_formats(data: bytes, form: str, text: str) -> None:
    assert shown(data) == {"format": form, "text": text, "bytes": len(data), "cut": False}


@pytest.mark.parametrize("value", [{"a": [1, 2]}, [1, "x"], {"b": b"\xff"}])
def test_message_pack_becomes_json(value: object) -> None:
    found = shown(msgspec.msgpack.encode(value))
    assert found is not None
    assert found["format"] == "msgpack"
    assert json.loads(str(found["text"])) == json.loads(msgspec.json.encode(value))


def test_json_is_indented() -> None:
    found = shown(b'{"b":1,"a":[true]}')
    assert found is not None
    assert (found["format"], found["text"]) == (
        "json",
        '{\n  "b": 1,\n  "a": [\n    true\n  ]\n}',
    )


def test_nothing_stays_nothing() -> None:
    assert shown(None) is None


@pytest.mark.parametrize("letter", ["x", "ä", "€", "𝄞"])
def test_a_long_value_is_cut_between_characters(letter: str) -> None:
    data = (letter * (SHOWN_BYTES_MAX + 1)).encode()
    found = shown(data)
    assert found is not None
    assert (found["format"], found["bytes"], found["cut"]) == ("text", len(data), True)
    assert set(str(found["text"])) == {letter}
    assert len(str(found["text"]).encode()) > SHOWN_BYTES_MAX - 4


def test_a_long_value_of_bytes_is_cut() -> None:
    found = shown(b"\xff" * (2 * SHOWN_BYTES_MAX))
    assert found is not None
    assert (found["format"], found["cut"]) == ("base64", True)
    assert base64.b64decode(str(found["text"])) == b"\xff" * SHOWN_BYTES_MAX


def test_deep_json_is_text() -> None:
    found = shown(b"[" * 10_000)
    assert found is not None
    assert found["format"] == "text"


def test_lag_is_remembered_within_bounds() -> None:
    history = History()
    for number in range(SAMPLES_MAX + 10):
        history.add(number, {"busy": number, f"once {number}": 1})
    assert history.of("busy")[0] == (10, 10)
    assert len(history.of("busy")) == SAMPLES_MAX
    assert history.of("once 0") == []
    assert history.of(f"once {SAMPLES_MAX + 9}") == [(SAMPLES_MAX + 9, 1)]
    kept = sum(bool(history.of(f"once {number}")) for number in range(SAMPLES_MAX + 10))
    assert kept == NAMES_MAX - 1


def test_what_json_cannot_hold_is_shown_all_the_same() -> None:
    found = shown(msgspec.msgpack.encode({"x": float("nan")}))
    assert found is not None
    assert (found["format"], found["text"]) == ("msgpack", "{'x': nan}")


def test_a_rate_is_that_of_the_last_half_minute() -> None:
    history = History()
    history.add(0, {"t": 5})
    assert (history.rate("t"), history.rate("other")) == (None, None)
    history.add(1_000, {"t": 105})
    assert history.rate("t") == 100
    history.add(1_000 + RATE_MS, {"t": 105})
    assert history.rate("t") == 0
    history.add(1_000 + 10 * RATE_MS, {"t": 105 + 9 * 30})
    assert history.rate("t") == 1, "samples that are further apart"
    history.add(2_000 + 10 * RATE_MS, {"t": 0})
    assert history.rate("t") == 0, "made anew"
