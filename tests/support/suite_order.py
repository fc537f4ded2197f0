"""The order of test files: what takes longest begins first, so that no worker ends alone with it.

pytest-xdist hands out whole files (``--dist loadfile``), by itself those of many tests first; a
Spark file of four tests that takes a minute then comes last. Here files begin by their time, and
all Spark files go to one worker, which starts one Java machine for them. All else keeps its
(random) order. Used by ``tests/conftest.py``; ``--no-loadscope-reorder`` belongs to it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from xdist.scheduler import LoadFileScheduling

SPARK = (
    "tests/integration/test_spark_exactly_once.py",
    "tests/integration/test_spark_read.py",
    "tests/cases/test_fc_spark_source.py",
    "tests/cases/test_fc_spark_sink.py",
    "tests/integration/test_spark_stock_source.py",
)
"""Files that share a Java machine when they run in one process."""

LONG = (
    *SPARK,
    "tests/integration/test_processor_broker_errors.py",
    "tests/integration/test_spark_lineage.py",
    "tests/house/test_packaging.py",
    "tests/integration/test_examples_run.py",
    "tests/integration/test_examples_killed.py",
    "tests/integration/test_writing_everywhere.py",
    "tests/integration/test_sink_applications.py",
    "tests/house/test_documentation_runs.py",
    "tests/conformance/test_command_line_table.py",
    "tests/conformance/test_java_clients.py",
    "tests/conformance/test_kafka_tools_read_our_files.py",
    "tests/conformance/test_differential.py",
    "tests/conformance/test_kafka_group_tools.py",
    "tests/conformance/test_kafka_tools_administer.py",
    "tests/integration/test_spark_transaction.py",
    "tests/cases/test_fc_shutdown.py",
    "tests/integration/test_processor_shutdown.py",
    "tests/integration/test_client_life_cycle.py",
    "tests/integration/test_sink_exactly_once.py",
    "tests/integration/test_consumer_interrupted.py",
    "tests/integration/test_two_phase_exactly_once.py",
    "tests/integration/test_spark_batch_write.py",
    "tests/simulation/test_simulation_processors.py",
    "tests/integration/test_processor_exactly_once.py",
    "tests/integration/test_cli_relay.py",
    "tests/cases/test_fc_processors.py",
    "tests/properties/test_wire_hostile.py",
    "tests/simulation/test_simulation.py",
    "tests/house/test_types_complete.py",
    "tests/integration/test_consumer_failures.py",
    "tests/properties/test_wire_foreign.py",
    "tests/integration/test_session_faults.py",
    "tests/conformance/test_stock_clients_confluent.py",
    "tests/conformance/test_stock_clients_isolation.py",
    "tests/unit/broker_log/test_log_crash.py",
    "tests/integration/test_broker_daemon.py",
    "tests/integration/test_session_exactly_once.py",
    "tests/integration/test_producer_blocking.py",
)
"""What takes a quarter of a minute or more on two cores, longest first."""

_RANK = {name: number for number, name in enumerate(LONG)}


def file_of(nodeid: str) -> str:
    """The file of a test."""
    return nodeid.partition("::")[0]


def longest_first(items: list[pytest.Item]) -> None:
    """Order tests by the time of their files, in place."""
    items.sort(key=lambda item: _RANK.get(file_of(item.nodeid), len(LONG)))


class SparkTogether(LoadFileScheduling):
    """Hands out files, those of Spark as one."""

    def _split_scope(self, nodeid: str) -> str:
        name = file_of(nodeid)
        return "spark" if name in SPARK else name


def scheduler(config: pytest.Config, log: Callable[..., object]) -> LoadFileScheduling | None:
    """The scheduler for ``--dist loadfile``; None leaves the choice to xdist."""
    return SparkTogether(config, log) if config.getvalue("dist") == "loadfile" else None
