"""What goes wrong in a run, and when: deaths, pauses, partitions, full disks, clocks.

The network's own faults (delays, cuts) are probabilities of the network; here are the events.
"""

from __future__ import annotations

import contextlib
import errno
from typing import TYPE_CHECKING

import sim_nodes

from onceflow.broker_lite.log import LogError
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from sim_run import Simulation


def begin(sim: Simulation) -> None:
    """Let faults happen for the run's duration, then end them."""
    sim.network.faults = sim.setup.storm
    rng = sim.world.stream("trouble")
    end_us = sim.world.now_us + sim.setup.duration_us

    def next_one() -> None:
        if sim.world.now_us >= end_us:
            sim.end_faults()
            return
        _happen(sim, rng.choice(sim.setup.troubles), rng)
        sim.world.after(rng.expovariate(1 / sim.setup.trouble_every_us), next_one)

    sim.world.after(rng.randrange(500_000), next_one)
    _supervise(sim)


def _supervise(sim: Simulation) -> None:
    """Start the broker again after a while, whatever ended it."""
    rng = sim.world.stream("supervisor")

    def look() -> None:
        process = sim.broker.process
        if process is not None and not process.alive:
            sim.broker.start()
        sim.world.after(rng.choice((50_000, 200_000, 1_500_000)), look)

    sim.world.after(50_000, look)


def _happen(sim: Simulation, trouble: str, rng) -> None:
    sim.world.note("sim", "trouble", trouble)
    if sim.happen(trouble, rng):
        return
    match trouble:
        case "kill broker":
            kill_broker(sim, rng)
        case "kill broker in write":
            sim.broker.disk.die_in_writes = rng.randrange(1, 40)
        case "kill worker":
            worker = rng.choice(sim.workers)
            _kill_worker(sim, worker, rng.randrange(10_000, 1_500_000))
        case "pause worker":
            process = rng.choice(sim.workers).process
            if process is not None:
                process.paused_until_us = sim.world.now_us + rng.choice((400_000, 4_500_000))
                sim.world.note(process.name, "paused")
        case "zombie":
            _make_zombie(sim, rng)
        case "partition":
            process = rng.choice(sim.workers).process
            if process is not None and sim.broker.process is not None:
                sim.network.part(process.name, sim.broker.process.name)
                sim.world.after(rng.choice((300_000, 5_000_000)), sim.network.heal)
        case "cut":
            sim.network.cut_some(rng)
        case "disk full":
            sim.broker.disk.full = True
            sim.world.after(rng.randrange(50_000, 1_000_000), lambda: _room(sim))
        case "write fails":
            sim.broker.disk.fail_in_writes = rng.randrange(0, 20)
        case "sync fails":
            sim.broker.disk.fail_in_syncs = rng.randrange(0, 20)
        case "clock":
            _jump(sim, rng)
        case "delete records":
            _delete_records(sim, rng)
        case _:
            sim_nodes.happen(sim, trouble, rng)


def kill_broker(sim: Simulation, rng) -> None:
    """SIGKILL, or the power is gone."""
    sim.broker.kill()
    if sim.setup.power and rng.random() < 0.6:
        if sim.broker.config.durable:
            sim.world.note("sim", "power loss that costs nothing")
        else:
            sim.world.note("sim", "power loss", sim.broker.flushed)
        sim.broker.disk.lose_power()


def _room(sim: Simulation) -> None:
    """Somebody makes room; a broker that ended meanwhile is started again as after any end."""
    if sim.broker.disk.full:
        sim.broker.disk.full = False
        sim.world.note("sim", "disk has room")


def _kill_worker(sim: Simulation, worker, back_after_us: int) -> None:
    if worker.process is None or worker.finished:
        return
    worker.process.die()
    start_again(sim, worker, back_after_us)


def start_again(sim: Simulation, worker, back_after_us: int) -> None:
    """Begin the next life of a worker after a while, if its process is dead then."""

    def again() -> None:
        if worker.process is not None and not worker.process.alive and not worker.finished:
            worker.start()

    sim.world.after(back_after_us, again)


def _make_zombie(sim: Simulation, rng) -> None:
    """A process sleeps, is taken for dead and replaced, and wakes up again."""
    worker = rng.choice(sim.workers)
    process = worker.process
    if process is None or worker.finished or not process.alive:
        return
    process.paused_until_us = sim.world.now_us + rng.randrange(200_000, 4_000_000)
    sim.world.note(process.name, "becomes a zombie")
    sim.world.after(
        rng.randrange(50_000, 1_000_000),
        lambda: None if worker.finished or sim.calm else worker.start(),
    )


def _jump(sim: Simulation, rng) -> None:
    """Clocks of clients jump; the broker's, which never goes back while it runs, at its start."""
    # Clients and broker stay within message.timestamp.after.max.ms, an hour, of each other.
    jump_us = rng.choice((-1_500_000_000, -2_000_000, 2_000_000, 60_000_000))
    sim.broker.wall_skew_us = jump_us
    process = rng.choice(sim.workers).process
    if process is not None:
        process.wall_offset_us = jump_us
    sim.world.note("sim", "clock", jump_us)


def _delete_records(sim: Simulation, rng) -> None:
    state, process = sim.broker.state, sim.broker.process
    if state is None or process is None:
        return
    log = state.topics.partition("short", 0)
    if log is not None and log.high_watermark > log.log_start_offset:
        offset = rng.randrange(log.log_start_offset, log.high_watermark + 1)
        sim.world.note("sim", "delete records", offset)

        def delete() -> None:
            if sim.broker.state is state:
                with contextlib.suppress(LogError):  # The disk may be full.
                    log.delete_records_before(offset)
                sim.broker.server.after_event()

        process.call(delete)


def is_expected(error: BaseException | None) -> bool:
    """Whether a logged error comes from a disk that was full, as was asked for."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EIO):
            return True
        if getattr(error, "code", None) == ErrorCode.KAFKA_STORAGE_ERROR:
            return True
        error = error.__cause__ or error.__context__
    return False
