"""Errors of consume-transform-produce sessions, besides those of the SDK.

``abort_reasons`` lists the SDK's errors after which a session continues. After the errors here it
cannot.
"""

from __future__ import annotations

from onceflow.sdk.errors import FatalError


class TransactionalIdInUseError(FatalError):
    """The transactional id is shared by another live process; give every process its own slot.

    Raised instead of fencing back for ever, after two fences within ``fence_window_ms`` (KIP-98).
    """
