"""Splits requests into parts (topics, partitions, groups, transactional ids) and merges answers.

A table says for each API key where the request names its parts and where the answer mirrors them.
With it, this module splits a request into refused parts and the rest, makes an answer with an error
code for each refused part, and merges it with the handler's answer. Fault rules and nodes decide
which parts to refuse.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from onceflow.broker_lite.purgatory import Deferred
from onceflow.broker_lite.request_context import CloseConnection
from onceflow.sdk.protocol.api import API
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.error_codes import ErrorCode
from onceflow.sdk.protocol.primitives import ZERO_UUID
from onceflow.sdk.protocol.schema import REQUIRED, Message, Request, Response

ITSELF = ""
"""Marks an array whose elements are plain strings or numbers."""


class Part(NamedTuple):
    """One part of a request; None for a field that the request does not name.

    Attributes:
        topic: Name or id of a topic.
        partition: Number of a partition.
        group_id: A group.
        transactional_id: A transactional id.
    """

    topic: str | uuid.UUID | None = None
    partition: int | None = None
    group_id: str | None = None
    transactional_id: str | None = None


class Level(NamedTuple):
    """An array of a request, and the array of the answer that mirrors it.

    Attributes:
        asked: Array of the request.
        answered: Array of the answer.
        names: Pairs of naming fields: in the answer's element, and in the request's.
        what: Field of :class:`Part` that the names fill; empty for none.
        error: Field of the answer's element for an error code; empty for none.
        fixed: Values of further fields of an element that holds only an error.
        then: The array within each element, or None.
    """

    asked: str
    answered: str
    names: tuple[tuple[str, str], ...]
    what: str
    error: str = "error_code"
    fixed: tuple[tuple[str, object], ...] = ()
    then: Level | None = None


def _same(*names: str) -> tuple[tuple[str, str], ...]:
    return tuple((name, name) for name in names)


def _topics(then: Level, *, asked: str = "topics", answered: str = "topics") -> Level:
    return Level(asked, answered, _same("name"), "topic", "", (), then)


_NAME_AND_ID = _same("name", "topic_id")
_INDEX = Level("partitions", "partitions", _same("partition_index"), "partition")
_PLAIN_INDEX = Level("partition_indexes", "partitions", (("partition_index", ITSELF),), "partition")
_COMMITTED = _PLAIN_INDEX._replace(fixed=(("committed_offset", -1), ("metadata", "")))
_ADDED = Level(
    "partitions",
    "results_by_partition",
    (("partition_index", ITSELF),),
    "partition",
    "partition_error_code",
)
_ADDED_TOPICS = _topics(_ADDED, answered="topic_results")
_RESOURCE = _same("resource_type", "resource_name")

LEVELS: dict[int, tuple[Level, ...]] = {
    0: (
        Level("topic_data", "responses", _NAME_AND_ID, "topic", "", (), Level(
            "partition_data", "partition_responses", _same("index"), "partition",
            fixed=(("base_offset", -1),))),
    ),
    1: (
        Level("topics", "responses", _same("topic", "topic_id"), "topic", "", (), Level(
            "partitions", "partitions", (("partition_index", "partition"),), "partition",
            fixed=(("high_watermark", -1), ("records", b"")))),
    ),
    2: (_topics(_INDEX),),
    3: (Level("topics", "topics", _NAME_AND_ID, "topic"),),
    8: (Level("topics", "topics", _NAME_AND_ID, "topic", "", (), _INDEX),),
    9: (
        Level("groups", "groups", _same("group_id"), "group_id", then=Level(
            "topics", "topics", _NAME_AND_ID, "topic", "", (), _COMMITTED)),
        _topics(_COMMITTED),
    ),
    10: (
        Level("coordinator_keys", "coordinators", (("key", ITSELF),), "", fixed=(
            ("node_id", -1), ("host", ""), ("port", -1))),
    ),
    15: (Level("groups", "groups", (("group_id", ITSELF),), "group_id"),),
    19: (Level("topics", "topics", _same("name"), "topic"),),
    20: (
        Level("topics", "responses", _NAME_AND_ID, "topic"),
        Level("topic_names", "responses", (("name", ITSELF),), "topic"),
    ),
    21: (_topics(_INDEX),),
    23: (
        Level("topics", "topics", _same("topic"), "topic", "", (), Level(
            "partitions", "partitions", _same("partition"), "partition")),
    ),
    24: (
        Level("transactions", "results_by_transaction", _same("transactional_id"),
              "transactional_id", "", (), _ADDED_TOPICS),
        _topics(_ADDED, asked="v3_and_below_topics", answered="results_by_topic_v3_and_below"),
    ),
    27: (Level("markers", "markers", _same("producer_id"), "", "", (), _topics(_PLAIN_INDEX)),),
    28: (_topics(_INDEX),),
    30: (Level("creations", "results", (), ""),),
    31: (Level("filters", "filter_results", (), ""),),
    32: (Level("resources", "results", _RESOURCE, ""),),
    33: (Level("resources", "responses", _RESOURCE, ""),),
    37: (Level("topics", "results", _same("name"), "topic"),),
    42: (Level("groups_names", "results", (("group_id", ITSELF),), "group_id"),),
    43: (
        Level("topic_partitions", "replica_election_results", _same("topic"), "topic", "", (),
              Level("partitions", "partition_result", (("partition_id", ITSELF),), "partition")),
    ),
    44: (Level("resources", "responses", _RESOURCE, ""),),
    45: (_topics(_INDEX, answered="responses"),),
    47: (_topics(_INDEX),),
    61: (_topics(_PLAIN_INDEX),),
    65: (
        Level("transactional_ids", "transaction_states", (("transactional_id", ITSELF),),
              "transactional_id"),
    ),
    69: (Level("group_ids", "groups", (("group_id", ITSELF),), "group_id"),),
    75: (Level("topics", "topics", _same("name"), "topic"),),
}  # fmt: skip
"""By API key; of several levels, the first whose array the request's version has applies."""

BELOW_FIRST = frozenset({1, 3})
"""API keys whose errors go to the parts, as the answer's own error field means other faults."""

_OWN_NAMES = {
    "group_id": ("group_id",),
    "transactional_id": ("transactional_id", "v3_and_below_transactional_id"),
}


def parts(request: Request, api_version: int) -> Iterator[Part]:
    """Yield the parts of a request in its order; one empty part if it names none.

    Args:
        request: The request. Partitions that only a fetch session holds are not parts.
        api_version: Its version.
    """
    whole = _own_part(request, api_version)
    level = _level(request, api_version)
    elements = getattr(request, level.asked) if level is not None else None
    if level is None or not elements:
        yield whole
        return
    yield from _parts(elements, level, whole)


def split(
    request: Request, api_version: int, chosen: Callable[[Part], bool]
) -> tuple[Request | None, Request | None]:
    """Split a request into one with the chosen parts and one with the others.

    Args:
        request: The request; it is not changed.
        api_version: Its version.
        chosen: Whether a part is chosen.

    Returns:
        Both requests; None in place of one without parts.
    """
    level = _level(request, api_version)
    whole = _own_part(request, api_version)
    elements = getattr(request, level.asked) if level is not None else None
    if level is None or not elements:
        return (request, None) if chosen(whole) else (None, request)
    first, second = _split(elements, level, whole, chosen)
    if not first:
        return None, request
    if not second:
        return request, None
    return _copy(request, level.asked, first), _copy(request, level.asked, second)


def merge(answer: Response, other: Response, api_key: int, api_version: int) -> Response:
    """Merge another answer into ``answer``; for a part that both have, the other's wins."""
    for level in LEVELS.get(api_key, ()):
        field = type(answer).fields()[level.answered]
        if field.is_present(api_version):
            mine = list(getattr(answer, level.answered) or ())
            _merge(mine, getattr(other, level.answered) or [], level)
            setattr(answer, level.answered, mine)
            break
    return answer


def error_answer(
    request: Request, api_version: int, code: ErrorCode, *, each_part: bool = False
) -> Response:
    """Make an answer that holds only an error.

    Args:
        request: The request.
        api_version: Its version.
        code: The error.
        each_part: Set the error of each part, also if the answer has an error field of its own.

    Raises:
        ValueError: The answer has no field for the error.
    """
    response_type = API[request.api_key].response_type
    fields = response_type.fields()
    level = _level(request, api_version)
    elements = getattr(request, level.asked) if level is not None else None
    top = fields.get("error_code")
    if (
        top is not None
        and top.is_present(api_version)
        and not (elements and (each_part or request.api_key in BELOW_FIRST))
    ):
        whole: Response = _blank(response_type, {"error_code": code})
        return whole
    if level is None:
        raise ValueError(
            f"answers to {type(request).__name__} version {api_version} have no error field: use "
            "a rule that drops the request or the answer"
        )
    refused = _refused(response_type, elements or (), level, code, each_part)
    answer: Response = _blank(response_type, {level.answered: refused})
    return answer


def refuse_parts(
    request: Request,
    api_version: int,
    refuses: Callable[[Part], bool],
    code: ErrorCode,
    run: Callable[[Request], object],
) -> object:
    """Answer some parts of a request with an error, and call a handler for the others.

    Args:
        request: The request.
        api_version: Its version.
        refuses: Whether a part is refused.
        code: The error.
        run: The handler; it may answer later.

    Returns:
        The handler's answer merged with the errors; None if the handler returns None.

    Raises:
        CloseConnection: A part of a Produce with ``acks=0`` is refused. Such a request gets no
            answer, so that the client learns of the error only by the closed connection.
    """
    refused, rest = split(request, api_version, refuses)
    if refused is None:
        return run(request)
    if isinstance(request, ProduceRequest) and request.acks == 0:
        if rest is not None:
            run(rest)
        raise CloseConnection(f"{code.name} for a produce with acks=0")
    if rest is None:
        return error_answer(request, api_version, code)
    errors = error_answer(refused, api_version, code, each_part=True)
    return merged(run(rest), errors, request.api_key, api_version)


def merged(result: object, errors: Response, api_key: int, api_version: int) -> object:
    """Merge a handler's answer with errors, at once or when a deferred answer arrives."""
    if isinstance(result, Response):
        return merge(result, errors, api_key, api_version)
    if isinstance(result, Deferred):
        deferred: Deferred[Response] = Deferred(result.disconnect)
        result.add_done_callback(
            lambda answer: deferred.complete(merge(answer, errors, api_key, api_version))
        )
        return deferred
    return result


# --- walking


def _level(request: Request, api_version: int) -> Level | None:
    fields = type(request).fields()
    for level in LEVELS.get(request.api_key, ()):
        if fields[level.asked].is_present(api_version):
            return level
    return None


def _own_part(request: Request, api_version: int) -> Part:
    part = Part()
    fields = type(request).fields()
    for what, names in _OWN_NAMES.items():
        for name in names:
            field = fields.get(name)
            if field is not None and field.is_present(api_version):
                part = part._replace(**{what: getattr(request, name)})
    return part


def _named(element: Any, level: Level, part: Part) -> Part:
    if not level.what:
        return part
    for _, name in level.names:
        value = element if name == ITSELF else getattr(element, name, None)
        if value not in (None, "", ZERO_UUID):
            return part._replace(**{level.what: value})
    return part


def _parts(elements: list[Any], level: Level, part: Part) -> Iterator[Part]:
    for element in elements:
        named = _named(element, level, part)
        inner = getattr(element, level.then.asked) if level.then is not None else None
        if level.then is None or not inner:
            yield named
        else:
            yield from _parts(inner, level.then, named)


def _split(
    elements: list[Any], level: Level, part: Part, chosen: Callable[[Part], bool]
) -> tuple[list[Any], list[Any]]:
    first: list[Any] = []
    second: list[Any] = []
    for element in elements:
        named = _named(element, level, part)
        inner = getattr(element, level.then.asked) if level.then is not None else None
        if level.then is None or not inner:
            (first if chosen(named) else second).append(element)
            continue
        taken, left = _split(inner, level.then, named, chosen)
        if taken:
            first.append(_copy(element, level.then.asked, taken) if left else element)
        if left:
            second.append(_copy(element, level.then.asked, left) if taken else element)
    return first, second


def _copy(message: Any, name: str, value: object) -> Any:
    fields = {field: getattr(message, field) for field in type(message).fields()}
    return type(message)(**{**fields, name: value})


def _key(element: Any, level: Level) -> tuple[object, ...]:
    return tuple(getattr(element, name, None) for name, _ in level.names)


def _merge(mine: list[Any], others: list[Any], level: Level) -> None:
    places = {_key(element, level): number for number, element in enumerate(mine)}
    for element in others:
        number = places.get(_key(element, level))
        if number is None:
            mine.append(element)
        elif level.then is None or (level.error and getattr(element, level.error)):
            mine[number] = element
        else:
            inner = list(getattr(mine[number], level.then.answered))
            _merge(inner, getattr(element, level.then.answered), level.then)
            setattr(mine[number], level.then.answered, inner)


# --- answers that hold only an error


def _refused(
    owner: type[Message], elements: Any, level: Level, code: ErrorCode, each_part: bool
) -> list[Message]:
    declared = owner.fields()[level.answered].element
    assert declared is not None
    assert declared.struct_type is not None
    made = []
    for element in elements:
        values: dict[str, object] = dict(level.fixed) if level.error else {}
        for name, asked in level.names:
            value = element if asked == ITSELF else getattr(element, asked, None)
            if name in declared.struct_type.fields() and value is not None:
                values[name] = value
        inner = getattr(element, level.then.asked) if level.then is not None else None
        if level.error and not (each_part and inner):
            values[level.error] = code
        elif level.then is not None:
            values[level.then.answered] = _refused(
                declared.struct_type, inner or (), level.then, code, each_part
            )
        made.append(_blank(declared.struct_type, values))
    return made


def _blank(message_type: type[Any], values: dict[str, object]) -> Any:
    required = {
        name: field.absent_value
        for name, field in message_type.fields().items()
        if field.default is REQUIRED
    }
    return message_type(**{**required, **values})
