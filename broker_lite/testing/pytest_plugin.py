"""Loads the pytest plugin ``onceflow`` for projects that name it in ``conftest.py``.

pytest finds the plugin of an installed package by itself. In a source tree,
``pytest_plugins = ["onceflow.broker_lite.testing.pytest_plugin"]`` loads it. If both apply, it is
loaded once. The fixtures are in ``pytest_fixtures``.
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
