"""Keyword arguments as types. Written by ``tools/settings_keywords.py``; do not edit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onceflow.sdk.settings.keywords import CommonOwn, ConsumerOwn, ProducerOwn
from onceflow.transactions.keywords import SessionOwn


class AppKeywords(CommonOwn, ProducerOwn, ConsumerOwn, SessionOwn, total=False):
    """See ``AppSettings``."""

    application_server: str
    num_standby_replicas: int
    acceptable_recovery_lag: int
    max_warmup_replicas: int
    processing_guarantee: str
    uncaught_error: str
    replacements_max: int
    replacement_window_ms: int
    slot: str | None
    commit_records: int
    commit_bytes: int
    create_inputs: bool
    partitions: int
    replication_factor: int
    aborts_max: int
    shutdown_timeout_ms: int
    leave_on_sigterm: bool
    on_state_gap: str
    dropped_states: Sequence[str]
    max_task_idle_ms: int
    max_future_ms: int
    state_dir: str | Path
