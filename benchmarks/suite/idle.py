"""The cost of an idle worker with two children and a mirror: Redis commands and each process's CPU;
without schedules, and with a thousand that are not due.

Commands are counted by MONITOR, without those that scripts call (marked ``lua``), so each is one
round trip. CPU time is as /proc reports it, to a hundredth of a second.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from redis import Redis

from django_redisqueue.broker.scripts import load, names

from ..environment import Environment, Options
from ..processes import Process, cpu_seconds
from ..report import Row

SECONDS = 60  # so that what maintenance does once a minute is included
PROCESSES = 2
SCHEDULES = 1000
SETTLE = 120.0  # s after the start in which a worker may do more, until its maintenance rests


def run(environment: Environment, options: Options) -> Iterator[Row]:
    yield from measure(environment, 0)
    yield Row(f"with {SCHEDULES:,} schedules", SCHEDULES, "")
    yield from measure(environment, SCHEDULES)


def measure(environment: Environment, schedules: int) -> Iterator[Row]:
    environment.empty()
    environment.new_database()
    with environment.worker(PROCESSES, ready=True, mirror=True, schedules=schedules) as worker:
        time.sleep(SETTLE)
        before = {pid: cpu_seconds(pid) for pid in worker.tree()}
        commands = count_commands(environment.redis, SECONDS)
        shares = [(pid, (cpu_seconds(pid) - was) / SECONDS) for pid, was in before.items()]
        shown = dict(zip(worker.tree(), roles(worker), strict=True))
    total = sum(commands.values())
    yield Row("commands", total / SECONDS, "a second", at_most=2)
    for name, count in sorted(commands.items(), key=lambda item: -item[1]):
        yield Row(f"  {name}", count / SECONDS, "a second")
    for pid, share in shares:
        yield Row(f"CPU of {shown[pid]}", share * 100, "% of a core", at_most=1)


def roles(worker: Process) -> list[str]:
    """In the order of ``Process.tree``: the supervisor, its fork server, the server's children."""
    children = [f"child {n}" for n in range(len(worker.tree()) - 2)]
    return ["the supervisor", "the fork server", *children]


def name_of(command: list[str]) -> str:
    """The command, or the name of the script that it runs."""
    verbs = {(script.sha, *script.selector): script.name for script in map(load, names())}
    _, sha, _, _, first = (*command, *[""] * 4)[:5]  # EVALSHA, digest, number of keys, key
    verb = verbs.get((sha,)) or verbs.get((sha, first))
    return f"{verb}.lua" if verb else command[0].upper()


def count_commands(redis: Redis, seconds: float) -> dict[str, int]:
    found: dict[str, int] = {}
    end = time.monotonic() + seconds
    with redis.monitor() as monitor:
        while time.monotonic() < end:
            if not monitor.connection.can_read(0.1):
                continue
            seen = monitor.next_command()
            if seen["client_type"] != "lua":
                name = name_of(seen["command"].split())
                found[name] = found.get(name, 0) + 1
    return found
