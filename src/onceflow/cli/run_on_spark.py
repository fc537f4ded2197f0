"""``onceflow run --engine spark``: the session, the application's module, and the query's run.

Decides what of the command's options concerns Spark, and how the module reaches Spark's workers.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from onceflow.processors.app import App

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from onceflow.spark_integration.apps.pipeline import SparkPipeline

OF_WORKERS: Final[Mapping[str, str]] = {
    "slot": "Spark's tasks have no slots",
    "reloads": "start the query again yourself",
    "workers": "Spark spreads partitions over its executors",
    "state_dir": "Spark keeps state in its checkpoint (--checkpoint)",
    "health_port": "ask Spark for the query's state",
    "metrics_port": "Spark reports the query's progress",
}
"""Options that have no effect with Spark, with the reason."""
OF_SPARK: Final = ("checkpoint", "master")


class _StopAsked(Exception):
    """SIGTERM came."""


def refuse_options(engine: str, given: Mapping[str, object]) -> None:
    """Raise for options that have no effect with an engine.

    Args:
        engine: ``spark`` or ``onceflow``.
        given: Values of all options by parameter.

    Raises:
        click.UsageError: One is given.
    """
    if engine != "spark":
        if any(given[name] is not None for name in OF_SPARK):
            raise click.UsageError("--checkpoint and --master belong to --engine spark")
        return
    for name, why in OF_WORKERS.items():
        if given[name] not in (None, False, 1):
            option = "reload" if name == "reloads" else name.replace("_", "-")
            raise click.UsageError(f"--{option}: {why}; leave it out")


def run_on_spark(
    app: App, module_name: str, checkpoint: str | None, master: str | None, *, until_end: bool
) -> dict[str, int]:
    """Run an application as a Spark query, until SIGINT, SIGTERM, its end or an error.

    Args:
        app: The application.
        module_name: The module that it was imported from.
        checkpoint: Where Spark keeps offsets and state.
        master: Spark's master; None for that of Spark's configuration.
        until_end: Whether to process what the topics hold now, and return.

    Returns:
        What was published.

    Raises:
        ConfigError: Something of the application cannot run on Spark.
        QueryFailedError: The query failed for good.
    """
    # Spark's workers must run this Python, unless the user says otherwise.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app.name)
    spark: SparkSession = (builder if master is None else builder.master(master)).getOrCreate()
    try:
        with tempfile.TemporaryDirectory() as folder:
            shipped = module_archive(module_name, Path(folder))
            if shipped is not None:
                spark.sparkContext.addPyFile(str(shipped))
            options = {} if checkpoint is None else {"checkpointLocation": checkpoint}
            pipeline = app.to_spark(spark, **options)
            _run(pipeline, until_end=until_end)
    finally:
        spark.stop()
    metrics = pipeline.publish.metrics
    return {"rows": metrics.rows, "bytes": metrics.bytes, "transactions": metrics.transactions}


def _run(pipeline: SparkPipeline, *, until_end: bool) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        raise _StopAsked

    before = signal.signal(signal.SIGTERM, stop)
    try:
        pipeline.run(until_end=until_end)
    except (_StopAsked, KeyboardInterrupt):
        return  # What was not published is processed again after the next start.
    finally:
        signal.signal(signal.SIGTERM, before)


def module_archive(module_name: str, folder: Path) -> Path | None:
    """Return what Spark has to ship so that its workers can import a module.

    Args:
        module_name: The module.
        folder: Where an archive may be made.

    Returns:
        The file of a module, or an archive of its package; None for what is installed.
    """
    top = importlib.import_module(module_name.partition(".")[0])
    source = top.__file__
    if source is not None and Path(source).name != "__init__.py":
        return None if _is_installed(Path(source)) else Path(source)
    root = Path(next(iter(top.__path__)))
    if _is_installed(root):
        return None
    archive = folder / f"{root.name}.zip"
    with zipfile.ZipFile(archive, "w") as made:
        for path in sorted(root.rglob("*.py")):
            made.write(path, Path(root.name) / path.relative_to(root))
    return archive


def _is_installed(path: Path) -> bool:
    return any(part in ("site-packages", "dist-packages") for part in path.parts)
