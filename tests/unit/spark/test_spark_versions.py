"""Goal: the page tells from which version of Spark on each part works, and the extra asks for it.

Method: PySpark's own docstrings say since when a name exists; the page's table is compared with
them, and its greatest version with the requirement in pyproject.toml.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from onceflow.spark_integration.apps.limits import STATE_API

ROOT = Path(__file__).resolve().parents[3]
ROW = re.compile(r"^\| [^|]+ \| `([\w.]+)` \| ([\d.]+) \|$", re.M)
SINCE = re.compile(r"versionadded:: ([\d.]+)")


def table() -> dict[str, str]:
    text = (ROOT / "docs" / "spark.md").read_text()
    found = re.search(r"<!-- versions of spark -->\n(.*?)<!-- end -->", text, re.S)
    assert found is not None
    return dict(ROW.findall(found[1]))


def named(path: str) -> object:
    """What a dotted name stands for."""
    words = path.split(".")
    for count in range(len(words), 0, -1):
        try:
            found: object = importlib.import_module(".".join(words[:count]))
        except ModuleNotFoundError:
            continue
        for word in words[count:]:
            found = getattr(found, word)
        return found
    raise LookupError(path)


@pytest.mark.parametrize(("name", "since"), table().items())
def test_the_table_tells_since_when_spark_has_what_is_used(name: str, since: str) -> None:
    told = SINCE.findall(named(name).__doc__ or "")
    assert told, f"PySpark does not say since when there is {name}"
    assert told[0] == since


def asked(package: str) -> str:
    """What the extra asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = project["optional-dependencies"]["spark"]
    (found,) = [each for each in extra if each.startswith(package)]
    return str(found)


def test_the_extra_asks_for_the_newest_of_them() -> None:
    least = max(tuple(map(int, since.split("."))) for since in table().values())
    assert asked("pyspark") == f"pyspark>={least[0]}.{least[1]}"


def test_the_extra_asks_for_the_protobuf_that_pyspark_needs_for_state() -> None:
    """PySpark does not ask for it; its module refuses an older one than it was made for."""
    spec = importlib.util.find_spec(STATE_API)
    assert spec is not None
    assert spec.origin is not None
    made_for = re.search(r"PUBLIC,\s*(\d+),\s*(\d+),\s*(\d+)", Path(spec.origin).read_text())
    assert made_for is not None
    assert asked("protobuf") == f"protobuf>={'.'.join(made_for.groups())}"
