"""Errors of two-phase commit."""

from __future__ import annotations

from onceflow.sdk.errors import KafkaError


class ParticipantError(KafkaError):
    """The database could not prepare or finish its part; the message says which of the two."""
