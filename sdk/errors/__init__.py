"""Every exception that onceflow raises, in one tree.

`client` holds the errors that the client finds itself, `broker` one error per code of Kafka, and
`kinds` their bases. Catch by reaction (`RetriableError`, `AbortableError`, `FatalError`,
`RecordError`) or by cause.
"""

from __future__ import annotations

from onceflow.sdk.errors.broker import *  # noqa: F403
from onceflow.sdk.errors.client import *  # noqa: F403
from onceflow.sdk.errors.kinds import *  # noqa: F403
