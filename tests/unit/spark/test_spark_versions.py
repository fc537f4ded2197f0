"""Goal: the page tells from which version of Spark on each part works, and the extra asks for it.

Method: PySpark's own docstrings say since when a name exists; the page's table is compared with
them, and its greatest version with the requirement in pyproject.toml.
"""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import pytest

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


def test_the_extra_asks_for_the_newest_of_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (asked,) = [
        each for each in project["optional-dependencies"]["spark"] if each.startswith("pyspark")
    ]
    least = max(tuple(map(int, since.split("."))) for since in table().values())
    assert asked == f"pyspark>={least[0]}.{least[1]}"
