"""Which event loop runs in the threads that the blocking clients start, and in the broker's daemon.

uvloop's, where it is installed (``pip install 'onceflow[uvloop]'``): a record that is sent and
awaited alone takes a quarter less time. Elsewhere it is asyncio's. The asyncio clients run in the
application's own loop, and so does the broker within a test.
"""

from __future__ import annotations

import asyncio
import os

from onceflow.sdk.errors import ConfigError

SWITCH = "ONCEFLOW_UVLOOP"
"""Environment variable: 0 takes asyncio's loop, 1 requires uvloop's."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make a loop that nothing runs yet.

    Raises:
        ConfigError: The environment variable has another value, or requires uvloop, which is not
            installed.
    """
    wanted = os.environ.get(SWITCH, "")
    if wanted not in ("", "0", "1"):
        raise ConfigError(
            SWITCH,
            wanted,
            "must be 0 (asyncio's event loop) or 1 (uvloop's); unset, uvloop is used where it is "
            "installed",
        )
    if wanted != "0":
        try:
            import uvloop
        except ImportError:
            if wanted == "1":
                raise ConfigError(
                    SWITCH, wanted, "uvloop is not installed: pip install 'onceflow[uvloop]'"
                ) from None
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()
