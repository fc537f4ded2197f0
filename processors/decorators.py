"""The decorator that turns a typed function into a processor.

It only builds a ``ProcessorSpec``; the function itself is returned unchanged, so that it can be
called and tested like any other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from onceflow.processors.errors import DeclarationError
from onceflow.processors.policies import DeadLetterLimits, OnError, Retries
from onceflow.processors.signatures import read_signature
from onceflow.processors.topology import ProcessorSpec, StoreKind, state_specs
from onceflow.processors.values import Format, decoder_for

F = TypeVar("F", bound=Callable[..., object])


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
    scope_depth: int,
) -> ProcessorSpec:
    """Read a function's signature and put its processor together.

    Raises:
        DeclarationError: The declaration contradicts itself, or a type has no codec.
    """
    called = name or str(getattr(function, "__name__", "processor"))
    localns = sys._getframe(scope_depth).f_locals
    signature = read_signature(function, localns)
    layout = Format(format)
    for argument in signature.arguments:
        if argument.kind.value in ("value", "key"):
            decoder_for(argument.annotation, layout, f"{argument.name} of {called}")
    if on_error is None:
        policy = OnError.STOP if dead_letter is None else OnError.DEAD_LETTER
    else:
        policy = OnError(on_error)
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
        store=StoreKind(store),
    )
