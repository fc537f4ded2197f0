"""An application that runs in a thread beside a test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from onceflow.processors import App

STOPPED_S = 60.0


@contextmanager
def running(app: App) -> Iterator[list[BaseException]]:
    """Run it beside the test; gives the list that its unexpected end goes to."""
    ended: list[BaseException] = []

    def run() -> None:
        try:
            app.run()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield ended
    finally:
        app.stop()
        thread.join(STOPPED_S)
    assert not thread.is_alive()
