"""Goal: one trouble does not fill the log, hides no other, and nothing is left out in silence.

Method: a logger of its own, a clock that is moved by hand, and the texts that came out.
"""

from __future__ import annotations

import logging

import pytest

from onceflow.broker_lite.daemon.repeated_messages import ALLOWED, WINDOW_S, RepeatedMessages


class World:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.texts: list[str] = []
        self.logger = logging.Logger("a broker", logging.DEBUG)
        handler = logging.Handler()
        handler.emit = lambda record: self.texts.append(record.getMessage())  # type: ignore[method-assign]
        handler.addFilter(RepeatedMessages(lambda: self.now_s))
        self.logger.addHandler(handler)

    def full_disk(self, times: int, level: int = logging.ERROR) -> None:
        for number in range(times):
            self.logger.log(level, "partition %d: no space left", number)


@pytest.fixture
def world() -> World:
    return World()


def test_the_first_messages_of_a_trouble_are_told_and_the_others_counted(world: World) -> None:
    world.full_disk(1000)
    assert world.texts == [f"partition {n}: no space left" for n in range(ALLOWED)]
    world.now_s += WINDOW_S
    world.full_disk(1)
    assert world.texts[ALLOWED:] == [
        f"partition 0: no space left (and {1000 - ALLOWED} more like this before)"
    ]


def test_a_window_in_which_nothing_was_left_out_is_not_mentioned(world: World) -> None:
    for _ in range(3):
        world.full_disk(1)
        world.now_s += WINDOW_S
    assert world.texts == ["partition 0: no space left"] * 3


def test_another_trouble_is_told_meanwhile(world: World) -> None:
    world.full_disk(1000)
    world.logger.warning("a certificate ends tomorrow")
    assert world.texts[-1] == "a certificate ends tomorrow"


def test_who_asks_for_more_than_warnings_gets_all_of_it(world: World) -> None:
    world.full_disk(1000, logging.INFO)
    assert len(world.texts) == 1000
