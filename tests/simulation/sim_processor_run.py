"""A simulated run with applications: set up, verdict of the whole, and that of the application."""

from __future__ import annotations

from typing import Any

import sim_ending
import sim_processors
from sim_broker import raw_batches
from sim_processor_checker import Left, check
from sim_processors import DEAD, GROUP, OUTPUT, ApplicationWorker, KeyedProducer, draw, draw_shape
from sim_run import Result, Simulation, simulate
from sim_setup import Setup

from onceflow.processors.state.codec import ValueCodec

CHANGELOG = f"{GROUP}-step-seen-changelog"


class ProcessorSimulation(Simulation):
    """A run whose workers are those of an application."""

    shape: sim_processors.Shape

    def make_workers(self) -> None:
        self.shape = draw_shape(self.world.seed)
        own = {
            "input": lambda i: KeyedProducer(self, f"input{i}", self.setup.units),
            "application": lambda i: ApplicationWorker(self, f"app{i}", self.shape),
        }
        for kind, make in own.items():
            self.workers += [make(i) for i in range(self.setup.workers.pop(kind, 0))]
        super().make_workers()

    def _create_topics(self) -> None:
        state, process = self.broker.state, self.broker.process
        assert state is not None
        assert process is not None
        for name in (OUTPUT, DEAD):
            state.topics.create(name, 2, {}, process.wall_ms())
        super()._create_topics()

    def judge(self) -> list[str]:
        return check(self.look())

    def look(self) -> Left:
        """What the application left."""
        shape, partitions = self.shape, self.partitions["a"]

        def records(topic: str, count: int) -> dict[str, Any]:
            return {
                f"{topic}-{number}": sim_ending.stored_records(
                    raw_batches(self.broker.disk, f"{topic}-{number}")
                )
                for number in range(count)
            }

        found: list[dict[str, int]] = []

        def ask() -> bool:
            offsets = sim_ending.committed_offsets(self, GROUP)
            found.extend([] if offsets is None else [offsets])
            return bool(found)

        self.world.run(ask, self.world.now_us + 60_000_000)
        states = None
        if shape.kind == "count":
            codec = ValueCodec(int, "look")
            states = {}
            for number in range(partitions):
                kept = states[f"a-{number}"] = {}
                for record in records(CHANGELOG, partitions)[f"{CHANGELOG}-{number}"]:
                    if record.visible:
                        kept[record.key] = codec.decode(record.key, record.value)
        return Left(
            shape.kind != "copy",
            records("a", partitions),
            records(OUTPUT, 2),
            records(DEAD, 2),
            found[-1],
            states,
        )


def simulate_processors(seed: object, setup: Setup | None = None) -> Result:
    """One run with an application; see ``simulate``."""
    return simulate(seed, setup or draw(seed), kind=ProcessorSimulation)
