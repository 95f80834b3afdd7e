"""What maintenance does, and what happens to Redis and its clock."""

from __future__ import annotations

from ..broker.lab import FINISHED
from ..broker.schedules import MINUTE, read
from .history import Step
from .verbs import verb
from .world import QUEUES, World

DAY = 86_400_000


@verb(6)
def promote(world: World, step: Step) -> str:
    return f"{world.store.promote(QUEUES)}"


@verb(5)
def advance(world: World, step: Step) -> str:
    return f"more: {world.store.advance()}"


@verb(2)
def prune(world: World, step: Step) -> str:
    queue, status = step.pick(0, QUEUES), step.pick(1, FINISHED)
    found = world.store.prune(queue, status, step.picks[2] % 3, step.pick(3, [1000, DAY]))
    return f"{status} of {queue}: {found}"


@verb(1)
def compact(world: World, step: Step) -> str:
    return f"{world.store.compact(step.pick(0, QUEUES), 0)}"


@verb(1)
def look_for_damage(world: World, step: Step) -> str:
    """There is none, for nothing was changed by hand."""
    for queue in QUEUES:
        assert world.store.recover_orphans(queue, 0) == (0, [])
    mended, _, _ = world.store.audit_lanes()
    assert mended == 0
    return ""


@verb(3)
def fire(world: World, step: Step) -> str:
    """A due time of a schedule, twice: it has one run."""
    name = f"s{step.picks[0] % 2}"
    if world.lab.keys.schedule(name) not in world.dump:
        return f"no {name}"
    found = read(world.lab, name)
    due_ms = found.next_ms
    if due_ms is None or due_ms > world.lab.now:
        return f"{name} is not due"
    replies = [world.store.fire(found, due_ms, due_ms + MINUTE, due_ms, 0) for _ in range(2)]
    assert replies[1] == 0
    return f"{name} at {due_ms}: {replies[0].name}"


@verb(8)
def time_passes(world: World, step: Step) -> str:
    ms = step.pick(0, [1, 500, 1500, 3000, 12_000])
    world.lab.advance(ms)
    return f"{ms} ms"


@verb(1)
def the_clock_jumps(world: World, step: Step) -> str:
    """Heartbeats come all the time, so there was one just before."""
    world.store.heartbeat([])
    ms = step.pick(0, [-60_000, -1000, 120_000, 3_600_000])
    world.lab.advance(ms)
    return f"{ms} ms"


@verb(2)
def snapshot(world: World, step: Step) -> str:
    world.save()
    return "Redis saves its data"


@verb(2)
def rewind(world: World, step: Step) -> str:
    if world.snapshot is None:
        return "nothing was saved"
    world.rewind()
    return "Redis is back at its last save"
