"""The calls of the control endpoint.

``GET /`` returns the table of calls as their documentation. This module checks values, calls the
broker in process, and converts its answers to plain values.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

from onceflow.broker_lite.placement import PlacementError
from onceflow.broker_lite.testing.control import ControlError, ControlRequest, ControlServer
from onceflow.broker_lite.testing.fault_rules import Fault, FaultRule, make_rule
from onceflow.broker_lite.testing.journal import JournalEntry
from onceflow.broker_lite.testing.plain_messages import plain_message
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.protocol.error_codes import ErrorCode

if TYPE_CHECKING:
    from onceflow.broker_lite.testing.in_process import Broker

JOURNAL_LIMIT = 1_000
"""Entries in one answer by default."""

ADVANCE_MS_MAX = 10 * 365 * 24 * 60 * 60 * 1000
"""Longest single move of the clock."""

Call = Callable[["Broker", ControlRequest, str], Awaitable[object]]

_INTEGERS = frozenset({
    "times", "delay_ms", "partition", "node_id", "cut_bytes", "bytes_per_second",
})  # fmt: skip
_TEXTS = frozenset({"client_id", "topic", "group_id", "transactional_id", "disk_error"})
_RULE_FIELDS = ("fault", "key", "error", *sorted(_INTEGERS | _TEXTS))


def make_server(broker: Broker) -> ControlServer:
    """Make the endpoint of a broker, which does not listen yet."""
    return ControlServer(make_answer(broker))


def make_answer(broker: Broker) -> Callable[[ControlRequest], Awaitable[object]]:
    """Return the function that answers control requests for a broker."""

    async def answer(request: ControlRequest) -> object:
        allowed = []
        for (method, pattern), (call, _) in CALLS.items():
            found = re.fullmatch(pattern.replace("{id}", r"(\d{1,9})"), request.path)
            if found and method == request.method:
                return await call(broker, request, found[1] if found.groups() else "")
            if found:
                allowed.append(method)
        if allowed:
            raise ControlError(
                HTTPStatus.METHOD_NOT_ALLOWED,
                f"{request.path} takes {' and '.join(allowed)}, not {request.method}",
            )
        raise ControlError(
            HTTPStatus.NOT_FOUND, f"unknown path {request.path}; GET / lists all paths"
        )

    return answer


# --- values


def _only(values: Mapping[str, object], *names: str) -> None:
    for name, value in values.items():
        if name not in names:
            raise ConfigError(name, value, f"must be one of {', '.join(names)}")


def _integer(name: str, value: object) -> int:
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(name, value, "must be an integer")
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(name, value, "must be a string")
    return value


def _fault(value: object) -> Fault:
    names = {fault.name.lower(): fault for fault in Fault}
    if not isinstance(value, str) or value.lower() not in names:
        raise ConfigError("fault", value, f"must be one of {', '.join(names)}")
    return names[value.lower()]


def _error(value: object) -> ErrorCode:
    if isinstance(value, str) and value in ErrorCode.__members__:
        return ErrorCode[value]
    if isinstance(value, int) and value in list(ErrorCode):
        return ErrorCode(value)
    raise ConfigError("error", value, "must be a Kafka error such as REQUEST_TIMED_OUT")


def _rule_of(body: Mapping[str, object]) -> FaultRule:
    """Read a rule."""
    _only(body, *_RULE_FIELDS)
    options: dict[str, object] = {}
    for name, value in body.items():
        if name in _TEXTS:
            options[name] = _text(name, value)
        elif name in _INTEGERS and not (name == "times" and value is None):
            options[name] = _integer(name, value)
    key = body.get("key")
    if key is not None and not isinstance(key, str | int):
        raise ConfigError("key", key, "must be a request's name such as Produce, or its API key")
    if "error" in body:
        options["error"] = _error(body["error"])
    times = None if "times" in body and body["times"] is None else options.pop("times", 1)
    assert times is None or isinstance(times, int)
    return make_rule(key, _fault(body.get("fault")), times, **options)


# --- rules


async def _rules(broker: Broker, request: ControlRequest, _: str) -> object:
    return {"rules": [rule.describe() for rule in broker.faults.rules]}


async def _add_rule(broker: Broker, request: ControlRequest, _: str) -> object:
    rule = _rule_of(request.body)
    broker.faults.put(rule)
    return rule.describe()


def _found(broker: Broker, rule_id: str) -> FaultRule:
    for rule in broker.faults.rules:
        if rule.rule_id == int(rule_id):
            return rule
    raise ControlError(HTTPStatus.NOT_FOUND, f"unknown rule {rule_id}; GET /rules lists all rules")


async def _rule(broker: Broker, request: ControlRequest, rule_id: str) -> object:
    return _found(broker, rule_id).describe()


async def _remove_rule(broker: Broker, request: ControlRequest, rule_id: str) -> object:
    rule = _found(broker, rule_id)
    broker.faults.remove(rule)
    return rule.describe()


async def _clear_rules(broker: Broker, request: ControlRequest, _: str) -> object:
    gone = [rule.describe() for rule in broker.faults.rules]
    broker.faults.clear()
    return {"rules": gone}


# --- journal


async def _journal(broker: Broker, request: ControlRequest, _: str) -> object:
    query = request.query
    texts = ("key", "client_id", "topic", "group_id", "transactional_id")
    numbers = ("partition", "node_id", "after", "limit")
    _only(query, *texts, *numbers)
    options: dict[str, object] = {name: query[name] for name in texts if name in query}
    options.update({name: _integer(name, query[name]) for name in numbers if name in query})
    limit = options.pop("limit", JOURNAL_LIMIT)
    assert isinstance(limit, int)
    journal = broker.journal
    found = journal.select(**options)[: max(0, limit)]  # type: ignore[arg-type]
    return {
        "recording": journal.recording,
        "dropped": journal.dropped,
        "entries": [_plain_entry(entry) for entry in found],
    }


def _plain_entry(entry: JournalEntry) -> dict[str, object]:
    answer = entry.answer
    return {
        "number": entry.number,
        "now_ms": entry.now_ms,
        "answered_ms": entry.answered_ms,
        "connection_id": entry.connection_id,
        "node_id": entry.node_id,
        "client_id": entry.client_id,
        "principal": entry.principal,
        "key": entry.key,
        "api_version": entry.api_version,
        "fault": entry.fault.name.lower() if entry.fault is not None else None,
        "request": plain_message(entry.request, entry.api_version),
        "answer": plain_message(answer, entry.api_version) if answer is not None else None,
    }


async def _set_journal(broker: Broker, request: ControlRequest, _: str) -> object:
    _only(request.body, "recording")
    recording = request.body.get("recording")
    if not isinstance(recording, bool):
        raise ConfigError("recording", recording, "must be true or false")
    broker.journal.recording = recording
    return {"recording": recording}


async def _clear_journal(broker: Broker, request: ControlRequest, _: str) -> object:
    entries = len(broker.journal)
    broker.journal.clear()
    return {"cleared": entries}


# --- clock and life


async def _clock(broker: Broker, request: ControlRequest, _: str) -> object:
    return {"now_ms": broker.now_ms()}


async def _move_clock(broker: Broker, request: ControlRequest, _: str) -> object:
    _only(request.body, "advance_ms")
    advance_ms = _integer("advance_ms", request.body.get("advance_ms"))
    if not 0 <= advance_ms <= ADVANCE_MS_MAX:
        raise ConfigError("advance_ms", advance_ms, f"must be from 0 to {ADVANCE_MS_MAX}")
    broker.advance(advance_ms)
    return {"now_ms": broker.now_ms()}


async def _broker(broker: Broker, request: ControlRequest, _: str) -> object:
    return broker.describe()


async def _partitions(broker: Broker, request: ControlRequest, _: str) -> object:
    _only(request.query, "topic")
    with _as_conflict():
        figures = broker.partition_figures(request.query.get("topic"))
    return [each._asdict() for each in figures]


async def _stop(broker: Broker, request: ControlRequest, _: str) -> object:
    await broker.stop_async(clean=not _killed(request))
    return broker.describe()


async def _start(broker: Broker, request: ControlRequest, _: str) -> object:
    if broker.running:
        raise ControlError(HTTPStatus.CONFLICT, "the broker is running already")
    await broker.start_async()
    return broker.describe()


async def _restart(broker: Broker, request: ControlRequest, _: str) -> object:
    await broker.stop_async(clean=not _killed(request))
    await broker.start_async()
    return broker.describe()


def _killed(request: ControlRequest) -> bool:
    _only(request.body, "kill")
    kill = request.body.get("kill", False)
    if not isinstance(kill, bool):
        raise ConfigError("kill", kill, "must be true (a crash) or false (a clean stop)")
    return kill


# --- several nodes


async def _stop_node(broker: Broker, request: ControlRequest, node_id: str) -> object:
    with _as_conflict():
        await broker.stop_node_async(int(node_id))
    return broker.describe()


async def _start_node(broker: Broker, request: ControlRequest, node_id: str) -> object:
    with _as_conflict():
        await broker.start_node_async(int(node_id))
    return broker.describe()


async def _move_leader(broker: Broker, request: ControlRequest, _: str) -> object:
    body = request.body
    _only(body, "topic", "partition", "node_id")
    topic = _text("topic", body.get("topic"))
    partition = _integer("partition", body.get("partition"))
    with _as_conflict():
        broker.move_leader(topic, partition, _integer("node_id", body.get("node_id")))
    return {"topic": topic, "partition": partition, "leader": broker.leader(topic, partition)}


async def _move_coordinator(broker: Broker, request: ControlRequest, _: str) -> object:
    body = request.body
    names = ("group_id", "transactional_id")
    _only(body, *names, "node_id")
    key = {name: _text(name, body[name]) for name in names if name in body}
    with _as_conflict():
        broker.move_coordinator(_integer("node_id", body.get("node_id")), **key)
        return {**key, "coordinator": broker.coordinator(**key)}


async def _elect_preferred(broker: Broker, request: ControlRequest, _: str) -> object:
    return {"moved": broker.elect_preferred()}


@contextmanager
def _as_conflict() -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except (PlacementError, KeyError, ValueError, RuntimeError) as error:
        raise ControlError(HTTPStatus.CONFLICT, str(error.args[0])) from None


async def _index(broker: Broker, request: ControlRequest, _: str) -> object:
    return {
        f"{method} {pattern}": documentation
        for (method, pattern), (_, documentation) in CALLS.items()
    }


CALLS: dict[tuple[str, str], tuple[Call, str]] = {
    ("GET", "/"): (_index, "this list"),
    ("GET", "/rules"): (_rules, "all fault rules with their hits"),
    ("POST", "/rules"): (_add_rule, f"make a rule of {', '.join(_RULE_FIELDS)}"),
    ("DELETE", "/rules"): (_clear_rules, "end all rules; requests that they hold are executed"),
    ("GET", "/rules/{id}"): (_rule, "one rule"),
    ("DELETE", "/rules/{id}"): (_remove_rule, "end one rule; requests that it holds are executed"),
    ("GET", "/journal"): (
        _journal,
        "requests and answers; filter by key, client_id, topic, partition, group_id, "
        "transactional_id, node_id, after and limit",
    ),
    ("PUT", "/journal"): (_set_journal, 'switch it on or off: {"recording": true}'),
    ("DELETE", "/journal"): (_clear_journal, "drop all entries"),
    ("GET", "/clock"): (_clock, "the broker's time in milliseconds"),
    ("POST", "/clock"): (_move_clock, 'move it: {"advance_ms": 60000}'),
    ("GET", "/broker"): (_broker, "addresses, cluster id, connections, nodes and topics"),
    ("GET", "/partitions"): (
        _partitions,
        "offsets of each partition, and how many records an open transaction hides "
        "(last_stable_offset_lag); of one with topic",
    ),
    ("POST", "/broker/stop"): (_stop, 'stop it; as a crash would with {"kill": true}'),
    ("POST", "/broker/start"): (_start, "start the broker again with the same data and address"),
    ("POST", "/broker/restart"): (_restart, "stop and start, with kill as for stop"),
    ("POST", "/nodes/{id}/stop"): (_stop_node, "stop a node; its leaders move to other nodes"),
    ("POST", "/nodes/{id}/start"): (_start_node, "start a stopped node"),
    ("POST", "/leaders"): (
        _move_leader,
        'move a leader: {"topic": "t", "partition": 0, "node_id": 2}',
    ),
    ("POST", "/leaders/preferred"): (_elect_preferred, "move each leader to its preferred replica"),
    ("POST", "/coordinators"): (
        _move_coordinator,
        'move one: {"group_id": "g", "node_id": 2}, or with transactional_id',
    ),
}
"""By method and path: the function, and what it does."""
