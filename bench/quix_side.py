"""Quix Streams' side of ``bench/quix.py``: the same work, written as its users would.

Runs in an environment that has quixstreams and nothing of this project. Prints the time of the
first record that it processes, and goes on until it is ended.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from datetime import timedelta
from typing import Any

from quixstreams import Application, State


def main() -> None:
    """Process until the end of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--commit-ms", type=int, required=True)
    parser.add_argument("--window-ms", type=int, required=True)
    args = parser.parse_args()
    app = Application(
        args.bootstrap,
        consumer_group=args.topic,
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=args.commit_ms / 1000,
        state_dir=tempfile.mkdtemp(),
        loglevel="WARNING",
    )
    began = False

    def note() -> None:
        nonlocal began
        if not began:
            began = True
            print(time.time(), flush=True)

    def count(value: Any, state: State) -> str:
        note()
        total: int = state.get("total", 0) + 1
        state.set("total", total)
        return str(total)

    def seen(value: Any) -> Any:
        note()
        return value

    serdes = {"value_deserializer": "json", "key_deserializer": "bytes"}
    if args.work in ("count", "rekey"):
        serdes["value_deserializer"] = "bytes"
    read = app.topic(args.topic, **serdes)
    out = app.topic(f"{args.topic}-out", value_serializer="json", key_serializer="bytes")
    frame = app.dataframe(read)
    if args.work == "count":
        frame = frame.apply(count, stateful=True)
    elif args.work == "rekey":
        frame = frame.apply(seen).group_by(
            lambda value: value[:7],
            name="again",
            value_serializer="bytes",
            value_deserializer="bytes",
            key_serializer="bytes",
            key_deserializer="bytes",
        )
        frame = frame.apply(count, stateful=True)
    elif args.work == "tumbling":
        window = frame.apply(seen).tumbling_window(timedelta(milliseconds=args.window_ms))
        frame = window.sum().final(closing_strategy="partition")
    elif args.work == "join":
        table = app.dataframe(app.topic(f"{args.topic}-table", **serdes))
        frame = frame.apply(seen).join_asof(
            table, how="left", on_merge=lambda left, right: [left, right]
        )
    frame.to_topic(out)
    app.run()


if __name__ == "__main__":
    sys.exit(main())
