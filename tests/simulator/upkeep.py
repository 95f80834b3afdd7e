"""What maintenance does, and what happens to Redis and its clock."""

from __future__ import annotations

from ..broker.harness import FINISHED
from .history import Step
from .shard import QUEUES, Shard
from .verbs import verb

DAY = 86_400_000


@verb(6)
def promote(shard: Shard, step: Step) -> str:
    return f"{shard.promote()}"


@verb(5)
def advance(shard: Shard, step: Step) -> str:
    return f"more: {shard.store.advance()}"


@verb(2)
def prune(shard: Shard, step: Step) -> str:
    queue, status = step.pick(0, QUEUES), step.pick(1, FINISHED)
    found = shard.store.prune(queue, status, step.picks[2] % 3, step.pick(3, [1000, DAY]))
    return f"{status} of {queue}: {found}"


@verb(1)
def delete_files(shard: Shard, step: Step) -> str:
    """Those of closed gathers and of other jobs, with what was recorded of them."""
    keys, store = shard.broker.keys, shard.store
    closed = shard.dump.get(keys.closed_gathers, ("set", []))[1]
    told = []
    for gather in shard.known_gathers():
        assert store.delete_gather(gather.key, gather.id) is (gather.key in closed)
        told.append(f"{gather.key}: {gather.key in closed}")
    names = list(shard.dump.get(keys.result_files, ("hash", {}))[1])
    assert not names or store.forget_result_files(names) == len(names)
    return f"{told} {names}"


@verb(1)
def compact(shard: Shard, step: Step) -> str:
    return f"{shard.store.compact(step.pick(0, QUEUES), 0)}"


@verb(1)
def look_for_damage(shard: Shard, step: Step) -> str:
    """Finds none, because nothing was changed by hand."""
    for queue in QUEUES:
        assert shard.store.recover_orphans(queue, 0) == (0, [])
    mended, _, _ = shard.store.audit_lanes()
    assert mended == 0
    return ""


@verb(8, everywhere=True)
def time_passes(shard: Shard, step: Step) -> str:
    ms = step.pick(0, [1, 500, 1500, 3000, 12_000])
    shard.broker.advance(ms)
    return f"{ms} ms"


@verb(2)
def lead(shard: Shard, step: Step) -> str:
    """A child asks for the leadership, keeps it or gives it up: there is one leader."""
    child, term_ms = step.pick(0, shard.children), step.pick(1, [15_000, 15_000, 15_000, 0])
    meta = shard.dump.get(shard.broker.keys.meta, ("hash", {}))[1]
    leader, until_ms = meta.get("leader", ""), int(meta.get("leader_until_ms", 0))
    is_free = leader in ("", child.name) or until_ms < shard.broker.now
    reply = shard.store.lead(child.name, term_ms)
    assert bool(reply) is (is_free and term_ms > 0), f"{leader} leads until {until_ms}"
    return f"{child.name} for {term_ms} ms: {reply.name}"


@verb(1)
def the_clock_jumps(shard: Shard, step: Step) -> str:
    """Heartbeats are so frequent that there was one just before."""
    shard.store.heartbeat([])
    shard.late_enqueues.clear()
    ms = step.pick(0, [-60_000, -1000, 120_000, 3_600_000])
    shard.broker.advance(ms)
    return f"{ms} ms"


@verb(2)
def snapshot(shard: Shard, step: Step) -> str:
    shard.save()
    return "Redis saves its data"


@verb(2)
def rewind(shard: Shard, step: Step) -> str:
    if shard.snapshot is None:
        return snapshot(shard, step)
    shard.rewind()
    return "Redis is back at its last save"


@verb(1)
def scripts_are_lost(shard: Shard, step: Step) -> str:
    """As after a failover: calls by digest are refused, and sent again with their source."""
    shard.raw.script_flush()
    return "Redis forgets all scripts"
