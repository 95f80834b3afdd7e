"""Workflows in memory behave like those in Redis: every scenario, run in both, gives the same
results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from django_redisqueue import Workflow, WorkflowError, chain, get_job, get_workflow, task
from django_redisqueue.client.jobs import Job
from django_redisqueue.exceptions import JobNotFound, WorkflowNotFound, WrongState
from django_redisqueue.testing import InMemoryQueue, capture_jobs
from django_redisqueue.testing.runs import InlineRun, InMemorySteps
from tests.app.tasks import add
from tests.client.test_after import results_of
from tests.support.manual_worker import ManualWorker

from .tasks import gathered

RAN: list[str] = []
BROKEN: set[str] = set()
Drain = Callable[[], object]
Seen = tuple[Workflow, Sequence[Job], object]  # jobs outside it; what calls returned
CALLBACKS = [f"{which}{generation}" for which in ("complete", "failure") for generation in range(4)]


@task(max_attempts=1)
def say(word: str) -> str:
    """Fail while the word is among the broken ones."""
    RAN.append(word)
    if word in BROKEN:
        raise ValueError(word)
    return word


@task
def steer(workflow_id: str, order: str) -> str:
    """Control the workflow from within."""
    RAN.append(order)
    getattr(get_workflow(workflow_id), order)()
    return order


def refusal(act: Callable[[], object]) -> type[Exception] | None:
    """Which of our errors it raises."""
    try:
        act()
    except (WrongState, WorkflowNotFound) as error:
        return type(error)
    return None


# -- scenarios: each yields what is compared


def results_go_from_parents_to_children(drain: Drain) -> Iterator[Seen]:
    with Workflow(
        "diamond", on_complete=say.s("complete"), on_failure=say.s("failure")
    ) as workflow:
        first = workflow.add(say, "first")
        sides = [workflow.add(say, side, after=first) for side in ("right", "left")]
        workflow.add(gathered, after=[*reversed(sides), first])
    yield workflow, (), None
    drain()
    yield workflow, (), [workflow.pause(), workflow.cancel()]


def a_chain_hands_results_on(drain: Drain) -> Iterator[Seen]:
    workflow = chain(add.s(1, 2), add.s(10), add.s(100), name="sum")
    yield workflow, (), None
    drain()
    yield workflow, (), workflow.jobs()[-1].result


def a_failure_fails_it_and_a_retry_completes_it(drain: Drain) -> Iterator[Seen]:
    BROKEN.add("bad")
    with Workflow(on_complete=say.s("complete"), on_failure=say.s("failure")) as workflow:
        bad = workflow.add(say, "bad")
        other = workflow.add(say, "other")
        workflow.add(gathered, after=[bad, other])
    drain()
    yield workflow, (), None
    BROKEN.clear()
    bad.requeue()
    drain()
    yield workflow, (), refusal(bad.requeue)


def a_failure_holds_back_what_has_not_started(drain: Drain) -> Iterator[Seen]:
    BROKEN.update("ab")
    with Workflow(on_complete=say.s("complete"), on_failure=say.s("failure")) as workflow:
        bad = [workflow.add(say.using(priority=5), word) for word in "ab"]
        workflow.add(say, "last", after=bad)
    drain()
    yield workflow, (), None
    BROKEN.clear()
    refused = [refusal(job.requeue) for job in bad]  # one was held back
    drain()
    yield workflow, (), refused


def a_retry_leaves_what_failed_beside_it(drain: Drain) -> Iterator[Seen]:
    with Workflow(on_complete=say.s("complete"), on_failure=say.s("failure")) as workflow:
        jobs = [workflow.add(say, word) for word in "abc"]
        workflow.add(say, "last", after=jobs)
    jobs[0].cancel()
    jobs[1].cancel()
    yield workflow, (), None
    drain()
    yield workflow, (), None
    jobs[0].requeue()
    drain()
    yield workflow, (), None
    jobs[1].requeue()
    drain()
    yield workflow, (), None


def a_skipped_branch_is_cancelled(drain: Drain) -> Iterator[Seen]:
    BROKEN.add("bad")
    with Workflow(on_complete=say.s("complete")) as workflow:
        bad = workflow.add(say, "bad", on_failure="skip")
        good = workflow.add(say, "good", after=workflow.add(say, "before"))
        child = workflow.add(gathered, after=[bad, good])
        workflow.add(gathered, after=child)
        workflow.add(say, "beside", after=good)
    drain()
    yield workflow, (), None
    child.requeue()  # runs without the missing result
    drain()
    yield workflow, (), None
    BROKEN.clear()
    bad.requeue()  # those already notified are not notified again
    drain()
    yield workflow, (), None


def one_goes_on_without_the_result(drain: Drain) -> Iterator[Seen]:
    BROKEN.add("bad")
    with Workflow(on_complete=say.s("complete")) as workflow:
        bad = workflow.add(say, "bad", on_failure="go_on")
        workflow.add(gathered, after=[workflow.add(say, "good"), bad])
    drain()
    yield workflow, (), None


def a_pause_holds_back_and_a_release_goes_on(drain: Drain) -> Iterator[Seen]:
    with Workflow(on_complete=say.s("complete")) as workflow:
        first = workflow.add(say, "first")
        workflow.add(say, "urgent", after=first)
        workflow.add(say, "second")
    drained = [workflow.release(), workflow.pause(), workflow.pause(), workflow.cleanup()]
    yield workflow, (), drained
    drain()
    yield workflow, (), None
    assert first.cancel()
    first.requeue()
    drain()
    yield workflow, (), [workflow.release(), workflow.release()]
    drain()
    yield workflow, (), None


def what_is_held_back_stays_so_when_other_jobs_come(drain: Drain) -> Iterator[Seen]:
    with Workflow() as workflow:
        first = workflow.add(steer, workflow.id, "pause")
        workflow.add(say, "second", after=first)
    drain()
    yield workflow, (), None
    other = say.enqueue("other")
    yield workflow, [other], None
    drain()
    yield workflow, [other], workflow.release()
    drain()
    yield workflow, [other], None


def it_fails_while_it_is_paused(drain: Drain) -> Iterator[Seen]:
    with Workflow(on_failure=say.s("failure")) as workflow:
        first = workflow.add(say, "first")
        workflow.add(say, "second")
    workflow.pause()
    first.cancel()
    drain()
    yield workflow, (), None
    first.requeue()
    yield workflow, (), None
    yield workflow, (), workflow.release()
    drain()
    yield workflow, (), None


def a_release_gives_back_what_a_failure_does_not_concern(drain: Drain) -> Iterator[Seen]:
    with Workflow(on_complete=say.s("complete"), on_failure=say.s("failure")) as workflow:
        jobs = [workflow.add(say, word) for word in "abc"]
    jobs[0].cancel()
    jobs[1].cancel()
    jobs[0].requeue()
    workflow.pause()
    drain()
    yield workflow, (), None
    workflow.release()
    drain()
    yield workflow, (), None


def a_cancel_cancels_what_has_not_ended(drain: Drain) -> Iterator[Seen]:
    BROKEN.add("bad")
    with Workflow(on_complete=say.s("complete"), on_failure=say.s("failure")) as workflow:
        bad = workflow.add(say, "bad", on_failure="go_on")
        stops = workflow.add(steer, workflow.id, "cancel", after=bad)
        workflow.add(say, "left", after=stops)
        workflow.add(say.using(run_after=60), "later")
        workflow.add(say, "told", after=workflow.add(say, "slow", after=stops, on_failure="skip"))
    drain()
    yield workflow, (), [workflow.cancel(), workflow.pause(), refusal(bad.requeue)]
    drain()
    yield workflow, (), None


def a_failed_one_can_be_cancelled(drain: Drain) -> Iterator[Seen]:
    with Workflow(on_failure=say.s("failure")) as workflow:
        bad = workflow.add(say, "bad")
        workflow.add(say, "after", after=bad)
    bad.cancel()
    yield workflow, (), None
    yield workflow, (), [workflow.cancel(), refusal(bad.requeue)]


def a_clean_up_forgets_it(drain: Drain) -> Iterator[Seen]:
    BROKEN.add("bad")
    with Workflow() as workflow:
        good, bad = workflow.add(say, "good"), workflow.add(say, "bad")
        workflow.add(say, "after", after=[good, bad])
    early = workflow.cleanup()
    drain()
    yield workflow, (), [early, workflow.cleanup(), refusal(bad.requeue), refusal(workflow.cleanup)]
    drain()
    yield workflow, (), refusal(lambda: workflow.status)


def those_outside_wait_for_its_jobs(drain: Drain) -> Iterator[Seen]:
    BROKEN.add("bad")
    with Workflow() as workflow:
        good, bad = workflow.add(say, "good"), workflow.add(say, "bad")
    others = [
        gathered.using(after=[good, bad], on_parent_failure=policy).enqueue()
        for policy in ("wait", "skip", "go_on")
    ]
    drain()
    yield workflow, others, None
    workflow.cancel()
    drain()
    others.append(gathered.using(after=bad).enqueue())
    yield workflow, others, None


def a_delay_counts_when_the_parents_are_done(drain: Drain) -> Iterator[Seen]:
    with Workflow() as workflow:
        workflow.add(say.using(run_after=60), "later", after=workflow.add(say, "first"))
        workflow.add(say.using(run_after=60), "much later")
    yield workflow, (), None
    drain()
    yield workflow, (), None


def its_priority_is_for_jobs_without_one(drain: Drain) -> Iterator[Seen]:
    with Workflow(priority=3, queue_name="default") as workflow:
        for word, priority in (("low", -1), ("plain", None), ("high", 7)):
            workflow.add(say.using(priority=priority), word)
    chain(say.s("other"))
    drain()
    yield workflow, (), None


def a_job_cancelled_by_hand_is_a_failure(drain: Drain) -> Iterator[Seen]:
    with Workflow(on_complete=say.s("complete"), on_failure=say.s("failure")) as workflow:
        first = workflow.add(say, "first")
        second = workflow.add(say, "second", after=first)
        workflow.add(say, "third", after=second)
    second.cancel()
    yield workflow, (), None
    drain()
    yield workflow, (), None
    second.requeue()  # it waits, and what was held back continues
    drain()
    yield workflow, (), None


SCENARIOS = [
    results_go_from_parents_to_children,
    a_chain_hands_results_on,
    a_failure_fails_it_and_a_retry_completes_it,
    a_failure_holds_back_what_has_not_started,
    a_retry_leaves_what_failed_beside_it,
    a_skipped_branch_is_cancelled,
    one_goes_on_without_the_result,
    a_pause_holds_back_and_a_release_goes_on,
    what_is_held_back_stays_so_when_other_jobs_come,
    it_fails_while_it_is_paused,
    a_release_gives_back_what_a_failure_does_not_concern,
    a_cancel_cancels_what_has_not_ended,
    a_failed_one_can_be_cancelled,
    a_clean_up_forgets_it,
    those_outside_wait_for_its_jobs,
    a_delay_counts_when_the_parents_are_done,
    pytest.param(
        its_priority_is_for_jobs_without_one,
        marks=pytest.mark.one_shard("priorities hold inside a shard"),
    ),
    a_job_cancelled_by_hand_is_a_failure,
]


# -- the two implementations that run them


def look_at(job: Job) -> object:
    """What is compared about a job; None if it does not exist."""
    try:
        data = get_job(job.id).data
    except JobNotFound:
        return None
    return (data.task, data.status, data.result, data.generation, data.priority, data.attempts)


def look(seen: Seen) -> object:
    workflow, others, returned = seen
    try:
        data = replace(workflow.data, id="", made_ms=None, ended_ms=None)
    except WorkflowNotFound:
        data = None
    called = {name: look_at(Job(f"{workflow.id}.{name}")) for name in CALLBACKS}
    return (
        data,
        [*map(look_at, workflow.jobs())],
        [*map(look_at, others)],
        called,
        returned,
        [*RAN],
    )


def run_scenario(scenario: Callable[[Drain], Iterator[Seen]], drain: Drain) -> list[object]:
    RAN.clear()
    BROKEN.clear()
    return [look(seen) for seen in scenario(drain)]


def work(manual_worker: ManualWorker) -> None:
    """What a worker does, until there is nothing left to do."""
    steps = InMemorySteps(InMemoryQueue())
    while True:
        went_on = manual_worker.advance()
        claimed = manual_worker.claim()
        for job in claimed:
            parents = results_of(job.id)
            (resolution,) = InlineRun(job, parents, lambda _: True, steps, lambda _: None).run()
            manual_worker.settle(job, resolution.kind, resolution.body, resolution.detail)
        if not went_on and not claimed:
            return


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_memory_gives_the_same_results_as_redis(
    scenario: Callable[[Drain], Iterator[Seen]], manual_worker: ManualWorker
) -> None:
    in_redis = run_scenario(scenario, lambda: work(manual_worker))
    with capture_jobs() as jobs:
        in_memory = run_scenario(scenario, lambda: jobs.drain(scheduled=False))
    assert len(in_redis) == len(in_memory)
    for there, here in zip(in_redis, in_memory, strict=True):
        assert here == there


def test_a_cleaned_up_workflow_is_not_created_again() -> None:
    with capture_jobs() as jobs:
        workflow = Workflow()
        workflow.add(say, "once")
        push = workflow._checked()
        workflow.push()
        jobs.push_workflow(push)  # already known
        assert len(jobs.jobs) == 1
        jobs.drain()
        assert workflow.cleanup()
        with pytest.raises(WorkflowError, match="was cleaned up"):
            jobs.push_workflow(push)
        assert len(jobs.jobs) == 1
