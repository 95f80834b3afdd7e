"""Changes to the code of a worker: shorter times, and faults.

`WorkerHarness.alter` names the functions that a worker calls as it imports its tasks.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from django.dispatch import Signal

from django_redisqueue.broker import connection
from django_redisqueue.broker.commands import Commands
from django_redisqueue.management.commands import runworker
from django_redisqueue.signals import child_started, child_stopping
from django_redisqueue.worker import readiness, service
from django_redisqueue.worker.child import idle
from django_redisqueue.worker.child.loop import Child
from django_redisqueue.worker.child_state import KEEP_ALIVE, ChildState, OutcomeLog
from django_redisqueue.worker.maintenance import bridge, leader, maintenance
from django_redisqueue.worker.reaper import Reaper
from django_redisqueue.worker.supervisor import control_listener, heartbeat, watchdog
from tests.support.constants import replace

# Times


def quick_kill() -> None:
    """Kill a child soon after its job's timeout."""
    replace(watchdog, HARD_GRACE_MS=300)


def quick_suspects() -> None:
    """Make a busy child make room for a suspect job soon."""
    replace(idle, SUSPECT_WAIT=0.2, FIRST_PAUSE=0.2)


def quick_rest() -> None:
    """Let the worker rest soon after the last transition, and otherwise check often."""
    replace(heartbeat, QUIET_AFTER=-9.0)  # with LEASE and RESEND_WINDOW of a harness: 2.5 s
    replace(leader, AWAKE=0.5, NOTE_CHECK=0.1)
    replace(maintenance, LEASE_MS=1500, RENEW=0.2, PRUNE=0.2, PRUNE_OTHERS=0.2, AUDIT=0.2)
    replace(bridge, LEASE_MS=1500, RENEW=0.2, RETRY=0.2)


def quick_start() -> None:
    """While the worker waits for its database, write the heartbeat file often and log soon."""
    replace(runworker, BEAT=0.05)
    replace(readiness, SILENCE=0.1)


def quick_control() -> None:
    """Let the worker check soon after the last message whether its subscription still works."""
    replace(control_listener, SILENCE=0.3, BLOCK_SECONDS=2)


def quick_watchdog() -> None:
    """Shorten the intervals that processes promise to the watchdog, and their waits."""
    keep_alive = ChildState.keep_alive

    def sooner(self: ChildState, seconds: float = KEEP_ALIVE) -> None:
        keep_alive(self, seconds * 0.2)

    replace(ChildState, keep_alive=sooner)
    replace(watchdog, UNRESPONSIVE_MS=300)
    replace(maintenance, HUNG_AFTER=1.0)
    replace(maintenance, BUSY=KEEP_ALIVE, RENEW=1.0)
    replace(bridge, BUSY=KEEP_ALIVE, RENEW=1.0)
    replace(connection, BLOCK_SECONDS=1)


def quick_hang() -> None:
    """Shorten the time after which a maintenance task counts as hanging. The watchdog stays as
    patient as ever: on a busy machine it would otherwise replace processes that are only waiting
    for a core."""
    replace(maintenance, HUNG_AFTER=1.0)
    replace(maintenance, RENEW=1.0)


# Faults


def broken_children() -> None:
    """Make every child die as it starts."""

    def die(**_: Any) -> None:
        raise RuntimeError("this child cannot start")

    child_started.connect(die, weak=False)


def hanging_receivers() -> None:
    """Let a receiver of each signal hang once, recorded in the folder REDISQUEUE_TEST_DEATHS."""
    folder = Path(os.environ["REDISQUEUE_TEST_DEATHS"])

    def hang_once(signal: Signal, sender: type, **_: Any) -> None:
        if sender is Child:
            with suppress(FileExistsError):
                (folder / ("start" if signal is child_started else "stop")).touch(exist_ok=False)
                time.sleep(3600)

    replace(service, RECEIVERS=0.5)
    replace(watchdog, UNRESPONSIVE_MS=300)
    for each in (child_started, child_stopping):
        each.connect(hang_once, weak=False)


def slow_recovery() -> None:
    """Take a while to recover the jobs of dead children."""
    reap_dead = Reaper.reap_dead

    def slowly(
        self: Reaper, child: str, started: Sequence[str] | None, keep: Sequence[str] = ()
    ) -> bool:
        if started is None or started:  # the child died, rather than ending in order
            time.sleep(0.6)
        return reap_dead(self, child, started, keep)

    replace(Reaper, reap_dead=slowly)


def failing_forks() -> None:
    """Make the fourth and fifth forks fail, as on a machine without room; the first one forks the
    fork server. Each process continues its parent's count."""
    fork, numbers = os.fork, count(1)

    def fork_or_fail() -> int:
        if next(numbers) in (4, 5):
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    replace(os, fork=fork_or_fail)


STEPS = (
    (Commands, "finish"),  # which reports and claims
    (Child, "_run_batch"),
    (Child, "_start"),
    (ChildState, "begin"),
    (OutcomeLog, "record"),
    (ChildState, "end"),
    (ChildState, "add_done"),
)
PLACES = [f"{when} {name}" for _, name in STEPS for when in ("before", "after")]


def deadly_steps() -> None:
    """Make a child die by SIGKILL before and after each step between the claim of a lone job and
    the next report, once at each place. It records the place in the folder
    ``REDISQUEUE_TEST_DEATHS``. The child runs a job before it dies, so that the supervisor does not
    delay its replacement."""
    deaths = Path(os.environ["REDISQUEUE_TEST_DEATHS"])
    done: list[int] = []  # set only in children that run jobs, not in other processes that report

    def die(place: str) -> None:
        if not done:
            return
        try:
            os.close(os.open(deaths / place, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def make_deadly(owner: type, name: str) -> None:
        step = getattr(owner, name)

        def deadly_step(*args: Any, **kwargs: Any) -> Any:
            die(f"before {name}")
            found = step(*args, **kwargs)
            die(f"after {name}")
            if name == "add_done":
                done.append(1)
            return found

        setattr(owner, name, deadly_step)

    for owner, name in STEPS:
        make_deadly(owner, name)


for name in os.environ.get("REDISQUEUE_TEST_ALTERATIONS", "").split():
    globals()[name]()
