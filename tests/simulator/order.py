"""What a claim must not pass over: jobs of the same priority are first in, first out; between
priorities, age counts in queues with aging, and otherwise the priority alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from django_redisqueue.broker.keys import Keys

from ..broker.lanes import BAND
from .keyspace import Dump

Job = dict[str, str]


def check_order(dump: Dump, keys: Keys, claimed: Sequence[str], floor: int) -> None:
    """``dump``: the keys before the claim. Jobs in lanes have their own order, and jobs that must
    run alone wait for a child that holds nothing: where such jobs are involved, nothing is
    checked."""
    jobs = {job_id: dump[keys.job(job_id)][1] for job_id in claimed if keys.job(job_id) in dump}
    if any("lane" in job for job in jobs.values()):
        return
    for queue in {job.get("queue", "default") for job in jobs.values()}:
        meta = dump.get(keys.queue(queue).meta, ("hash", {}))[1]
        aging = int(meta.get("aging", 0))
        passed = [job_id for job_id in _heads(dump, keys, queue, floor) if job_id not in jobs]
        for job_id, job in jobs.items():
            is_aside = "recoveries" in job
            if (job["status"], job.get("queue", "default")) == ("queued", queue) and not is_aside:
                for other in passed:
                    _check_pair(job_id, job, other, dump[keys.job(other)][1], aging)


def _check_pair(job_id: str, job: Job, other_id: str, other: Job, aging: int) -> None:
    own, others = int(job.get("priority", 0)), int(other.get("priority", 0))
    if own == others:
        raise AssertionError(f"{other_id} was before {job_id} in its line, and was passed over")
    if aging:
        is_first = _since(job) - own * aging <= _since(other) - others * aging
    else:
        is_first = own > others
    assert is_first, f"{other_id} was to start before {job_id}"


def _since(job: Job) -> int:
    return int(job.get("ready_ms", job.get("enqueued_ms", 0)))


def _heads(dump: Dump, keys: Keys, queue: str, floor: int) -> Iterator[str]:
    """The next job of each priority, where that is certain."""
    lists = keys.queue(queue)
    if lists.keyed in dump:
        return
    ranked: dict[int, str] = {}
    for job_id, score in dump.get(lists.priority, ("zset", []))[1]:
        ranked.setdefault(100 - int(score // BAND), job_id)
    plain = dump.get(lists.queued, ("list", []))[1]
    if plain and 0 not in ranked:
        ranked[0] = plain[-1]
    for priority, job_id in ranked.items():
        job = dump.get(keys.job(job_id), ("hash", {}))[1]
        is_held = job_id.startswith("flow_") and _is_held(dump, keys, job_id.split(".")[0])
        is_sure = job.get("status") == "queued" and "recoveries" not in job and not is_held
        if is_sure and priority >= floor:
            yield job_id


def _is_held(dump: Dump, keys: Keys, workflow_id: str) -> bool:
    """Whether claims hold back the jobs of the workflow (workflow.lua)."""
    workflow: Job = dump.get(keys.workflow(workflow_id), ("hash", {}))[1]
    if "paused_ms" in workflow or "cleaning" in workflow:
        return True
    return workflow.get("status") not in ("running", "completed")
