"""Prints a topology as text, JSON or a Mermaid chart."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from onceflow.processors.graph.nodes import (
    STORING,
    AggregateNode,
    BatchNode,
    FunctionNode,
    SinkNode,
    SourceNode,
    TimerNode,
    WorkingNode,
)
from onceflow.processors.policies import OnError, Retries
from onceflow.sdk.serde import to_json

if TYPE_CHECKING:
    from onceflow.processors.graph.topology import Topology


def as_text(topology: Topology) -> str:
    """Return the topology as text, with a block for each node that has a function."""
    lines = [f"application {topology.app}"]
    lines += [f"  global table {t.name}: {t.topic}" for t in topology.global_tables]
    for number, part in enumerate(topology.sub_topologies):
        lines.append(f"  sub-topology {number}: {', '.join(part.input_topics)}")
        for node in part.nodes:
            if isinstance(node, WorkingNode):
                lines += _working_lines(node)
            elif not isinstance(node, SourceNode | SinkNode):
                lines.append(f"    {node.kind} {node.name}")
                lines.append(f"      takes from   {_names(node.parents)}")
    return "\n".join(lines)


def _names(parents: tuple[str, ...]) -> str:
    return ", ".join(name.removeprefix("topic ") for name in parents)


def _working_lines(node: WorkingNode) -> list[str]:
    kind = node.kind
    if isinstance(node, FunctionNode):
        kind = "async processor" if node.needs_loop else "processor"
    by_topic = all(name.startswith("topic ") for name in node.parents)
    lines = [
        f"    {kind} {node.name}",
        f"      {'reads       ' if by_topic else 'takes from  '} {_names(node.parents)}",
        f"      writes       {', '.join(node.targets) or '(only what names a topic)'}",
    ]
    if isinstance(node, STORING):
        lines[0] = f"    sink {node.name}"
        lines[2] = f"      stores in    {type(node.sink).__name__}"
    tables = [*node.lookups, *(f"{name} (global)" for name in node.global_lookups)]
    if isinstance(node, TimerNode):
        lines[1] = f"      timers of    {tables.pop(0)}"
    if tables:
        lines.append(f"      looks up     {', '.join(tables)}")
    if isinstance(node, BatchNode):
        lines.append(f"      batch        up to {node.size} records a call")
    if isinstance(node, AggregateNode):
        lines.append(f"      windows      {node.frames.shape}, result on {_moment(node)}")
        lines.append(f"      late         {node.late_topic or '(dropped, with a warning)'}")
    for state in node.states:
        value = _type_name(state.declaration.value_type)
        lines.append(
            f"      state        {state.declaration.name}: {value} in {node.store.value}, "
            f"changelog {state.changelog}"
        )
    lines.append(f"      retries      {_retries(node.policy.retries)}")
    lines.append(f"      then         {_end(node)}")
    return lines


def _moment(node: AggregateNode) -> str:
    return "each record" if node.on_update else "close"


def _type_name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _retries(retries: Retries) -> str:
    if retries.count_max == 0:
        return "none"
    return f"{retries.count_max}, {retries.backoff_ms} to {retries.backoff_max_ms} ms apart"


def _end(node: WorkingNode) -> str:
    policy = node.policy
    if policy.on_error is OnError.DEAD_LETTER:
        return f"dead letter to {policy.dead_letter_topic}"
    ends = {OnError.STOP: "stop before the record", OnError.SKIP: "skip the record"}
    return ends[policy.on_error]


def as_json(topology: Topology) -> str:
    """Return the topology as JSON: nodes, edges and sub-topologies."""
    nodes = [
        {
            "name": node.name,
            "kind": node.kind,
            "topic": node.reads or next(iter(node.writes), None),
            "writes": list(node.writes),
            "takes": node.takes,
            "gives": node.gives,
            "global_tables": list(node.global_lookups),
            "states": [
                {"name": state.name, "type": state.text, "changelog": state.changelog}
                for state in node.states
            ],
        }
        for node in topology.nodes
    ]
    return to_json(
        {
            "app": topology.app,
            "group": topology.group,
            "global_tables": [
                {"name": table.name, "topic": table.topic} for table in topology.global_tables
            ],
            "nodes": nodes,
            "edges": [
                {"source": edge.source, "target": edge.target, "value": edge.value}
                for edge in topology.edges
            ],
            "sub_topologies": [
                {"name": part.name, "nodes": [node.name for node in part.nodes]}
                for part in topology.sub_topologies
            ],
        }
    ).decode()


def as_mermaid(topology: Topology) -> str:
    """Return a flow chart with topics as cylinders; a topic that is written and read is one."""
    lines = ["flowchart LR"]
    ids: dict[str, str] = {}
    for topic in dict.fromkeys([*topology.input_topics, *topology.output_topics]):
        ids[topic] = f"t{len(ids)}"
        lines.append(f'    {ids[topic]}[("{_escaped(topic)}")]')
    place: dict[str, str] = {}
    for number, part in enumerate(topology.sub_topologies):
        lines.append(f'    subgraph s{number}["{number}"]')
        for node in part.nodes:
            if isinstance(node, SourceNode | SinkNode):
                place[node.name] = ids[node.topic]
                continue
            place[node.name] = f"n{len(place)}"
            label = "<br/>".join([node.name, *(f"({state.name})" for state in node.states)])
            lines.append(f'        {place[node.name]}["{_escaped(label)}"]')
        lines.append("    end")
    for edge in topology.edges:
        lines.append(f"    {place[edge.source]} -->{_label(edge.value)} {place[edge.target]}")
    for number, table in enumerate(topology.global_tables):
        if table.topic not in ids:
            ids[table.topic] = f"t{len(ids)}"
            lines.append(f'    {ids[table.topic]}[("{_escaped(table.topic)}")]')
        lines.append(f'    g{number}[/"{_escaped(table.name)}<br/>global table"/]')
        lines.append(f"    {ids[table.topic]} --> g{number}")
        for node in topology.nodes:
            if table.name in node.global_lookups:
                lines.append(f"    g{number} -. looked up .-> {place[node.name]}")
    for function in topology.working:
        dead = function.policy.dead_letter_topic
        if dead is not None:
            lines.append(f"    {place[function.name]} -. dead letters .-> {ids[dead]}")
    return "\n".join(lines)


def _label(value: str) -> str:
    return f"|{_escaped(value)}|" if value else ""


def _escaped(text: str) -> str:
    return re.sub(r"[\"<>\[\]|{}]", lambda found: f"#{ord(found[0])};", text).replace(
        "#60;br/#62;", "<br/>"
    )
