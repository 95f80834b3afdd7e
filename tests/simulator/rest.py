"""The end of a history: faults stop, and everything that can run does."""

from __future__ import annotations

from django_redisqueue.broker.workflows import HALF_PUSHED_MS

from ..broker.harness import FINISHED, outcome
from .shard import QUEUES, Shard
from .world import World

ROUNDS = 300


def come_to_rest(world: World) -> None:
    """Run everything to its end, and check that nothing is left over."""
    for shard in world.shards:
        _come_to_rest(shard)
    world.check()


def _come_to_rest(shard: Shard) -> None:
    _end_all_faults(shard)
    for _ in range(ROUNDS):
        if _is_at_rest(shard) and _is_at_rest(shard):  # a claim may set the timer
            break
    else:
        raise AssertionError("it never comes to rest")
    shard.check(shard.broker.dump())
    _check_nothing_is_left(shard)


def _end_all_faults(shard: Shard) -> None:
    store, keys = shard.store, shard.broker.keys
    for queue in QUEUES:
        store.pause(queue, False)
        for key in shard.dump.get(keys.queue(queue).pauses, ("hash", {}))[1]:
            store.pause_lanes(queue, key, False)
    for workflow in shard.known_workflows():
        store.control_workflow(workflow.id, "release")
    for n in range(3):
        store.send_event(f"e{n}", "1", 3_600_000)
    alive = [child.name for child in shard.children]
    for ms in (4000, 4000, 4000, 4000, 4000):
        store.heartbeat([*alive, "z"])
        shard.broker.advance(ms)
    for child in shard.children:
        store.reap(child.name, [])
    for _ in range(100):
        store.heartbeat(["z"])
        if not store.reap().child:
            break
    shard.check(shard.broker.dump())
    held = [key for key in shard.dump if key.endswith(":processing") and ":child:" in key]
    assert held == [], f"nobody has recovered {held}"


def _is_at_rest(shard: Shard) -> bool:
    """Run what can run now. If there is nothing, advance to the time that the timer names."""
    store, promoted = shard.store, shard.promote()
    more = store.advance()
    claim = shard.broker.claim("z", 100, QUEUES)
    assert claim.lost == []
    if claim.jobs:
        assert set(shard.broker.finish(*map(outcome, claim.jobs), child="z")) <= {1, 3}
    if more or promoted.moved or claim.jobs:
        return False
    # What is due but cannot be done waits for the rest of a workflow whose producer has died.
    shard.broker.advance(promoted.next_ms or HALF_PUSHED_MS)
    return promoted.next_ms < 0


def _check_nothing_is_left(shard: Shard) -> None:
    keys = shard.broker.keys
    open_ = [job_id for job_id in shard.jobs() if shard.job(job_id)["status"] not in FINISHED]
    stuck = [job_id for job_id in open_ if not _has_reason_to_wait(shard, job_id)]
    assert stuck == [], [shard.job(job_id) for job_id in stuck]
    assert [key for key in shard.dump if ":q:" in key and "keyed" in key] == []
    assert keys.slots not in shard.dump
    assert keys.waiting_limits not in shard.dump
    assert keys.waiting_chunks not in shard.dump


def _has_reason_to_wait(shard: Shard, job_id: str) -> bool:
    """Jobs wait for parents that did not complete, and in workflows that failed or were never fully
    pushed."""
    if shard.job(job_id)["status"] != "waiting":
        return False
    if job_id in shard.ledger.parents:
        parents = [shard.job(parent).get("status") for parent in shard.ledger.parents[job_id]]
        return any(status != "completed" for status in parents)
    workflow = shard.dump.get(shard.broker.keys.workflow(job_id.rpartition(".")[0]), ("hash", {}))[
        1
    ]
    return workflow.get("status") in ("failed", "building")
