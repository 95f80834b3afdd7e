"""The roles of several shards in one process, when it stops."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

from django_redisqueue.worker.interrupts import StoppableWaits
from django_redisqueue.worker.maintenance.leader import run_in_shards


class Role:
    """Takes until ``gate`` opens to end."""

    def __init__(self, gate: threading.Event, ended: list[int], shard: int) -> None:
        self._gate, self._ended, self._shard = gate, ended, shard

    def run(self, is_over: Callable[[], bool]) -> None:
        assert self._gate.wait(20)
        self._ended.append(self._shard)

    def hangs(self) -> bool:
        return False


def stop_roles(gate: threading.Event, ended: list[int], **options: Any) -> None:
    waits = StoppableWaits()
    waits.stopping = True

    def make(shard: int, *_: object) -> Any:
        return Role(gate, ended, shard)

    run_in_shards(2, make, waits, **options)


def test_a_role_may_take_as_long_as_it_is_given() -> None:
    gate, ended, alive = threading.Event(), list[int](), list[float]()

    def keep_alive(seconds: float) -> None:
        alive.append(seconds)
        if len(alive) == 2:
            gate.set()

    stop_roles(gate, ended, keep_alive=keep_alive, stop=math.inf)
    assert sorted(ended) == [0, 1]
    assert len(alive) >= 2  # the watchdog hears of it meanwhile


def test_a_role_that_does_not_end_is_left_behind() -> None:
    gate, ended = threading.Event(), list[int]()
    stop_roles(gate, ended, stop=0.05)
    assert ended == []
    gate.set()
