"""What the parts of the blocking admin client share: the asyncio client and its loop."""

from __future__ import annotations

from onceflow.sdk.aio.admin.admin import AsyncAdmin
from onceflow.sdk.sync.portal import Portal


class AdminBase:
    """One admin client."""

    _async: AsyncAdmin
    _portal: Portal
