"""The decorator that turns a typed function into a processor.

It only builds a ``ProcessorSpec``; the function itself is returned unchanged, so that it can be
called and tested like any other.
"""

from __future__ import annotations

import enum
import inspect
import typing
from collections.abc import Callable
from typing import Final, TypeVar

from onceflow.processors.errors import DeclarationError
from onceflow.processors.policies import DeadLetterLimits, OnError, Retries
from onceflow.processors.signatures import read_signature
from onceflow.processors.topology import ProcessorSpec, StoreKind, state_specs
from onceflow.processors.values import Format, decoder_for
from onceflow.sdk.errors import InvalidTopicError
from onceflow.sdk.model.record_checks import check_topic_name

E = TypeVar("E", bound=enum.Enum)
F = TypeVar("F", bound=Callable[..., object])

_PLAIN_VALUES: Final = (bytes, str, int, float, bool, dict)
"""What a handler returns as a value; never an Output, and never several."""


def build_spec(
    function: Callable[..., object],
    *,
    app: str,
    input_topic: str,
    to: str | None,
    name: str | None,
    dead_letter: str | None,
    retries: int | Retries,
    on_error: OnError | str | None,
    limits: DeadLetterLimits,
    format: Format | str,
    store: StoreKind | str,
) -> ProcessorSpec:
    """Read a function's signature and put its processor together.

    Raises:
        DeclarationError: The declaration contradicts itself, or a type has no codec.
    """
    called = str(getattr(function, "__name__", "processor")) if name is None else name
    if not isinstance(called, str) or not called:
        raise DeclarationError(f"name={name!r} must be a text that is not empty")
    for parameter, topic in (("topic", input_topic), ("to", to), ("dead_letter", dead_letter)):
        if topic is not None or parameter == "topic":
            _check_topic(called, parameter, topic)
    if dead_letter == input_topic:
        raise DeclarationError(
            f"{called}: dead letters in the input topic {input_topic!r} would come again for ever"
        )
    if to == input_topic:
        raise DeclarationError(
            f"{called}: what it sends to its own input topic {input_topic!r} would come again for "
            "ever; name another topic, or, where it ends by itself, leave out to= and return "
            f"Output(value, topic={input_topic!r})"
        )
    if not isinstance(limits, DeadLetterLimits):
        raise DeclarationError(f"{called}: limits={limits!r} must be DeadLetterLimits")
    signature = read_signature(function)
    _check_returns(called, signature.returns, to)
    layout = _choice(Format, called, "format", format)
    for argument in signature.arguments:
        if argument.kind.value in ("value", "key"):
            decoder_for(argument.annotation, layout, f"{argument.name} of {called}")
    if on_error is None:
        policy = OnError.STOP if dead_letter is None else OnError.DEAD_LETTER
    else:
        policy = _choice(OnError, called, "on_error", on_error)
    if (policy is OnError.DEAD_LETTER) != (dead_letter is not None):
        raise DeclarationError(
            f"{called}: dead_letter={dead_letter!r} and on_error={policy.value!r} contradict "
            "each other; give the topic alone"
        )
    return ProcessorSpec(
        name=called,
        input_topic=input_topic,
        output_topic=to,
        signature=signature,
        format=layout,
        retries=retries if isinstance(retries, Retries) else Retries(retries),
        on_error=policy,
        dead_letter_topic=dead_letter,
        dead_letter_limits=limits,
        states=state_specs(app, called, signature),
        store=_choice(StoreKind, called, "store", store),
    )


def _check_returns(called: str, returns: object, to: str | None) -> None:
    """Refuse a value that every call would return and that has nowhere to go."""
    if to is None and (typing.get_origin(returns) or returns) in _PLAIN_VALUES:
        raise DeclarationError(
            f"{called} returns {inspect.formatannotation(returns)} but has no to= topic; declare "
            "one, or return None or Output(..., topic=...)"
        )


def _check_topic(called: str, parameter: str, topic: str | None) -> None:
    try:
        check_topic_name(topic or "")
    except InvalidTopicError as error:
        raise DeclarationError(
            f"{called}: {parameter}={topic!r} names no topic: {error}"
        ) from error


def _choice(kind: type[E], called: str, parameter: str, value: object) -> E:
    try:
        return kind(value)
    except ValueError:
        names = ", ".join(repr(member.value) for member in kind)
        raise DeclarationError(f"{called}: {parameter}={value!r}: choose from {names}") from None
