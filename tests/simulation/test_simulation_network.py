"""Goal: the simulated network breaks connections as TCP does: what arrives is always a beginning.

Method: pieces written one after the other through links that cut within, after and before them;
what the other side received is compared with what was written.
"""

from __future__ import annotations

import pytest
from sim_network import Network, NetworkFaults, SimTransport
from sim_world import StuckError, World

PIECES = [bytes([number]) * 20 for number in range(20)]


class Received:
    """The protocol of the other side: keeps what came."""

    def __init__(self) -> None:
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        pass


def transfer(seed: int, faults: NetworkFaults) -> bytes:
    """What arrives of the pieces when one is written every 50 microseconds."""
    world = World(seed)
    network = Network(world)
    network.faults = faults
    ends = [SimTransport(network, world.start(name), f"{name}#1", {}) for name in ("a", "b")]
    writer, reader = ends
    writer.peer, reader.peer = reader, writer
    writer.protocol, reader.protocol = Received(), Received()
    for number, piece in enumerate(PIECES):
        world.at(number * 50, lambda piece=piece: writer.write(piece))  # type: ignore[misc]
    with pytest.raises(StuckError, match="nothing is left"):
        world.run(lambda: False, 10**9)
    data: bytes = reader.protocol.data
    return data


@pytest.mark.parametrize("fault", ["cut_within", "cut_after", "cut_before"])
@pytest.mark.parametrize("silent", [0.0, 1.0])
def test_after_a_cut_nothing_more_arrives(fault: str, silent: float) -> None:
    whole = b"".join(PIECES)
    faults = NetworkFaults(split=0.3, slow=0.1, silent=silent)
    assert transfer(0, faults) == whole
    setattr(faults, fault, 0.2)
    found = [transfer(seed, faults) for seed in range(50)]
    assert [data for data in found if not whole.startswith(data)] == []
    assert len(set(found)) > 10, "the cuts come at all places"
