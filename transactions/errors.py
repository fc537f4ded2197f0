"""Errors of consume-transform-produce sessions: those that the SDK itself does not have.

A session decides which of the SDK's errors mean "abort and go on" (``abort_reasons``); the classes
here are what a user meets when going on is not possible. Nothing else is decided here.
"""

from __future__ import annotations

from onceflow.sdk.errors import FatalError


class TransactionalIdInUseError(FatalError):
    """The transactional id is shared by another live process; give every process its own slot.

    Raised instead of fencing back for ever, after two fences within ``fence_window_ms`` (KIP-98).
    """
