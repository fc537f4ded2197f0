"""Opens and shares connections to brokers, backs off after failures, closes idle ones.

There is one connection per node and purpose, which concurrent callers share. After a failure the
next try to the same address waits (KIP-144).
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TypeVar

from onceflow.sdk.aio.connection.authentication import Authenticator
from onceflow.sdk.aio.connection.racing import first_answer
from onceflow.sdk.aio.connection.transport import BrokerConnection, loop_ms, open_connection
from onceflow.sdk.core.connection.handshake import BrokerVersions
from onceflow.sdk.core.connection.metadata import Node
from onceflow.sdk.core.retry import Backoff
from onceflow.sdk.errors import BrokerConnectionError, KafkaError, RemoteProtocolError
from onceflow.sdk.observe.meters import Traffic
from onceflow.sdk.settings.addresses import Address
from onceflow.sdk.settings.config import ClientConfig

log: logging.Logger = logging.getLogger("onceflow.pool")

T = TypeVar("T")

BOOTSTRAP = "bootstrap"
DEFAULT = "default"
Key = tuple[str, int, str]
"""Host, port and purpose."""

TRIES_BEFORE_WARNING = 4
"""A broker that restarts refuses a few tries. From this number of failures in a row on, each
doubling is logged: after about half a second, three, ten, and thirty seconds."""


class Connector:
    """The sockets of a pool.

    Attributes:
        versions: Versions that each node offered at the last connection.
        extra_nodes: Coordinators that an answer named before the metadata did.
        traffic: Counts of bytes and requests.
    """

    def __init__(self, config: ClientConfig, random_source: Callable[[], float]) -> None:
        self.versions: dict[int, BrokerVersions] = {}
        self.extra_nodes: dict[int, Node] = {}
        self._last_failures: dict[str, str] = {}
        self._config = config
        self._random = random_source
        self._backoff = Backoff(
            config.reconnect_backoff_ms, config.reconnect_backoff_max_ms, random_source
        )
        self._open: dict[Key, BrokerConnection] = {}
        self._opening: dict[Key, asyncio.Task[BrokerConnection]] = {}
        self._failures: dict[tuple[str, int], tuple[int, int]] = {}
        self._reached: set[tuple[str, int]] = set()
        self._hopeless: set[tuple[str, int]] = set()
        self._bootstrap_turn = 0
        self._closed = False
        self.traffic: Traffic = Traffic()
        self._context: ssl.SSLContext | None = None
        self._authenticator = Authenticator(config)

    def find(self, node: Node | None, purpose: str) -> BrokerConnection | None:
        """Return the open connection to a node for a purpose; None if there is none."""
        if node is None:
            return None
        key = (node.host, node.port, purpose)
        found = self._open.get(key)
        if found is not None and self._is_stale(found):
            found.close()
            return None
        return found

    async def connect(self, node: Node, purpose: str) -> BrokerConnection:
        """Return the connection to a node for a purpose; open it if needed.

        Args:
            node: The broker.
            purpose: Name of the socket.

        Raises:
            BrokerConnectionError: The broker cannot be reached; a recent failure is repeated
                only after the back-off.
        """
        found = self.find(node, purpose)
        if found is not None:
            return found
        connection = await self._open_shared(node.host, node.port, str(node), purpose)
        self.versions[node.node_id] = connection.versions
        return connection

    def troubles(self) -> str:
        """Return the addresses that could not be reached lately, as the end of a message."""
        listed = self._listed_failures()
        return f"; not reached: {listed}" if listed else ""

    def tried(self, error: Exception | None = None) -> str:
        """Return what was tried to reach a broker, as a part of a message.

        Args:
            error: Why it failed although connections were made.
        """
        listed = self._listed_failures()
        if listed:
            return f"tried {listed}"
        if error is None:
            return "no address refused a connection"
        why = str(error) or "no answer in time"
        return f"connections were made, but: {why}; check security_protocol"

    def _listed_failures(self) -> str:
        failed = self._last_failures
        return "; ".join(f"{address} ({why})" for address, why in failed.items())

    async def use_any(
        self, nodes: Sequence[Node], use: Callable[[BrokerConnection], Coroutine[object, object, T]]
    ) -> T:
        """Use a connection to any of the nodes, else to any bootstrap server.

        A server that is silent does not keep the next one from being tried; see `first_answer`.

        Args:
            nodes: The known brokers.
            use: Called with a connection; several calls may run at once.

        Returns:
            The result of the first call that succeeded.

        Raises:
            KafkaError: No server could be reached, or each call failed.
        """

        async def use_node(node: Node) -> T:
            return await use(await self.connect(node, DEFAULT))

        async def use_bootstrap(index: int) -> T:
            result = await use(await self._connect_bootstrap(addresses[index]))
            self._bootstrap_turn = index
            return result

        if nodes:
            try:
                by_load = self._by_load(nodes)
                return await first_answer([partial(use_node, node) for node in by_load])
            except KafkaError as error:
                log.info("no known broker answers; going back to the bootstrap servers: %s", error)
        addresses = self._config.addresses
        first = self._bootstrap_turn
        order = [(first + turn) % len(addresses) for turn in range(len(addresses))]
        return await first_answer([partial(use_bootstrap, index) for index in order])

    def _by_load(self, nodes: Sequence[Node]) -> list[Node]:
        """Sort nodes: those with an open connection first, the least busy one in front."""
        loads = {
            node: found.in_flight_count for node in nodes if (found := self.find(node, DEFAULT))
        }
        others = [node for node in nodes if node not in loads]
        start = int(self._random() * len(others)) if others else 0
        return [*sorted(loads, key=loads.__getitem__), *others[start:], *others[:start]]

    @property
    def is_hopeless(self) -> bool:
        """Whether the last try of each bootstrap server shows that no broker listens there."""
        return self._hopeless.issuperset(self._config.addresses)

    async def _connect_bootstrap(self, address: Address) -> BrokerConnection:
        key = (address.host, address.port, BOOTSTRAP)
        found = self._open.get(key)
        if found is not None and not self._is_stale(found):
            return found
        return await self._open_shared(address.host, address.port, str(address), BOOTSTRAP)

    def retire_bootstrap(self) -> None:
        """Close idle bootstrap connections: brokers advertise their own addresses."""
        for key, connection in list(self._open.items()):
            if key[2] == BOOTSTRAP and connection.in_flight_count == 0:
                connection.close()

    def forget_nodes(self) -> None:
        """Close every connection, before the client bootstraps again."""
        self.extra_nodes.clear()
        for connection in list(self._open.values()):
            connection.close()

    def close_idle(self) -> None:
        """Close connections that were not used for ``connections_max_idle_ms``."""
        for connection in list(self._open.values()):
            if self._is_stale(connection):
                connection.close()

    async def close(self) -> None:
        """Close everything and wait until the sockets are gone."""
        self._closed = True
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        connections = list(self._open.values())
        for connection in connections:
            connection.close()
        try:
            await asyncio.gather(*opening, return_exceptions=True)
            await self._authenticator.close()
            for connection in connections:
                await connection.wait_closed()
        finally:
            self._closed = False

    def _is_stale(self, connection: BrokerConnection) -> bool:
        if connection.in_flight_count:
            return False
        idle_ms = loop_ms(asyncio.get_running_loop()) - connection.last_used_ms
        return idle_ms >= self._config.connections_max_idle_ms

    async def _open_shared(self, host: str, port: int, name: str, purpose: str) -> BrokerConnection:
        if self._closed:
            raise BrokerConnectionError("the client is closing")
        key = (host, port, purpose)
        task = self._opening.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._open_one(key, name))
            self._opening[key] = task
            task.add_done_callback(lambda done: self._opened(key, done))
        # Shielded: a caller that is cancelled must not cancel the connection of the others.
        return await asyncio.shield(task)

    def _opened(self, key: Key, task: asyncio.Task[BrokerConnection]) -> None:
        self._opening.pop(key, None)
        if not task.cancelled():
            task.exception()

    async def _open_one(self, key: Key, name: str) -> BrokerConnection:
        host, port, _ = key
        loop = asyncio.get_running_loop()
        count, next_try_ms = self._failures.get((host, port), (0, 0))
        wait_ms = next_try_ms - loop_ms(loop)
        if wait_ms > 0:
            await asyncio.sleep(wait_ms / 1000)

        def forget(connection: BrokerConnection) -> None:
            if self._open.get(key) is connection:
                del self._open[key]

        try:
            if self._context is None:
                self._context = self._config.security.make_ssl_context()
            connection = await open_connection(
                host,
                port,
                name,
                self._config,
                forget,
                self.traffic,
                self._context,
                self._authenticator,
                is_new=(host, port) not in self._reached,
            )
        except KafkaError as raised:
            error = self._explained(raised, key)
            self.traffic.failed += 1
            delay_ms = self._backoff.delay_ms(count + 1)
            self._failures[host, port] = (count + 1, loop_ms(loop) + delay_ms)
            self._hopeless.discard((host, port))
            if isinstance(raised, RemoteProtocolError) or getattr(raised, "refused", False):
                self._hopeless.add((host, port))
            address = str(Address(host, port))
            why = str(error).removeprefix(f"{name}: ").removeprefix(f"{address}: ")
            self._last_failures[address] = why
            tries = count + 1
            loud = tries >= TRIES_BEFORE_WARNING and tries & (tries - 1) == 0
            level = logging.WARNING if loud else logging.DEBUG
            log.log(level, "no connection after %d tries, going on: %s", tries, error)
            if error is raised:
                raise
            raise error from raised
        self._reached.add((host, port))
        self._hopeless.discard((host, port))
        self._failures.pop((host, port), None)
        self._last_failures.pop(str(Address(host, port)), None)
        self._open[key] = connection
        return connection

    def _explained(self, error: KafkaError, key: Key) -> KafkaError:
        """Explain the error of an address that a broker advertised and that never worked."""
        host, port, purpose = key
        known = purpose == BOOTSTRAP or (host, port) in (self._reached | {*self._config.addresses})
        if known or type(error) is not BrokerConnectionError:
            return error
        return BrokerConnectionError(
            f"{error}; a broker advertises this address, so clients must reach it: check its "
            "advertised.listeners"
        )
