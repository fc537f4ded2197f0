"""Kills of a Spark query at named steps of a micro-batch, and what was in flight then.

A relay between Spark and the broker sees each step as a request: one that is swallowed is a kill
before the step, one whose answer is held back is a kill after it. Steps that are files of the
checkpoint are waited for. Processes are found by the session that the driver was started with.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
from pathlib import Path
from typing import NamedTuple

from case_proxy import Action, Proxy
from spark_world import wait_until

from onceflow.sdk import Admin
from onceflow.sdk.errors import KafkaError
from onceflow.sdk.protocol.api.produce import ProduceRequest
from onceflow.sdk.protocol.api.transactions import (
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)
from onceflow.sdk.protocol.schema import Request, Response

KILL_WAIT_S = 60.0


class Step(NamedTuple):
    """A moment of a micro-batch.

    Attributes:
        name: What it is called.
        request: The request by which the relay knows it; None for a file of the checkpoint.
        moment: ``before`` it reaches the broker, ``handled`` and not answered, or ``answered``;
            for a file, the folder of the checkpoint.
        number: Which of these requests since the driver's start.
    """

    name: str
    request: type[Request] | None
    moment: str
    number: int = 1


STEPS = (
    Step("offsets written", None, "offsets"),
    Step("before the producer id", InitProducerIdRequest, "before"),
    Step("producer id taken", InitProducerIdRequest, "handled"),
    Step("before the first write", ProduceRequest, "before"),
    Step("first write done", ProduceRequest, "handled"),
    Step("before a middle write", ProduceRequest, "before", 2),
    Step("middle write done", ProduceRequest, "handled", 2),
    Step("before the last write", ProduceRequest, "before", 3),
    Step("last write done", ProduceRequest, "handled", 3),
    Step("before offsets are added", TxnOffsetCommitRequest, "before"),
    Step("offsets of the sources added", TxnOffsetCommitRequest, "handled"),
    Step("before the batch's number is added", TxnOffsetCommitRequest, "before", 2),
    Step("offsets added", TxnOffsetCommitRequest, "handled", 2),
    Step("before the end", EndTxnRequest, "before"),
    Step("end handled", EndTxnRequest, "handled"),
    Step("end answered", EndTxnRequest, "answered"),
    Step("commit file written", None, "commits"),
)
"""Steps of a micro-batch that tasks write to a topic of three partitions."""
DRIVER_STEPS = tuple(s for s in STEPS if s.request is not ProduceRequest or s.number == 1)
"""Those of one that the driver writes: it may send all partitions in one request."""
LEFT_STEPS = (
    Step("before tasks are fenced", EndTxnRequest, "before"),
    Step("tasks fenced", EndTxnRequest, "handled"),
    *(s._replace(number=2) if s.request is EndTxnRequest else s for s in DRIVER_STEPS),
)
"""Those of one whose tasks leave rows to the commit, which fences them before it writes."""
WRITING_STEPS = tuple(s for s in STEPS if s.request is ProduceRequest)
"""Those at which tasks write."""
TABLE_STEPS = tuple(
    step
    for step in STEPS
    if step.request is not None and (step.request is not TxnOffsetCommitRequest or step.number == 1)
)
"""Those of a write without a stream."""
PUBLISHED_AT = ("end handled", "end answered")
"""Steps at which the transaction is committed."""


class Victim(NamedTuple):
    """Processes of a query.

    Attributes:
        name: What they are called.
        words: Part of their command line; None for the driver with all that belongs to it.
    """

    name: str
    words: str | None


DRIVER = Victim("driver", None)
EXECUTOR = Victim("executor", "CoarseGrainedExecutorBackend")
PYTHON_WORKER = Victim("Python worker", "pyspark.daemon")
NOBODY = Victim("nobody: the test kills something else", None)


def processes_of(session: int, words: str) -> list[int]:
    """Processes of a session whose command line has these words, oldest first."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            own_session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if own_session == session and words in command:
                found.append(int(folder.name))
    return sorted(found)


def everything_of(session: int) -> list[int]:
    """All processes of a session."""
    return processes_of(session, "")


class Tally:
    """Counts kills, and which of them were inside an open transaction.

    Args:
        admin: Asks the broker.
        transactional_id: Of the query.

    Attributes:
        transactional_id: Of what is killed next.
    """

    def __init__(self, admin: Admin, transactional_id: str) -> None:
        self._admin = admin
        self.transactional_id = transactional_id
        self.kills = 0
        self.inside = 0

    def note(self) -> None:
        """Note a kill that comes now."""
        self.kills += 1
        self.inside += self.is_open()

    def is_open(self) -> bool:
        """Whether the query has an open transaction."""
        try:
            found = self._admin.describe_transactions([self.transactional_id])
        except KafkaError:
            return False
        return found[self.transactional_id].state == "Ongoing"


class Killing(Tally):
    """Kills at steps.

    Args:
        proxy: The relay between Spark and the broker.
        admin: Asks the broker itself.
        transactional_id: Of the query.
    """

    def __init__(self, proxy: Proxy, admin: Admin, transactional_id: str) -> None:
        super().__init__(admin, transactional_id)
        self._proxy = proxy

    def at(
        self, step: Step, driver: subprocess.Popen[bytes], checkpoint: Path, victim: Victim = DRIVER
    ) -> None:
        """Kill the victim when the query comes to the step.

        Raises:
            TimeoutError: The query did not come to it.
        """
        come, killed = threading.Event(), threading.Event()

        def hold(response: Response) -> Response:
            come.set()
            if step.moment == "handled":
                killed.wait(KILL_WAIT_S)
            return response

        known = newest(checkpoint / step.moment) if step.request is None else -1
        rule = None
        if step.request is not None:
            is_before = step.moment == "before"
            action, edit = (Action.SWALLOW, None) if is_before else (Action.EDIT, hold)
            rule = self._proxy.add(step.request, action, every=step.number, times=1, edit=edit)

        def has_come() -> bool:
            assert driver.poll() is None, f"the query ended before: {step.name}"
            if rule is None:
                return newest(checkpoint / step.moment) > known
            return come.is_set() or (step.moment == "before" and rule.hits > 0)

        try:
            wait_until(has_come, step.name, deadline_s=240)
            self._kill(driver, victim)
        finally:
            killed.set()
            self._proxy.clear()
        if step.moment == "before" and victim is not DRIVER:
            self._proxy.cut_all()  # What was swallowed is never answered.

    def _kill(self, driver: subprocess.Popen[bytes], victim: Victim) -> None:
        self.note()
        if victim is NOBODY:
            return
        if victim.words is None:
            for process in everything_of(driver.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            driver.wait(60)
            return
        found = processes_of(driver.pid, victim.words)
        assert found, f"no {victim.name} is there"
        # The last one is a worker; the first may be the parent that makes them.
        os.kill(found[-1], signal.SIGKILL)


def newest(folder: Path) -> int:
    """Number of the newest file of a checkpoint's folder; -1 without one."""
    if not folder.exists():
        return -1
    return max((int(p.name) for p in folder.iterdir() if p.name.isdigit()), default=-1)


def in_order(seed: int, steps: tuple[Step, ...], count: int | None = None) -> list[Step]:
    """Steps in an order that the seed decides, all or so many of them."""
    chosen = list(steps)
    random.Random(seed).shuffle(chosen)
    return chosen[:count]
