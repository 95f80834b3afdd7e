"""Tags, INDEXED and find_jobs, as an application sees them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.db import transaction

from django_redisqueue import Workflow, afind_jobs, find_jobs, get_job
from django_redisqueue.conf import load
from django_redisqueue.exceptions import ConfigurationError, InvalidName, InvalidOption, NotIndexed
from django_redisqueue.testing import capture_jobs
from tests.app import tasks
from tests.outbox.tasks import charge
from tests.support.shards import keys_of

from ..support.manual_worker import ManualWorker

ALL = ["task", "workflow", "tags.tenant"]


@pytest.fixture(autouse=True)
def indexed(queue_settings: dict[str, Any], settings: Any) -> Callable[[list[str]], None]:
    """Index these properties; initially, all that can be indexed."""

    def index(names: list[str]) -> None:
        settings.REDISQUEUE = {**queue_settings, "INDEXED": names}

    index(ALL)
    return index


def of_tenant(tenant: str, task: Any = tasks.noop) -> Any:
    return task.using(tags={"tenant": tenant})


# -- tags


def test_a_job_shows_its_tags() -> None:
    job = tasks.noop.using(tags={"zone": "eu", "tenant": "42"}, timeout=3).enqueue()
    assert dict(get_job(job.id).tags) == {"tenant": "42", "zone": "eu"}
    assert job.data.options["timeout_ms"] == 3000
    assert tasks.noop.enqueue().tags == {}


def test_tags_of_a_later_using_replace_earlier_ones() -> None:
    assert of_tenant("1").using(tags={"zone": "eu"}).enqueue().tags == {"zone": "eu"}
    assert of_tenant("1").using(priority=3).enqueue().tags == {"tenant": "1"}


def test_a_task_that_redacts_keeps_its_tags_and_its_secrets() -> None:
    job = of_tenant("42", charge).enqueue(1, "4111")
    assert (job.tags, job.args) == ({"tenant": "42"}, (1, "[redacted]"))
    assert find_jobs(tags={"tenant": "42"}, status="unfinished") == [job]


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        ("tenant", 'tags must be a dict such as {"tenant": "42"}, not \'tenant\''),
        ({"tenant": 42}, "the tag 'tenant' must be text, not 42; pass '42'"),
        ({"tenant": 10**5000}, "the tag 'tenant' must be text, not a value of int that"),
        ({"a b": "1"}, "tags: 'a b' is not a valid name of a tag: use a letter, then"),
        ({"": "1"}, "tags: '' is not a valid name"),
        ({7: "1"}, "tags: 7 is not a valid name"),
        ({"a": ""}, "the tag 'a' must have 1 to 100 printable characters"),
        ({"a": "x" * 101}, "the tag 'a' must have 1 to 100 printable"),
        ({"a": "two\nlines"}, "the tag 'a' must have 1 to 100 printable"),
        ({f"t{n}": "1" for n in range(11)}, "a job has at most 10 tags, not 11"),
    ],
)
def test_an_invalid_tag_is_refused(tags: Any, words: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        tasks.noop.using(tags=tags)
    assert words in str(caught.value)


# -- the setting


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("task", 'must be a list such as ["task", "tags.tenant"], not \'task\''),
        (["tasks"], "has 'tasks' (did you mean 'task'?); it accepts \"task\", \"workflow\", and"),
        (["status"], "has 'status' (did you mean"),
        (["tags"], "has 'tags'"),
        (["tags.a b"], "has 'tags.a b'"),
        ([1], "has 1"),
    ],
)
def test_a_property_that_cannot_be_indexed_is_named(value: Any, words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load({"INDEXED": value})
    assert words in str(caught.value)
    assert str(caught.value).startswith('REDISQUEUE["INDEXED"]')


def test_without_the_setting_jobs_are_unchanged(
    indexed: Callable[[list[str]], None], redis: Any
) -> None:
    indexed([])
    job, tagged = tasks.noop.enqueue(), of_tenant("1").enqueue()
    keys = keys_of()
    assert redis.hkeys(keys.job(job.id)) == [b"task", b"payload", b"status", b"enqueued_ms"]
    assert not redis.hexists(keys.job(tagged.id), "watched")
    assert not redis.keys("*index*")


# -- finding


def test_unfinished_jobs_are_found_by_what_is_indexed(manual_worker: ManualWorker) -> None:
    first, second = of_tenant("1").enqueue(), of_tenant("1").enqueue()
    other = of_tenant("2").enqueue()
    late = of_tenant("1", tasks.add).using(run_after=60).enqueue(1, 2)
    assert set(find_jobs(tags={"tenant": "1"}, status="unfinished")) == {first, second, late}
    assert find_jobs(tags={"tenant": "1"}, task=tasks.add, status="unfinished") == [late]
    assert find_jobs(task="tests.app.tasks.add", status=["scheduled", "queued"]) == [late]
    assert find_jobs(tags={"tenant": "2"}, status="queued") == [other]
    assert manual_worker.complete_one() == first.id
    assert find_jobs(task=tasks.noop, tags={"tenant": "1"}, status="unfinished") == [second]
    assert find_jobs(tags={"tenant": "1"}, status="queued", queue="low") == []
    assert find_jobs(tags={"tenant": "1"}, status="unfinished")[0].args is not None


def test_jobs_of_a_workflow(manual_worker: ManualWorker) -> None:
    with Workflow() as workflow:
        first = workflow.add(of_tenant("7"))
        second = workflow.add(of_tenant("7"), after=first)
    assert find_jobs(workflow=workflow, status="unfinished") == [second, first]
    assert find_jobs(workflow=workflow.id, status="waiting", tags={"tenant": "7"}) == [second]
    manual_worker.complete_one()
    assert find_jobs(workflow=workflow, status="unfinished") == [second]
    manual_worker.fail_one()
    assert find_jobs(workflow=workflow, status="unfinished") == []
    second.requeue()
    assert find_jobs(workflow=workflow, status="unfinished") == [second]


def test_for_async_code() -> None:
    job = of_tenant("1").enqueue()
    assert asyncio.run(afind_jobs(tags={"tenant": "1"}, status="unfinished")) == [job]


@pytest.mark.django_db(transaction=True)
def test_after_the_commit_and_not_after_a_rollback() -> None:
    with transaction.atomic():
        job = of_tenant("1").enqueue()
        assert find_jobs(tags={"tenant": "1"}, status="unfinished") == []
    assert find_jobs(tags={"tenant": "1"}, status="unfinished") == [job]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"tags": {"zone": "eu"}, "status": "queued"}, 'add "tags.zone" to REDISQUEUE["INDEXED"]'),
        ({"task": "a.b"}, 'ask for unfinished jobs only (status="unfinished"); or turn on'),
        (
            {"tags": {"zone": "eu"}, "status": ["failed", "queued"]},
            'add "tags.zone" to REDISQUEUE["INDEXED"] and ask for unfinished jobs only',
        ),
        ({"status": "queued"}, "use JobQueue.get_jobs, or turn on the mirror"),
        ({"status": "queued"}, "this app in INSTALLED_APPS, migrate)"),
    ],
)  # fmt: skip
def test_an_unanswerable_query_says_what_to_do(query: Any, words: str) -> None:
    with pytest.raises(NotIndexed) as caught:
        find_jobs(**query)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("query", "error", "words"),
    [
        (
            {"status": "done"},
            InvalidOption,
            "status must be .* one or more of scheduled, .* not 'done'",
        ),
        ({"status": 7}, InvalidOption, "not 7"),
        ({"task": "no path"}, InvalidName, "'no path' is not a valid task name"),
        ({"workflow": "job_1"}, InvalidName, "'job_1' is not a valid workflow id"),
        ({"queue": "a b"}, InvalidName, "'a b' is not a valid queue name"),
        ({"tags": ["a"]}, InvalidOption, "tags must be a dict"),
        ({"limit": 0}, InvalidOption, "limit must be a whole number from 1 to 1000, not 0"),
        ({"limit": 1001}, InvalidOption, "not 1001"),
    ],
)
def test_an_invalid_query_is_refused(query: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        find_jobs(**query)


def test_in_memory_everything_can_be_found() -> None:
    with capture_jobs() as jobs:
        first, second = of_tenant("1").enqueue(), of_tenant("2").enqueue()
        jobs.drain()
        third = of_tenant("1").enqueue()
        assert find_jobs(tags={"tenant": "1"}) == [third, first]
        assert find_jobs(status="completed", limit=1) == [second]
