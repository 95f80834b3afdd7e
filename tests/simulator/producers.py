"""What producers and operators do."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from django_redisqueue.core.job_data import NewJob

from ..broker.gathers import Query
from ..broker.harness import FINISHED
from ..broker.model import RESEND
from ..broker.test_lane_model import LANES
from ..broker.uniques import MODES
from ..broker.workflows import BrokerWorkflow
from .history import Step
from .shard import QUEUES, Shard
from .verbs import Idle, verb

OPTIONS = ["", "", '{"index":"task:t tags.x:1"}']
POLICIES = ["wait", "skip", "go_on"]
LIMITS = ["c:t:0", "c:t:1", "c:all:", "s:a0"]
ORDERS = ["pause", "release", "release", "cancel"]


def _enqueue(shard: Shard, step: Step, **fields: Any) -> str:
    """Up to three jobs. Sending them again, as after a lost reply, changes nothing."""
    jobs = [
        NewJob(**{
            "id": f"j{step.n}-{n}", "queue": step.pick(1, QUEUES),
            "task": "app.task", "payload": f"[[{step.n}],{{}}]", "options": step.pick(2, OPTIONS),
            "priority": step.pick(3, [0, 0, 0, 5, -5]),
            "when": step.pick(4, ["", "", "", "+1500", "+20000"]), **fields,
        })
        for n in range(step.pick(0, [1, 1, 2, 3]))
    ]  # fmt: skip
    told = _send(shard, jobs, way=step.picks[1] // len(QUEUES) % 3)
    owners = [job.owner for job in jobs]
    done = shard.broker.dump()
    if step.picks[4] % 3 == 0:
        assert not any(shard.store.enqueue(jobs))
        assert [job.owner for job in jobs] == owners
        assert shard.broker.dump() == done
    if step.picks[4] // 5 % 3 == 0:
        shard.late_enqueues.append((shard.broker.now, jobs))
    extra = " ".join(f"{name}={value!r}" for name, value in fields.items())
    return f"enqueues {told} {extra}"


def _send(shard: Shard, jobs: Sequence[NewJob], way: int) -> str:
    """In one call, or in a pipeline; or a pipeline of which only the first call arrived is sent
    again."""
    if way == 2:
        assert shard.store.enqueue_all([jobs[:1]]) == (jobs[0].owner == "")
    if way == 0:
        created = shard.store.enqueue(jobs)
        assert created == [job.owner == "" for job in jobs]
    else:
        new = [job for n, job in enumerate(jobs) if way == 1 or n]
        count = shard.store.enqueue_all([[job] for job in jobs])
        assert count == sum(job.owner == "" for job in new)
    return ", ".join(f"{job.id} ({job.owner or 'new'})" for job in jobs)


@verb(4)
def a_late_enqueue_arrives(shard: Shard, step: Step) -> str:
    """The network delayed a call whose jobs are known: it creates nothing while the window for
    repeated calls is open."""
    now = shard.broker.now
    found = [jobs for ms, jobs in shard.late_enqueues if 0 <= now - ms < RESEND]
    if not found:
        return Idle("none is under way")
    jobs = step.pick(0, found)
    done = shard.broker.dump()
    assert not any(shard.store.enqueue(jobs))
    assert shard.broker.dump() == done
    return f"that of {[job.id for job in jobs]}"


@verb(10)
def enqueue(shard: Shard, step: Step) -> str:
    return _enqueue(shard, step)


@verb(8)
def enqueue_in_lanes(shard: Shard, step: Step) -> str:
    return _enqueue(shard, step, lane=step.pick(2, LANES).strip())


@verb(8)
def enqueue_unique(shard: Shard, step: Step) -> str:
    mode = step.pick(2, list(MODES))
    when = {"when": "+1000"} if mode == "replace" else {}
    return _enqueue(shard, step, unique=f"{mode} {MODES[mode]}", **when)


@verb(4)
def enqueue_unique_in_lanes(shard: Shard, step: Step) -> str:
    mode = step.pick(2, list(MODES))
    when = {"when": "+1000"} if mode == "replace" else {}
    unique = f"{mode}1 {MODES[mode]}"
    return _enqueue(shard, step, unique=unique, lane=step.pick(3, LANES).strip(), **when)


@verb(6)
def enqueue_followers(shard: Shard, step: Step) -> str:
    policy, parents = step.pick(2, POLICIES), step.some(3, shard.jobs(), 3)
    lane = step.pick(1, ["", *LANES[:4]]).strip()
    after = " ".join([policy, *parents]) if parents else ""
    told = _enqueue(shard, step, after=after, lane=lane, when="")
    for n in range(3 if parents else 0):
        shard.ledger.parents[f"j{step.n}-{n}"] = parents
    return told


@verb(3)
def push_workflow(shard: Shard, step: Step) -> str:
    """The whole workflow, or its producer dies half way."""
    chance = random.Random(step.picks[0])
    size = step.pick(1, range(1, 9))
    parents = {n: sorted(chance.sample(range(n), min(n, chance.randrange(4)))) for n in range(size)}
    workflow = BrokerWorkflow(
        shard.broker, parents, name=str(step.n),
        on_fail={n: chance.choice(["", "", "skip", "go_on"]) for n in parents},
        complete_task="app.done", complete_payload="[[],{}]",
        failure_task="app.alarm", failure_payload="[[],{}]",
    )  # fmt: skip
    stop = size if step.picks[2] % 4 else max(1, size // 2)
    assert workflow.push_batch(0, stop, first=True, last=stop == size) == 1
    if step.picks[3] % 3 == 0:
        done = shard.broker.dump()
        workflow.push_batch(0, stop, first=True, last=stop == size)
        assert shard.broker.dump() == done
    shard.workflows.append(workflow)
    return f"pushes {stop} of {size} jobs of {workflow.id}: {parents}"


@verb(3)
def start_gather(shard: Shard, step: Step) -> str:
    size = step.pick(0, range(1, 5))
    gather = Query(
        shard.broker, "abcd"[:size], key=f"k{step.n}", name=str(step.n),
        threshold=step.pick(1, range(1, size + 1)), failure=bool(step.picks[2] % 2),
    )  # fmt: skip
    assert gather.start() == 1
    if step.picks[3] % 3 == 0:
        assert gather.start() == 0
    shard.gathers.append(gather)
    return f"starts {gather.id} of {size}"


def _order(shard: Shard, step: Step, method: str, *args: Any) -> Any:
    """An operator's call. If its reply was lost, it is sent again, and its first copy may arrive
    later."""
    if step.picks[4] % 3 == 0:
        shard.late_orders.append((method, args))
    return getattr(shard.store, method)(*args)


@verb(4)
def a_late_order_arrives(shard: Shard, step: Step) -> str:
    if not shard.late_orders:
        return Idle("none is under way")
    method, args = step.pick(0, shard.late_orders)
    return f"{method} {args}: {getattr(shard.store, method)(*args)}"


@verb(4)
def cancel(shard: Shard, step: Step) -> str:
    ids = step.some(0, shard.jobs(), 3)
    return f"cancels {ids}: {_order(shard, step, 'cancel', ids) if ids else ''}"


@verb(3)
def requeue(shard: Shard, step: Step) -> str:
    ids = step.some(0, shard.jobs("failed", "cancelled"), 3)
    if not ids:
        return cancel(shard, step)
    return f"requeues {ids}: {_order(shard, step, 'requeue', ids) if ids else ''}"


@verb(2)
def run_now(shard: Shard, step: Step) -> str:
    ids = step.some(0, shard.jobs("scheduled", "retrying", "waiting"), 3)
    return f"runs now {ids}: {_order(shard, step, 'run_now', ids) if ids else ''}"


@verb(1)
def requeue_oldest(shard: Shard, step: Step) -> str:
    queue, status = step.pick(0, QUEUES), step.pick(1, ["failed", "cancelled"])
    told = _order(shard, step, "requeue_oldest", queue, status, 2)
    return f"requeues {status} of {queue}: {told}"


@verb(1)
def clear(shard: Shard, step: Step) -> str:
    queue = step.pick(0, QUEUES)
    status = step.pick(1, ["queued", "scheduled", "retrying", *FINISHED])
    return f"clears {status} of {queue}: {_order(shard, step, 'clear', queue, status, 2)}"


@verb(2)
def delete(shard: Shard, step: Step) -> str:
    ids = step.some(0, shard.jobs(), 2)
    return f"deletes {ids}: {_order(shard, step, 'delete', ids) if ids else ''}"


@verb(1, everywhere=True)
def pause(shard: Shard, step: Step) -> str:
    queue, paused = step.pick(0, QUEUES), step.pick(1, [True, False])
    shard.store.pause(queue, paused)
    return f"{'pauses' if paused else 'resumes'} {queue}"


@verb(1, everywhere=True)
def pause_lanes(shard: Shard, step: Step) -> str:
    queue, paused = step.pick(0, QUEUES), step.pick(1, [True, False])
    key = step.pick(2, ["s:a0", "s:a1", "c:t:1", "c:all:", "r:r:0"])
    shard.store.pause_lanes(queue, key, paused)
    return f"{'pauses' if paused else 'resumes'} {key} of {queue}"


@verb(5, everywhere=True)
def set_aging(shard: Shard, step: Step) -> str:
    queue, ms = step.pick(0, QUEUES), step.pick(1, [1, 400, 1, None])
    shard.store.set_aging({queue: ms})
    return f"jobs of {queue} gain a priority in {ms} ms"


@verb(3)
def control_workflow(shard: Shard, step: Step) -> str:
    found = shard.known_workflows()
    if not found:
        return push_workflow(shard, step)
    workflow, order = step.pick(0, found), step.pick(1, ORDERS)
    told = _order(shard, step, "control_workflow", workflow.id, order)
    return f"{order} of {workflow.id}: {told}"


@verb(4, everywhere=True)
def send_event(shard: Shard, step: Step) -> str:
    event = f"e{step.picks[0] % 3}"
    return f"sends {event}: {shard.store.send_event(event, '1', 3_600_000)} wake"


@verb(2, everywhere=True)
def set_limit(shard: Shard, step: Step) -> str:
    key, number = step.pick(0, LIMITS), step.pick(1, ["1", "2", "4", ""])
    return f"sets {key} to {number!r}: {shard.store.set_limit(key, number)}"


@verb(2)
def watch(shard: Shard, step: Step) -> str:
    """Somebody waits for the end of a job, which then takes the slow path."""
    ids = step.some(0, shard.jobs(), 1)
    status = shard.store.watch(ids[0]) if ids else ""
    assert not ids or status == shard.job(ids[0])["status"]
    return f"watches {ids}: {status}"


@verb(2)
def release_unique(shard: Shard, step: Step) -> str:
    """Jobs that have the key go on, and others may take it."""
    prefix = shard.broker.keys.unique("")
    found = [key.removeprefix(prefix) for key in shard.dump if key.startswith(prefix)]
    if not found:
        return enqueue_unique(shard, step)
    key = step.pick(0, found)
    jobs = {job_id: shard.job(job_id).get("unique", "") for job_id in shard.jobs()}
    shard.ledger.released |= {job_id for job_id, unique in jobs.items() if key in unique.split()}
    return f"releases {key}, which {_order(shard, step, 'release_unique', key)} had"


@verb(1)
def forget_steps(shard: Shard, step: Step) -> str:
    ids = step.some(0, shard.jobs("failed", "cancelled"), 3)
    return f"{ids} forget their steps: {_order(shard, step, 'forget_steps', ids) if ids else ''}"
