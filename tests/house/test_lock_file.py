"""Goal: the lock file has a release of all that development needs, and one that the project allows.

Method: the requirements of pyproject.toml, extras followed, are compared with the lock file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def wanted(extra: str) -> Iterator[Requirement]:
    """Requirements of an extra and of the extras that it names."""
    project = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())["project"]
    for text in project["optional-dependencies"][extra]:
        requirement = Requirement(text)
        if requirement.name == project["name"]:
            for inner in requirement.extras:
                yield from wanted(inner)
        else:
            yield requirement


def test_the_lock_file_has_what_the_project_asks_for() -> None:
    lines = ROOT.joinpath("requirements-dev.lock").read_text().splitlines()
    locked = [Requirement(line) for line in lines if line and not line.startswith("#")]
    versions = {canonicalize_name(each.name): each.specifier for each in locked}
    project = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())["project"]
    asked = [*map(Requirement, project["dependencies"]), *wanted("dev")]
    assert len(asked) > 40
    for requirement in asked:
        name = canonicalize_name(requirement.name)
        assert name in versions, f"{name} is not locked: make lock"
        (locked_at,) = {each.version for each in versions[name]}
        assert requirement.specifier.contains(locked_at), f"{name}=={locked_at}: make lock"
