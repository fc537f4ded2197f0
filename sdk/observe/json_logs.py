"""Log records as lines of JSON, for programs that collect logs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Final

FIELDS: Final = (
    "transactional_id",
    "producer_id",
    "producer_epoch",
    "group",
    "member",
    "generation",
    "partitions",
    "offsets",
    "reason",
)
"""Facts that log records carry beside their message, as attributes of these names."""


class JsonFormatter(logging.Formatter):
    """One JSON object for each log record: time, level, logger, message, facts, error."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line.

        Args:
            record: The log record.
        """
        at = datetime.fromtimestamp(record.created, UTC)
        shown = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **{name: getattr(record, name) for name in FIELDS if hasattr(record, name)},
        }
        if record.exc_info:
            shown["error"] = self.formatException(record.exc_info)
        return json.dumps(shown, ensure_ascii=False, allow_nan=False, default=str)


def log_as_json(level: int) -> None:
    """Write log records as JSON to standard error.

    Args:
        level: The lowest level that is written.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler])
