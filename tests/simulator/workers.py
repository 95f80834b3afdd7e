"""What children and supervisors do, and what happens to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps

from django_redisqueue.broker.replies import ClaimedJob, FinishCode, Outcome, ReapReply, WaitState

from ..broker.harness import outcome
from .history import Step
from .keyspace import MAX_RECOVERIES
from .shard import LEASE_MS, QUEUES, WORKERS, Child, Shard
from .verbs import Act, Idle, verb

ActOfChild = Callable[[Shard, Step, Child], str]
ENDS = [
    "completed", "completed", "completed", "completed", "failed", "retrying", "delayed",
    "cancelled", "queued", "limited",
]  # fmt: skip
ORDERS = [QUEUES, QUEUES[::-1], QUEUES[:1], QUEUES[1:]]


def _child(shard: Shard, step: Step) -> Child:
    return step.pick(0, shard.children)


def _ends(step: Step, jobs: list[ClaimedJob]) -> list[Outcome]:
    ends = [ENDS[(step.picks[2] + 7 * n) % len(ENDS)] for n in range(len(jobs))]
    return [
        outcome(job, end, detail=_detail(job, end)) for job, end in zip(jobs, ends, strict=True)
    ]


def _detail(job: ClaimedJob, end: str) -> str:
    if end == "cancelled" and job.lease == 1:
        return "expired"
    return "1000" if end == "limited" else ""


@verb(14)
def claim(shard: Shard, step: Step) -> str:
    return shard.exchange(
        _child(shard, step), (), step.pick(1, [1, 2, 8]), step.pick(2, ORDERS),
        step.pick(3, [-100, -100, -100, -100, 0, 1]), loses_reply=step.picks[4] % 3 == 0,
    )  # fmt: skip


def verb_of_busy_child(weight: int) -> Callable[[ActOfChild], Act]:
    """Makes a verb of what a child does that believes it holds a job. If there is none, a child
    claims instead."""

    def register(act: ActOfChild) -> Act:
        @wraps(act)
        def act_or_claim(shard: Shard, step: Step) -> str:
            busy = [child for child in shard.children if child.holds]
            return act(shard, step, step.pick(0, busy)) if busy else claim(shard, step)

        return verb(weight)(act_or_claim)

    return register


@verb_of_busy_child(14)
def finish(shard: Shard, step: Step, child: Child) -> str:
    ended = _ends(step, step.some(1, child.holds, 3))
    return shard.exchange(child, ended, 0, loses_reply=step.picks[4] % 3 == 0)


@verb_of_busy_child(8)
def finish_and_claim(shard: Shard, step: Step, child: Child) -> str:
    ended = _ends(step, step.some(1, child.holds, 3))
    wanted = step.pick(3, [1, 2, 8])
    return shard.exchange(child, ended, wanted, loses_reply=step.picks[4] % 3 == 0)


@verb(4)
def a_late_call_arrives(shard: Shard, step: Step) -> str:
    """The network delayed a call that has been sent again in the meantime: it claims nothing."""
    found = [child for child in shard.children if child.late]
    if not found:
        return Idle("none is under way")
    child = step.pick(0, found)
    assert child.late is not None
    codes, claimed = child.late(False)
    assert claimed.jobs == []
    assert set(codes) <= {FinishCode.LEASE_LOST, FinishCode.REPEATED}
    shard.check_unchanged()
    return f"that of {child.name}"


@verb_of_busy_child(3)
def release(shard: Shard, step: Step, child: Child) -> str:
    """Return unstarted jobs."""
    jobs = step.some(1, child.holds, 3)
    expected = [shard.is_held(child, job) for job in jobs]
    codes = shard.store.release(child.name, [(job.id, job.lease) for job in jobs])
    assert [code in (1, 3) for code in codes] == expected
    child.holds = [job for job in child.holds if job not in jobs]
    return f"{child.name} releases {[job.id for job in jobs]}: {codes}"


@verb_of_busy_child(3)
def write_what_is_stale(shard: Shard, step: Step, child: Child) -> str:
    """Another child writes to a job, or the job's own child does so under an old lease: nothing
    changes."""
    other, job = step.pick(1, shard.children), step.pick(2, child.holds)
    lease = job.lease - (other is child)
    found = shard.job(job.id)
    if (found.get("child"), found.get("lease")) == (other.name, str(lease)):  # after a rewind
        return Idle(f"{other.name} has or had {job.id}/{lease} by now")
    wrong = outcome(job, step.pick(3, ENDS[:8]))._replace(lease=lease)
    assert shard.broker.finish(wrong, child=other.name) == [FinishCode.LEASE_LOST]
    assert shard.store.release(other.name, [(job.id, lease)]) == [FinishCode.LEASE_LOST]
    assert shard.store.progress(other.name, job.id, lease, "{}") is False
    assert shard.store.step(other.name, job.id, lease, "step:s", "1") == 0
    shard.check_unchanged()
    return f"{other.name} writes to {job.id}/{lease} of {child.name}"


@verb_of_busy_child(3)
def remember(shard: Shard, step: Step, child: Child) -> str:
    """Progress, or a step."""
    job, is_held = step.pick(1, child.holds), shard.is_held(child, step.pick(1, child.holds))
    if step.picks[2] % 2:
        assert shard.store.progress(child.name, job.id, job.lease, "{}") is is_held
    else:
        field = f"step:{step.picks[3] % 3}"
        code = shard.store.step(child.name, job.id, job.lease, field, "1")
        assert code == is_held
    return f"{child.name} on {job.id}: {is_held}"


@verb_of_busy_child(2)
def write_result_file(shard: Shard, step: Step, child: Child) -> str:
    """A large result goes into a file, whose name is recorded first."""
    job = step.pick(1, child.holds)
    found = shard.job(job.id)
    code = shard.store.record_result_file(job.id, job.lease, f"f{step.n}")
    is_running = (found.get("status"), found.get("lease")) == ("processing", str(job.lease))
    assert (code != 0) is is_running
    return f"{child.name} for {job.id}: {code}"


@verb_of_busy_child(4)
def park(shard: Shard, step: Step, child: Child) -> str:
    """A job waits for an event."""
    job, event = step.pick(1, child.holds), f"e{step.picks[2] % 3}"
    ms = step.pick(3, [None, 1000, 30_000])
    reply = shard.store.check_wait(child.name, job.id, job.lease, event, ms, sleeps=False)
    assert (reply.state is WaitState.LEASE_LOST) is not shard.is_held(child, job)
    if reply.state is not WaitState.GOES_ON:
        return f"{job.id} for {event}: {reply.state.name}"
    shard.dump = shard.broker.dump()  # including the note of the wait
    parked = Outcome(job.id, job.lease, job.call, "parked", event, reply.value)
    return shard.exchange(child, [parked], 0) + f" for {event}"


# -- supervisors


@verb(6)
def heartbeat(shard: Shard, step: Step) -> str:
    """The heartbeat of one worker. It learns which leases are lost, and drops those jobs, unless it
    is paused."""
    worker = step.picks[0] % WORKERS
    children = [child for child in shard.children if child.worker == worker]
    asked = [(child, job) for child in children for job in child.holds][:100]
    running = [(job.id, child.name, job.lease) for child, job in asked]
    reply = shard.store.heartbeat([child.name for child in children], running, QUEUES)
    assert reply.lost == [job.id for child, job in asked if not shard.is_held(child, job)]
    held = [job.id for child, job in asked if shard.is_held(child, job)]
    assert reply.flagged == [job_id for job_id in held if "cancel_ms" in shard.job(job_id)]
    if step.picks[1] % 3:
        for child in children:
            child.holds = [job for job in child.holds if shard.is_held(child, job)]
    return f"of w{worker}: lost {reply.lost}, to cancel {reply.flagged}"


@verb(4)
def recover_a_dead_child(shard: Shard, step: Step) -> str:
    """The supervisor recovers it, and may or may not know which jobs had started."""
    if not shard.dead:
        return Idle("nobody is dead")
    child = shard.dead.pop(step.picks[0] % len(shard.dead))
    held = [job.id for job in child.holds]
    started = None if step.picks[1] % 3 == 0 else held[: step.picks[1] % (len(held) + 1)]
    reply = shard.store.reap(child.name, started)
    _check_recovered(shard, reply, started)
    return f"{child.name}, of which {started} had started: {reply.jobs}"


@verb_of_busy_child(5)
def crash(shard: Shard, step: Step, child: Child) -> str:
    """A job kills its child, and the supervisor recovers it at once."""
    shard.kill(child)
    shard.dead.remove(child)
    started = [step.pick(1, child.holds).id]
    reply = shard.store.reap(child.name, started)
    _check_recovered(shard, reply, started)
    return f"{child.name} by {started}: {reply.jobs}"


@verb(3)
def reap(shard: Shard, step: Step) -> str:
    """Recover the child whose lease expired first."""
    reply = shard.store.reap()
    _check_recovered(shard, reply, None)
    shard.dead = [child for child in shard.dead if child.name != reply.child]
    return f"{reply.child or 'nobody'}: {reply.jobs}"


def _check_recovered(shard: Shard, reply: ReapReply, started: Sequence[str] | None) -> None:
    """All jobs of the child are recovered. What the child still writes to these jobs is stale. Its
    late call would count as a new one."""
    for child in shard.children:
        if child.name == reply.child:
            child.late = None
    held = [
        job_id for job_id in shard.jobs("processing") if shard.job(job_id)["child"] == reply.child
    ]
    assert {job_id for job_id, _ in reply.jobs} == set(held)
    is_alone = len(held if started is None else started) == 1
    for job_id, became in reply.jobs:
        is_blamed = started is None or job_id in started
        expected = _expected_recovery(shard.job(job_id), is_blamed, is_alone)
        assert became in expected, f"{job_id} is {became}, not {expected}"
        assert shard.broker.job(job_id).get("child", "") == "", f"{job_id} keeps its child"


def _expected_recovery(job: dict[str, str], is_blamed: bool, is_alone: bool) -> set[str]:
    """What may become of a job. Only a unique job can have been superseded."""
    crashes = int(job.get("recoveries", 0)) + is_blamed - int(job.get("forgiven", 0))
    if "cancel_ms" in job:
        return {"cancelled"}
    if is_blamed and is_alone and crashes >= MAX_RECOVERIES:
        return {"poison"}
    returned = {"recovered"} if is_blamed else {"released"}
    return returned | {"cancelled"} if "unique" in job else returned


@verb(2)
def release_unknown(shard: Shard, step: Step) -> str:
    """A child returns the jobs that it holds without knowing."""
    child = _child(shard, step)
    ids = shard.store.release_unknown(child.name, shard.broker.now + 1, [j.id for j in child.holds])
    return f"by {child.name}: {ids}"


@verb(3, everywhere=True)
def kill_child(shard: Shard, step: Step) -> str:
    child = _child(shard, step)
    shard.kill(child)
    return f"{child.name} with {[job.id for job in child.holds]}"


@verb(1, everywhere=True)
def kill_worker(shard: Shard, step: Step) -> str:
    """The supervisor dies too, so no one recovers its children before their leases expire."""
    worker = step.picks[0] % WORKERS
    for child in [child for child in shard.children if child.worker == worker]:
        shard.kill(child)
        shard.dead.remove(child)
    return f"w{worker}"


@verb(2, everywhere=True)
def a_lease_passes(shard: Shard, step: Step) -> str:
    """One worker sends heartbeats, or none does; then expired children are reaped."""
    worker = step.pick(0, [*range(WORKERS), None])
    alive = [child.name for child in shard.children if child.worker == worker]
    for ms in (4000, 4000, 4000, LEASE_MS - 11_999):
        if worker is not None:
            shard.store.heartbeat(alive)
        shard.broker.advance(ms)
    if worker is not None:
        shard.store.heartbeat(alive)
    return f"with w{worker}; " + reap(shard, step)
