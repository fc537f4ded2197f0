"""Keyword arguments as types. Written by ``tools/settings_keywords.py``; do not edit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from onceflow.sdk.settings.keywords import CommonKeywords, ConsumerOwn, ConsumerRest, ProducerOwn
from onceflow.sdk.settings.sources import ClientSource


class SessionOwn(TypedDict, total=False):
    """See ``SessionSettings``."""

    commit_interval_ms: int
    revoke_budget_ms: int
    operation_timeout_ms: int
    fence_window_ms: int
    start_from: str
    client: ClientSource
    consumer_settings: Mapping[str, object]
    producer_settings: Mapping[str, object]


class SessionRest(CommonKeywords, ProducerOwn, ConsumerRest, SessionOwn, total=False):
    """See ``SessionConfig``."""

    topics: Sequence[str]
    topics_from_start: Sequence[str]
    slot: str


class SessionKeywords(SessionRest, ConsumerOwn, total=False):
    """See ``SessionConfig``."""
