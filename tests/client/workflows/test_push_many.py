"""Many workflows pushed in one pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction
from redis import Redis

from django_redisqueue import Workflow, WorkflowError, get_job, push_many
from django_redisqueue.exceptions import RedisUnavailable, UniqueConflict, WorkflowNotFound
from tests.app.tasks import noop
from tests.support.round_trips import calls_of

pytestmark = pytest.mark.usefixtures("queue_settings")


def built(count: int, middle: int = 2) -> list[Workflow]:
    workflows = []
    for _ in range(count):
        workflow = Workflow()
        first = workflow.add(noop)
        workflow.add(noop, after=[workflow.add(noop, n, after=first) for n in range(middle)])
        workflows.append(workflow)
    return workflows


def test_each_workflow_exists_with_all_its_jobs() -> None:
    workflows = built(5)
    assert push_many(workflows) == 5
    assert [
        (workflow.status, workflow.data.total, workflow.data.queued) for workflow in workflows
    ] == [("running", 4, 1)] * 5
    with pytest.raises(WorkflowError, match="already been pushed"):
        workflows[0].push()


def test_the_same_workflow_twice_is_refused() -> None:
    workflow, other = built(2)
    with pytest.raises(WorkflowError, match="occurs twice in push_many"):
        push_many([workflow, other, workflow])
    assert push_many([other, workflow]) == 2


def test_workflows_of_more_than_one_call_are_complete_too() -> None:
    workflows = built(3, middle=250)
    assert push_many(workflows) == 3
    assert [workflow.data.total for workflow in workflows] == [252] * 3
    assert get_job(f"{workflows[2].id}.251").data.task.endswith("noop")


@pytest.mark.one_shard("workflows of several shards share no call")
@pytest.mark.one_server("it counts the commands of its server")
def test_small_workflows_share_calls_of_a_hundred_jobs(redis: Redis) -> None:
    noop.enqueue()  # connects
    redis.config_resetstat()
    assert push_many(built(60)) == 60
    assert calls_of(redis, "evalsha") == 3


@pytest.mark.one_shard("it counts what one script writes")
@pytest.mark.one_server("it counts the commands of its server")
def test_a_call_writes_at_most_a_thousand_links_to_wide_parents(redis: Redis) -> None:
    """Each job waits for each of 110 parents: 12,100 links, in calls of 9 jobs (990 links)."""
    workflow = Workflow()
    parents = [workflow.add(noop) for _ in range(110)]
    for n in range(110):
        workflow.add(noop, n, after=parents)
    noop.enqueue()  # connects
    redis.config_resetstat()
    workflow.push()
    assert calls_of(redis, "rpush") == 110 * 110 + 1  # and the deferred start
    assert calls_of(redis, "evalsha") >= 110 // 9
    assert workflow.data.total == 220


@pytest.mark.one_shard("a job with a unique key and its workflow are in one shard")
def test_links_do_not_keep_jobs_with_unique_keys_from_sharing_a_call() -> None:
    def conflicting() -> Workflow:
        workflow = Workflow()
        parents = [workflow.add(noop) for _ in range(110)]
        for n in range(110):
            own = noop.using(unique="until_finished") if n < 20 else noop
            workflow.add(own, n, after=parents)
        return workflow

    last = noop.using(unique="until_finished").enqueue(19)
    refused = conflicting()
    with pytest.raises(UniqueConflict, match=last.id):
        refused.push()
    with pytest.raises(WorkflowNotFound):  # nothing of it was written
        _ = refused.data
    last.cancel()
    refused.push()
    assert refused.data.total == 220


def test_a_generator_may_query_redis_while_it_is_sent() -> None:
    job = noop.enqueue()

    def lazily() -> Iterator[Workflow]:
        for workflow in built(20):
            job.refresh()
            assert job.status == "queued"
            yield workflow

    assert push_many(lazily()) == 20


def test_an_error_says_how_many_are_pushed_and_the_rest_can_follow() -> None:
    workflows = built(3)
    wrong = Workflow("hollow")
    with pytest.raises(WorkflowError, match="'hollow' is empty") as raised:
        push_many([*workflows, wrong])
    (note,) = raised.value.__notes__
    pushed = int(note.split()[0])
    assert note == f"{pushed} workflows were pushed before the error"
    assert [workflow._is_pushed for workflow in workflows] == [n < pushed for n in range(3)]
    assert push_many(workflows[pushed:]) == 3 - pushed
    assert all(workflow.data.total == 4 for workflow in workflows)


def test_it_raises_an_error_when_redis_is_down(
    settings: Any, queue_settings: dict[str, Any]
) -> None:
    settings.REDISQUEUE = {**queue_settings, "CONNECTION": {"URL": "unix:///nonexistent/redis"}}
    workflows = built(2)
    with pytest.raises(RedisUnavailable) as raised:
        push_many(workflows)
    assert raised.value.__notes__ == ["0 workflows were pushed before the error"]
    settings.REDISQUEUE = queue_settings
    assert push_many(workflows) == 2


@pytest.mark.django_db(transaction=True)
def test_they_wait_for_the_commit() -> None:
    with transaction.atomic():
        workflows = built(2)
        assert push_many(workflows) == 2
        with pytest.raises(WorkflowNotFound):
            _ = workflows[0].data
    assert [workflow.data.total for workflow in workflows] == [4, 4]
