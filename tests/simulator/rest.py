"""The end of a history: faults stop, and everything that can run runs."""

from __future__ import annotations

from math import inf

from django_redisqueue.broker.workflows import HALF_PUSHED_MS

from ..broker.lab import FINISHED, outcome
from .world import QUEUES, World

ROUNDS = 300


def come_to_rest(world: World) -> None:
    """Run all to its end, and check that nothing is left that should not be."""
    _end_all_faults(world)
    for _ in range(ROUNDS):
        if _is_at_rest(world) and _is_at_rest(world):  # a claim may set the timer
            break
    else:
        raise AssertionError("it never comes to rest")
    world.check()
    _check_nothing_is_left(world)


def _end_all_faults(world: World) -> None:
    store, keys = world.store, world.lab.keys
    for queue in QUEUES:
        store.pause(queue, False)
        for key in world.dump.get(keys.queue(queue).pauses, ("hash", {}))[1]:
            store.pause_lanes(queue, key, False)
    for workflow in world.known_workflows():
        store.control_workflow(workflow.id, "release")
    for n in range(3):
        store.send_event(f"e{n}", "1", 3_600_000)
    alive = [child.name for child in world.children]
    for ms in (4000, 4000, 4000, 4000, 4000):
        store.heartbeat([*alive, "z"])
        world.lab.advance(ms)
    for child in world.children:
        store.reap(child.name, [])
    for _ in range(100):
        store.heartbeat(["z"])
        if not store.reap().child:
            break
    world.check()
    held = [key for key in world.dump if key.endswith(":processing") and ":child:" in key]
    assert held == [], f"nobody has recovered {held}"


def _is_at_rest(world: World) -> bool:
    """Run what can run now. If that is nothing, go to the instant that the timer names."""
    store, is_awake = world.store, world.raw.exists(world.lab.keys.timer)
    promoted = store.promote(QUEUES)
    due_ms = world.lab.now + promoted.next_ms if promoted.next_ms >= 0 else inf
    assert is_awake or due_ms >= min(world.timer_ms, world.lab.now), "nobody woke the timer"
    world.timer_ms = due_ms
    more = store.advance()
    claim = world.lab.claim("z", 100, QUEUES)
    assert claim.lost == []
    if claim.jobs:
        assert set(world.lab.finish(*map(outcome, claim.jobs), child="z")) <= {1, 3}
    if more or promoted.moved or claim.jobs:
        return False
    # What is due and cannot be done waits for the rest of a workflow whose producer has died.
    world.lab.advance(promoted.next_ms or HALF_PUSHED_MS)
    return promoted.next_ms < 0


def _check_nothing_is_left(world: World) -> None:
    keys = world.lab.keys
    open_ = [job_id for job_id in world.jobs() if world.job(job_id)["status"] not in FINISHED]
    stuck = [job_id for job_id in open_ if not _has_reason_to_wait(world, job_id)]
    assert stuck == [], [world.job(job_id) for job_id in stuck]
    assert [key for key in world.dump if ":q:" in key and "keyed" in key] == []
    assert keys.slots not in world.dump
    assert keys.waiting_limits not in world.dump
    assert keys.waiting_chunks not in world.dump


def _has_reason_to_wait(world: World, job_id: str) -> bool:
    """Jobs wait for parents that did not complete, and in workflows that failed or were never
    pushed whole."""
    if world.job(job_id)["status"] != "waiting":
        return False
    if job_id in world.ledger.parents:
        parents = [world.job(parent).get("status") for parent in world.ledger.parents[job_id]]
        return any(status != "completed" for status in parents)
    workflow = world.dump.get(world.lab.keys.workflow(job_id.rpartition(".")[0]), ("hash", {}))[1]
    return workflow.get("status") in ("failed", "building")
