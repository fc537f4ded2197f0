"""The pytest plugin ``onceflow`` for projects that name it in ``conftest.py``.

Where the package is installed pytest finds the plugin by itself; from a tree of sources
``pytest_plugins = ["onceflow.broker_lite.testing.pytest_plugin"]`` brings it. Both together are
one. It decides nothing else; the fixtures are in ``pytest_fixtures``.
"""

from __future__ import annotations

import pytest

from onceflow.broker_lite.testing import pytest_fixtures

NAME = "onceflow"


def pytest_configure(config: pytest.Config) -> None:
    """Load the plugin, unless pytest has loaded it or the user has disabled it."""
    plugins = config.pluginmanager
    if not plugins.has_plugin(NAME) and not plugins.is_blocked(NAME):
        plugins.register(pytest_fixtures, NAME)
