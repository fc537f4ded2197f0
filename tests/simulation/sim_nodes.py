"""What happens to the nodes of a broker: leaders and coordinators move, nodes stop and come back.

It is done in the broker's process and between two of its callbacks, as the control endpoint does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sim_broker import PORT

from onceflow.broker_lite.broker import BrokerState
from onceflow.broker_lite.log import LogError
from onceflow.broker_lite.placement import PlacementError
from onceflow.broker_lite.topics import OFFSETS_TOPIC, TRANSACTION_TOPIC

if TYPE_CHECKING:
    from sim_run import Simulation


def happen(sim: Simulation, trouble: str, rng: Any) -> None:
    """One event among the nodes."""
    state = sim.broker.state
    if state is None:
        return
    nodes = list(state.placement.nodes)
    match trouble:
        case "move leader":
            _move(sim, rng, [topic.name for topic in state.topics if not topic.internal])
        case "move coordinator":
            _move(sim, rng, [OFFSETS_TOPIC, TRANSACTION_TOPIC])
        case "stop node":
            if len(state.placement.running) > 1:
                stop(sim, rng.choice([node.node_id for node in state.placement.running]))
        case "start node":
            start(sim, rng.choice(nodes))
        case "elect leaders":
            _in_broker(sim, lambda state, now_ms: state.placement.move_to_preferred(now_ms))
        case "partition from node":
            process = rng.choice(sim.workers).process
            if process is not None and sim.broker.process is not None:
                port = PORT + rng.choice(nodes) - state.node_id
                sim.network.part(process.name, sim.broker.process.name, port)
                sim.world.after(rng.choice((300_000, 5_000_000)), sim.network.heal)


def end(sim: Simulation) -> None:
    """The faults are over: in some runs, who is down stays down."""
    state = sim.broker.state
    if state is not None and not sim.setup.nodes_stay_down:
        for node_id in state.placement.nodes:
            start(sim, node_id)


def _move(sim: Simulation, rng: Any, topics: list[str]) -> None:
    pick, node = rng.random(), rng.random()

    def move(state: BrokerState, now_ms: int) -> None:
        found = [topic for name in topics if (topic := state.topics.get(name)) is not None]
        places = [(topic, index) for topic in found for index in range(len(topic.partitions))]
        running = state.placement.running
        if places:
            topic, index = places[int(pick * len(places))]
            to = running[int(node * len(running))].node_id
            state.placement.move_leader(topic, index, to, now_ms)

    _in_broker(sim, move)


def stop(sim: Simulation, node_id: int) -> None:
    """A node goes away."""
    sim.world.note("sim", "stop node", node_id)
    _serving(sim, lambda server: sim.broker.nodes.stop(server, node_id))


def start(sim: Simulation, node_id: int) -> None:
    """A node comes back."""
    sim.world.note("sim", "start node", node_id)
    _serving(sim, lambda server: sim.broker.nodes.start(server, node_id))


def _in_broker(sim: Simulation, change: Callable[[BrokerState, int], object]) -> None:
    state, process, server = sim.broker.state, sim.broker.process, sim.broker.server
    if state is None or process is None or server is None:
        return

    def run() -> None:
        if sim.broker.state is state:
            with contextlib.suppress(PlacementError, LogError, OSError):
                change(state, process.wall_ms())
            server.after_event()

    process.call(run)


def _serving(sim: Simulation, call: Callable[[Any], Any]) -> None:
    process, server = sim.broker.process, sim.broker.server
    if process is None or server is None:
        return

    async def run() -> None:
        with contextlib.suppress(PlacementError, LogError, OSError):
            await call(server)

    process.call(lambda: process.loop.create_task(run()) and None)
