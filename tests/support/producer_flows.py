"""Play a flow without a driver: answers are taken from a list, steps are recorded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from onceflow.sdk.core.flow import Flow, Send, Step
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.protocol.schema import Response

T = TypeVar("T")


def play(flow: Flow[T], *answers: Response | KafkaError) -> tuple[T, list[Step]]:
    """Drive a flow to its end.

    Args:
        flow: The conversation.
        answers: What each Send gets; an error is thrown into the flow.

    Returns:
        What the flow returned, and its steps.
    """
    left: Iterator[Response | KafkaError] = iter(answers)
    steps: list[Step] = []
    try:
        step = next(flow)
        while True:
            steps.append(step)
            if not isinstance(step, Send):
                step = flow.send(None)
                continue
            answer = next(left, None)
            assert answer is not None, f"no answer is left for {step.request!r}"
            step = flow.throw(answer) if isinstance(answer, KafkaError) else flow.send(answer)
    except StopIteration as stop:
        assert next(left, None) is None, "answers are left over"
        result: T = stop.value
        return result, steps
