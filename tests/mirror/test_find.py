"""find_jobs from the mirror: finished jobs, and what is not indexed."""

from __future__ import annotations

from typing import Any

import pytest

from django_redisqueue import find_jobs
from django_redisqueue.codec import dumps
from django_redisqueue.models import JobRecord
from django_redisqueue.tags import flat
from tests.store.flows import Flow

from .rows import record
from .scene import Scene


def options(**tags: str) -> str:
    return dumps({"tags": flat(tags)})


def found(**query: Any) -> list[str]:
    return [job.id for job in find_jobs(**query)]


def test_tags_reach_the_record_and_are_found_there(scene: Scene) -> None:
    lab = scene.lab
    lab.end("a", options=options(tenant="42", zone="eu"))
    lab.add("b", options=options(tenant="42"))
    lab.add("big", options=options(tenant="7"), payload=f'[["{"x" * 2000}"],{{}}]')
    lab.add("quiet", options=options(tenant="9"), audit="final")
    lab.add("plain")
    lab.store.cancel(["quiet"])
    scene.mirror()
    assert JobRecord.objects.get(pk="a").tags == '{"tenant":"42","zone":"eu"}'
    assert JobRecord.objects.get(pk="plain").tags == ""
    assert sorted(found(tags={"tenant": "42"})) == ["a", "b"]
    assert found(tags={"tenant": "42", "zone": "eu"}, status="completed") == ["a"]
    assert found(tags={"tenant": "42"}, status="unfinished") == ["b"]
    assert found(tags={"tenant": "7"}) == ["big"]
    assert found(tags={"tenant": "9"}) == ["quiet"]
    assert found(tags={"tenant": "4"}) == []
    (job,) = find_jobs(tags={"tenant": "42"}, status="completed")
    assert (job.result, dict(job.tags)) == ("ok", {"tenant": "42", "zone": "eu"})


def test_jobs_of_a_workflow(scene: Scene) -> None:
    flow, other = Flow(scene.lab, {0: [], 1: [0]}), Flow(scene.lab, {0: []}, name="00")
    flow.push(), other.push()
    scene.mirror()
    assert sorted(found(workflow=flow.id)) == [flow.job(0), flow.job(1)]
    assert found(workflow=flow.id, status="waiting") == [flow.job(1)]


@pytest.mark.parametrize("text", ['say "hi"', "100%", "back\\slash", "it's", "é", "_"])
def test_values_are_taken_literally(scene: Scene, text: str) -> None:
    record("this", tags=dumps({"name": text}))
    record("other", tags=dumps({"name": f"x{text}", "named": text, "text": f'"name":"{text}"'}))
    assert found(tags={"name": text}) == ["this"]


def test_letters_in_large_and_small_are_not_the_same(scene: Scene) -> None:
    record("large", tags='{"name":"A"}')
    record("small", tags='{"name":"a"}')
    assert found(tags={"name": "a"}) == ["small"]


def test_the_newest_come_first_and_no_more_than_asked_for(scene: Scene) -> None:
    for n in range(5):
        made = record(f"job{n}", "failed", task="ab"[n % 2], queue="low")
        JobRecord.objects.filter(pk=made.pk).update(enqueued_at=f"2026-01-0{n + 1}T00:00:00Z")
    assert found(task="a", queue="low") == ["job4", "job2", "job0"]
    assert found(status=["failed", "queued"], limit=2) == ["job4", "job3"]
    assert found(queue="default") == []


def test_a_record_that_can_not_be_read_is_left_out(scene: Scene) -> None:
    record("broken", payload="{")
    record("whole", payload="[[],{}]")
    assert found(task="app.task") == ["whole"]
