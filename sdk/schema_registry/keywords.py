"""Keyword arguments as types. Written by ``tools/settings_keywords.py``; do not edit."""

from __future__ import annotations

import ssl
from typing import TypedDict

from onceflow.sdk.schema_registry.config import TokenFunction


class SchemaRegistryKeywords(TypedDict, total=False):
    """See ``SchemaRegistryConfig``."""

    basic_auth_user_info: str | None
    bearer_auth_token: str | TokenFunction | None
    ssl_context: ssl.SSLContext | None
    ssl_cafile: str | None
    ssl_certfile: str | None
    ssl_keyfile: str | None
    timeout_ms: int
    max_retries: int
    retries_wait_ms: int
    retries_max_wait_ms: int
    cache_capacity: int
    cache_latest_ttl_ms: int
    missing_id_cache_ttl_ms: int
    max_response_bytes: int
