"""Which batches of which queries are published, and whether a batch may follow them.

Progress is the metadata of one committed offset of the group ``<name>.progress``, written in each
batch's transaction: the last batches of the queries that used the name, newest first, each with
the hash of the batch's offsets file. A checkpoint that was set back or copied plans other batches
under numbers that were published, which the hash shows. Nothing here talks to a broker.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from onceflow.sdk import OffsetAndMetadata, TopicPartition
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.serde import to_json
from onceflow.spark_integration.checkpoint import BatchPlan, Checkpoint

ENTRIES_MAX: Final = 8
"""Most queries whose progress is kept; the metadata of an offset has 4096 bytes at most."""


@dataclass(frozen=True, slots=True)
class Published:
    """The last batch that one query published to one sink.

    Attributes:
        query: The query's id.
        sink: Topic of all rows; empty where rows name their topics, None in entries of the
            former form, which did not say.
        batch_id: Number of the batch.
        plan: Hash of its offsets file, None in entries of the former form.
    """

    query: str
    sink: str | None
    batch_id: int
    plan: str | None


@dataclass(frozen=True, slots=True)
class Progress:
    """What a group says about published batches.

    Attributes:
        place: Partition whose committed offset holds the entries, None when there are none yet.
        entries: Newest first.
    """

    place: TopicPartition | None = None
    entries: tuple[Published, ...] = ()

    @staticmethod
    def read(stored: Mapping[TopicPartition, OffsetAndMetadata], group_id: str) -> Progress:
        """Read what a group holds.

        Raises:
            ConfigError: The group holds commits that are not of this sink.
        """
        entries: list[Published] = []
        for _, kept in sorted(stored.items()):
            try:
                entries += _entries(json.loads(kept.metadata))
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                raise ConfigError(
                    "groupId",
                    group_id.removesuffix(".progress"),
                    f"group {group_id} holds commits that are not of this sink; "
                    "choose another groupId",
                ) from error
        return Progress(min(stored, default=None), tuple(entries))

    def last(self, query: str, sink: str) -> Published | None:
        """The last batch that a query published to a sink."""
        own = [e for e in self.entries if e.query == query and e.sink in (sink, None)]
        return max(own, key=lambda entry: entry.batch_id, default=None)

    def is_newest(self, query: str, sink: str) -> bool:
        """Whether nothing but this query's batches was published to this sink at last."""
        newest = self.entries[0] if self.entries else None
        return newest is not None and (newest.query, newest.sink) == (query, sink)

    def note(self, new: Published) -> str:
        """The metadata that holds one more batch."""
        others = [e for e in self.entries if e.query != new.query or e.sink not in (new.sink, None)]
        kept = [new, *others][:ENTRIES_MAX]
        rows = [
            {"query": e.query, "sink": e.sink, "batch": e.batch_id, "plan": e.plan} for e in kept
        ]
        return to_json({"published": rows}).decode()


def _entries(note: Any) -> list[Published]:
    if "published" not in note:  # The former form: one batch of one query.
        return [Published(str(note["query"]), None, int(note["batch"]), None)]
    return [
        Published(
            str(row["query"]),
            None if row["sink"] is None else str(row["sink"]),
            int(row["batch"]),
            None if row["plan"] is None else str(row["plan"]),
        )
        for row in note["published"]
    ]


def is_ahead(last: Published | None, plan: BatchPlan) -> bool:
    """Whether other rows than these were published under this number or a later one."""
    if last is None or plan.batch_id > last.batch_id:
        return False
    return plan.batch_id < last.batch_id or last.plan not in (plan.digest, None)


def follows(last: Published | None, plan: BatchPlan, checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint holds the last published batch as it was published.

    Spark keeps the last hundred batches, so that the file of an older one may be gone.
    """
    if last is None or last.plan is None:
        return True
    kept = checkpoint.digest(last.batch_id)
    if kept is not None:
        return kept == last.plan
    return last.batch_id < min(checkpoint.planned_ids(), default=plan.batch_id)


def is_replay(
    last: Published | None, plan: BatchPlan, checkpoint: Checkpoint, group_id: str
) -> bool:
    """Decide what to do with a batch.

    Returns:
        True when exactly this batch was published, False when it comes next.

    Raises:
        ConfigError: The checkpoint is not the one from which the last batch was published.
    """
    if not is_ahead(last, plan) and follows(last, plan, checkpoint):
        return last is not None and plan.batch_id == last.batch_id
    assert last is not None, "a first batch follows nothing"
    raise ConfigError(
        "checkpointLocation",
        checkpoint.location,
        f"batch {plan.batch_id} is to be published, but batch {last.batch_id} of this query "
        f"({last.query}) was published from another state of its checkpoint: this one was set back "
        "or copied, and rows would be lost or repeated. Start a new checkpoint with "
        f"startingOffsets=committed and groupId={group_id}, or restore the newest one where the "
        "sources are not Kafka's. A copy that is to publish beside the original needs a `name`",
    )


def check_starts(
    plan_starts: Mapping[TopicPartition, int],
    stored: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    location: str,
    group_id: str,
) -> None:
    """Make sure that a batch does not begin before what was published.

    Args:
        plan_starts: First offsets of the batch.
        stored: Offsets of the group that the sink commits to. Those without the sink's note were
            set by somebody else, on purpose.
        location: The query's checkpoint.
        group_id: The group.

    Raises:
        ConfigError: Offsets of the batch were published before.
    """
    published = {tp: kept.offset for tp, kept in stored.items() if '"query"' in kept.metadata}
    below = [
        f"{tp}: begins at {offset}, published up to {published[tp]}"
        for tp, offset in sorted(plan_starts.items())
        if offset < published.get(tp, 0)
    ]
    if below:
        raise ConfigError(
            "checkpointLocation",
            location,
            f"its batch would publish rows again ({'; '.join(below)}). Start a new checkpoint with "
            f"startingOffsets=committed and groupId={group_id}, so that nothing is lost or "
            "repeated. To publish these rows once more, set publishAgain=true or another `name`",
        )
