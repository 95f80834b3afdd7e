"""Every page works whatever a hash, a stream or a row contains, and shows the data around it."""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.utils import timezone
from hypothesis import example, given, settings
from hypothesis import strategies as st
from redis import Redis

from django_redisqueue import Workflow, find_jobs, get_job
from django_redisqueue.broker.workflows import WorkflowQueries
from django_redisqueue.exceptions import CorruptJob
from django_redisqueue.metrics.rollups import floor
from django_redisqueue.models import JobEvent, JobRecord, Rollup, WorkflowRecord
from django_redisqueue.monitor.loop import Monitor
from django_redisqueue.monitor.snapshot import Observer
from django_redisqueue.monitor.views import JsonView, line, parse
from django_redisqueue.prometheus import Collector
from tests.app import tasks
from tests.mirror import rows
from tests.support.commands import output_of
from tests.support.hostile import BYTES, TEXTS, nested
from tests.support.manual_worker import ManualWorker
from tests.support.shards import keys_with

from .site import Site

pytestmark = [
    pytest.mark.django_db(databases=["default", "other"]),
    pytest.mark.filterwarnings("ignore:Generating overly large repr"),  # of generated content
]

generated = settings(max_examples=8)
Restore = Callable[[], object]

JOB_FIELDS = st.sampled_from(
    ["v", "task", "payload", "options", "status", "queue", "priority", "attempts", "recoveries",
     "generation", "lease", "seq", "child", "result", "error", "reason", "progress", "enqueued_ms",
     "due_ms", "started_ms", "finished_ms", "cancel_ms", "after", "then", "ready_ms", "lane",
     "unique", "waits_for", "parked_ms"]
)  # fmt: skip
DEEP = nested(500).encode()


def api(site: Site, path: str, code: int = 200) -> Any:
    """A GET of the API by the same user."""
    answer = site.client.get(f"/jobs{path}")
    assert answer.status_code == code, answer.content
    return json.loads(answer.content, parse_constant=pytest.fail)


@pytest.fixture
def failed(site: Site, manual_worker: ManualWorker) -> list[str]:
    """Three failed jobs, of which the middle one will be corrupted."""
    jobs = tasks.noop.enqueue_many([("first",), ("corrupt",), ("last",)])
    for _ in jobs:
        manual_worker.fail_one()
    return [job.id for job in jobs]


@generated
@given(fields=st.dictionaries(JOB_FIELDS, BYTES, min_size=1, max_size=3))
@example(fields={"payload": b"[[" + DEEP + b"],{}]"})
@example(fields={"payload": b"[[NaN],{}]", "error": b"5"})
@example(fields={"result": b'"\\ud800"'})
@example(fields={"task": b"\xff\x1b", "queue": b"\xfe", "child": b"\xfd.1"})
@example(fields={"progress": b'{"done":%d,"total":1,"note":""}' % 10**400, "status": b"processing"})
@example(fields={"task": b""})
@example(fields={"status": b"queued", "lane": b"|c:x: !never", "unique": b"\xff a b"})
@example(fields={"status": b"scheduled", "waits_for": b"\xff", "parked_ms": b"9" * 400})
@example(fields={"options": b'{"tags":["a",1],"redact":5}'})
@example(fields={"error": b'{"type":1,"message":[],"traceback":{}}'})
@example(fields={"finished_ms": b"9" * 400, "started_ms": b"-" + b"9" * 400})
def test_a_job_with_corrupt_fields(
    site: Site,
    manual_worker: ManualWorker,
    redis: Redis,
    failed: list[str],
    fields: Mapping[str, bytes],
) -> None:
    first, corrupt, last = failed
    key = manual_worker.store.keys.job(corrupt)
    before = redis.hgetall(key)
    redis.hset(key, mapping=dict(fields))
    try:
        words = site.text("queue", "default", "failed")
        for job_id, argument in ((first, '"first"'), (last, '"last"')):
            assert f"{tasks.noop.name} {job_id} {argument}" in words
        assert corrupt in words
        assert corrupt in site.text("job", corrupt)
        assert "drq-job" in site.json("job", corrupt, live=1)["fragments"]
        page = {row["id"]: row for row in api(site, "/failed")["jobs"]}
        assert (page[first]["args"], page[last]["args"]) == (["first"], ["last"])
        assert page[corrupt].keys() >= {"problem"} or page[corrupt]["task"]
        assert api(site, f"/{corrupt}")["id"] == corrupt
        with suppress(CorruptJob):  # and nothing else
            get_job(corrupt)
    finally:
        redis.delete(key)
        redis.hset(key, mapping=before)


@generated
@given(fields=st.dictionaries(JOB_FIELDS, BYTES, min_size=1, max_size=3))
@example(fields={"enqueued_ms": b"9" * 400})
@example(fields={"ready_ms": b"nan"})
@example(fields={"started_ms": b"9" * 400, "task": b"\xff\r\n"})
def test_a_corrupt_job_that_is_next_or_runs(
    site: Site, manual_worker: ManualWorker, redis: Redis, fields: Mapping[str, bytes]
) -> None:
    redis.flushdb()
    running, _ = tasks.noop.enqueue_many([(1,), (2,)])
    manual_worker.claim_one()
    for job_id in (running.id, "job_1_next_0"):
        redis.hset(manual_worker.store.keys.job(job_id), mapping=dict(fields))
    redis.rpush(manual_worker.store.keys.queue("default").queued, "job_1_next_0")
    words = site.text("overview")
    assert "default" in words
    assert "low" in words
    assert "drq-queues" in site.json("overview_live")["fragments"]
    assert api(site, "/stats")["queues"]["default"]["counts"]["processing"] == 1
    assert any(metric.name == "redisqueue_jobs" for metric in Collector().collect())
    for options in ({}, {"json": True}):
        out = output_of("queuemonitor", once=True, **options)
        assert "default" in out
        assert all(line.isprintable() for line in out.split("\n"))


@generated
@given(
    meta=st.dictionaries(
        st.sampled_from(["paused", "enqueued_total", "completed_total", "failed_total"]), BYTES
    ),
    events=BYTES,
    score=st.floats(allow_nan=False),
    child=BYTES,
    job_id=BYTES,
)
@example(
    meta={"enqueued_total": b"9" * 400}, events=b"x", score=float("inf"), child=b"", job_id=b""
)
@example(meta={}, events=b"", score=1, child=b"a.b.\xc2\xb2.1.\xc2\xb2", job_id=b"1" * 5000)
@example(meta={}, events=b"", score=1, child=b"a.b.%b.1.%b" % (2 * (b"1" * 5000,)), job_id=b"x.")
@example(meta={}, events=b"9" * 400, score=1e300, child=b"\xff/\n", job_id=b"\xff/\n")
def test_corrupt_keys_of_a_queue_and_of_workers(
    site: Site, manual_worker: ManualWorker, redis: Redis, meta: Any, events: bytes, score: float,
    child: bytes, job_id: bytes,
) -> None:  # fmt: skip
    redis.flushdb()
    fine = tasks.noop.enqueue("fine")
    keys = manual_worker.store.keys
    redis.hset(keys.meta, "events", events)
    if meta:
        redis.hset(keys.queue("default").meta, mapping=meta)
    redis.zadd(keys.workers, {child: score})
    redis.rpush(
        keys.child_processing(child.decode("utf-8", "surrogateescape")).encode(
            "utf-8", "surrogateescape"
        ),
        job_id,
    )
    redis.lpush(keys.queue("default").queued, job_id)
    assert fine.id in site.text("queue", "default", "queued")
    assert "default" in site.text("overview")
    assert fine.id in {row["id"] for row in api(site, "/queued")["jobs"]}
    assert api(site, "/stats")["queues"]["default"]["counts"]["queued"] == 2
    assert any(metric.name == "redisqueue_jobs" for metric in Collector().collect())
    out = output_of("queuemonitor", once=True)
    assert all(line.isprintable() for line in out.split("\n"))


@pytest.mark.slow
@generated
@given(member=BYTES, score=st.floats(allow_nan=False), value=BYTES)
@example(member=b"\xff/\n<b>", score=float("-inf"), value=b"\xfe \xff")
@example(member=b"c:\xff:\xfe \xfd", score=1e300, value=b"9" * 400)
@example(member=b"r:a:b default", score=1.5, value=b"1/1/0")
@example(member=b"", score=0, value=b"")
@example(member=b"NaN", score=1.0, value=b"NaN")
@example(member=b"NaN", score=-1.0, value=b"")
def test_corrupt_policies(
    site: Site, manual_worker: ManualWorker, redis: Redis, member: bytes, score: float, value: bytes
) -> None:
    redis.flushdb()
    keys = manual_worker.store.keys
    for key in (keys.uniques, keys.schedules, keys.slots, keys.waiting_limits):
        redis.zadd(key, {member: score, **{f"c:l:{n} job_{n}": n for n in range(60)}})
    redis.set(keys.unique("").encode() + member, value)
    redis.hset(keys.schedule("").encode() + member, mapping={"error": value, "next_ms": value})
    redis.hset(keys.limits, "r:a", value)
    redis.hset(keys.limits, "c:l", value)
    redis.set(keys.tat("r:a:b"), value)
    for page in ("limits", "unique_keys", "schedules", "overview"):
        text = site.get(page)
        link = re.search(r'<a href="([^"]*)" rel="next">', text)
        if link:
            following = site.client.get(html.unescape(link[1])).content.decode()
            assert "must be the value that the previous page returned" not in following
    for path in ("/limits", "/unique-keys", "/schedules", "/health"):
        assert api(site, path)
    assert any(metric.name == "redisqueue_unique_keys" for metric in Collector().collect())
    out = output_of("queuemonitor", once=True)
    assert all(line.isprintable() for line in out.split("\n"))


RECORD_TEXTS = st.sampled_from(
    ["task", "queue", "payload", "result", "error", "error_type", "reason", "progress", "tags",
     "worker"]
)  # fmt: skip
STORABLE = TEXTS.map(lambda text: text.encode("utf-8", "replace").decode().replace("\0", " "))


@generated
@given(fields=st.dictionaries(RECORD_TEXTS, STORABLE, min_size=1, max_size=3), detail=STORABLE)
@example(fields={"payload": f"[[{nested(500)}],{{}}]"}, detail=nested(500))
@example(fields={"tags": "[]", "progress": "5"}, detail='{"progress":{"done":1e999}}')
@example(fields={"tags": '{"a":1}'}, detail=f'{{"progress":{{"done":{10**400},"total":1}}}}')
@example(fields={"result": "NaN", "error": '{"type":1,"message":2}'}, detail='{"dueMs":[]}')
def test_a_corrupt_record(site: Site, redis: Redis, fields: Mapping[str, str], detail: str) -> None:
    JobRecord.objects.all().delete()
    JobEvent.objects.all().delete()
    for name in ("job_1_first_0", "job_1_corrupt_0", "job_1_last_0"):
        rows.record(name, "completed", payload=f'[["{name}!"],{{}}]', tags='{"a":"b"}')
    JobRecord.objects.filter(pk="job_1_corrupt_0").update(**fields)
    rows.event("job_1_corrupt_0")
    JobEvent.objects.update(detail=detail, task=detail[:200])
    words = site.text("jobrecord_changelist")
    assert '"job_1_first_0!"' in words
    assert '"job_1_last_0!"' in words
    assert "job_1_corrupt_0" in words
    assert "job_1_corrupt_0" in site.text("job", "job_1_corrupt_0")
    assert api(site, "/job_1_corrupt_0")["id"] == "job_1_corrupt_0"
    found = [job.id for job in find_jobs(tags={"a": "b"})]
    assert {"job_1_first_0", "job_1_last_0"} <= set(found)


def test_a_record_whose_id_cannot_be_in_a_url(site: Site) -> None:
    """Any writer of events in Redis controls the ids of records."""
    rows.record("job_1/2", task="app.a")
    rows.record("job_12", task="app.b")
    for flow in ("flow_1/2", "flow_12"):
        WorkflowRecord.objects.create(id=flow, name=flow, status="failed", made_at=rows.T0)
    assert "job_1/2" in site.get("jobrecord_changelist")
    assert "job_12 app.b" in site.text("search", q="job_1")
    page = site.get("workflows")
    assert 'jobrecord/workflows/flow_12/">flow_12</a>' in page
    assert ">flow_1/2<" in page


@pytest.mark.slow
@generated
@given(
    fields=st.dictionaries(
        st.sampled_from(["status", "name", "paused_ms", "total", "waiting", "processing",
                         "completed", "failed", "cancelled", "generation", "made_ms", "ended_ms"]),
        BYTES, min_size=1, max_size=3,
    ),
    job=st.dictionaries(JOB_FIELDS, BYTES, max_size=2),
)  # fmt: skip
@example(fields={"total": b"x"}, job={})
@example(fields={"status": b"dancing"}, job={"status": b"\xff"})
@example(fields={"total": b"9" * 30, "made_ms": b"9" * 400}, job={"after": b".\xff .x"})
@example(fields={"name": b"\xff\x1b", "total": b"-5"}, job={"task": b"\xff"})
def test_a_corrupt_workflow(
    site: Site,
    manual_worker: ManualWorker,
    redis: Redis,
    fields: Mapping[str, bytes],
    job: Mapping[str, bytes],
) -> None:
    redis.flushdb()
    WorkflowRecord.objects.all().delete()
    workflows = [Workflow(name=name) for name in ("first", "corrupt", "last")]
    for workflow in workflows:
        workflow.add(tasks.noop, workflow.name)
        workflow.add(tasks.noop, workflow.name)
        workflow.push()
        WorkflowRecord.objects.create(
            id=workflow.id, name=workflow.name, status="running", total=2, made_at=rows.T0
        )
    corrupt = workflows[1].id
    redis.hset(keys_with(corrupt).workflow(corrupt), mapping=dict(fields))
    if job:
        redis.hset(keys_with(corrupt).job(f"{corrupt}.0"), mapping=dict(job))
    words = site.text("workflows")
    assert all(
        f"{workflow.name} {workflow.id} running" in words
        for workflow in (workflows[0], workflows[2])
    )
    site.text("workflow", corrupt)
    assert site.json("workflow", corrupt, live=1)["fragments"]
    answer = site.client.get(f"/jobs/workflows/{corrupt}")
    assert answer.status_code in (200, 409)
    assert answer.json()
    WorkflowRecord.objects.all().delete()
    site.text("workflow", corrupt)


@generated
@given(result=BYTES)
@example(result=DEEP)
def test_a_corrupt_result_of_a_parent(
    site: Site, manual_worker: ManualWorker, redis: Redis, result: bytes
) -> None:
    redis.flushdb()
    with Workflow() as workflow:
        parent = workflow.add(tasks.noop)
        child = workflow.add(tasks.noop, after=parent)
    manual_worker.complete_one("1")
    redis.hset(keys_with(parent.id).job(parent.id), "result", result)
    with suppress(CorruptJob):  # and nothing else
        queries = WorkflowQueries(manual_worker.store_of(child.id).connection)
        assert list(queries.parent_results(child.id)) == [parent.id]


@generated
@given(texts=st.lists(STORABLE, min_size=1, max_size=3))
@example(texts=["NaN", "[NaN]", "[1e999]"])
@example(texts=['["a"]', nested(500), f"[{10**400}]"])
def test_a_corrupt_rollup(site: Site, texts: list[str]) -> None:
    Rollup.objects.all().delete()
    whole = floor(timezone.now(), timedelta(minutes=1)) - timedelta(minutes=1)
    for n, text in enumerate(["[5,5]", *texts]):
        Rollup.objects.create(
            minute=whole, queue="default", task=f"t{n}", enqueued=2, wait=text, run=text
        )
    chart = site.client.get("/admin/django_redisqueue/jobrecord/dashboard/charts/")
    found = json.loads(chart.content, parse_constant=pytest.fail)
    assert any(each is not None for each in found["chart"]["wait50"])
    assert 2 + 2 * len(texts) in found["chart"]["enqueued"]
    assert "Throughput and latency" in site.text("overview")
    list(Collector().collect())


@generated
@given(entries=st.lists(st.dictionaries(BYTES, BYTES, min_size=1, max_size=2), max_size=3))
@example(entries=[{b":alike": b"{"}])
@example(entries=[{b":n": b"x", b":alike": b'{"status":NaN}', b"job_1": b"\xff"}])
def test_corrupt_events(
    site: Site, manual_worker: ManualWorker, redis: Redis, entries: list[dict[bytes, bytes]]
) -> None:
    redis.flushdb()
    first = tasks.noop.enqueue()
    for entry in entries:
        redis.xadd(manual_worker.store.keys.events, entry)  # type: ignore[arg-type]
    last = tasks.noop.enqueue()
    site.text("overview")
    answer = site.client.get("/jobs/events?last_event_id=1-0")
    assert answer.status_code == 200
    data = [line[6:] for line in answer.content.decode().split("\n") if line.startswith("data: ")]
    events = [json.loads(text, parse_constant=pytest.fail) for text in data]
    found = [event.get("jobId") for event in events]
    assert [job_id for job_id in found if job_id in (first.id, last.id)] == [first.id, last.id]


ASKED = ["a\0b", "1.a\0b", "a/b", "\ud800", "é\u202e\r\n", "x" * 5000]


@pytest.mark.slow
def test_any_query_parameters_on_postgresql(on_postgres: object, site: Site) -> None:
    base = "/admin/django_redisqueue"
    for text in ASKED:
        asked = quote(text, safe="", errors="surrogatepass")
        addresses = [
            f"{base}/jobrecord/jobs/{asked}/", f"{base}/jobrecord/workflows/{asked}/",
            f"{base}/jobrecord/queues/{asked}/failed/", f"{base}/jobrecord/queues/default/{asked}/",
            f"{base}/jobrecord/{asked}/change/", f"{base}/workflowrecord/{asked}/change/",
            f"/jobs/{asked}", f"/jobs/workflows/{asked}",
        ]  # fmt: skip
        for name in ("text", "task", "queue", "id", "since", "status", "after"):
            addresses.append(f"{base}/jobrecord/?{name}={asked}")
            addresses.append(f"{base}/jobrecord/queues/default/queued/?{name}={asked}")
        for name in ("name", "status", "after"):
            addresses.append(f"{base}/jobrecord/workflows/?{name}={asked}")
        for name in ("task", "queue", "text", "state", "order"):
            addresses.append(f"{base}/jobrecord/errors/?{name}={asked}")
        addresses += [
            f"{base}/jobrecord/errors/{asked}/", f"{base}/jobrecord/errors/e/?after={asked}",
            f"{base}/jobrecord/search/?q={asked}", f"{base}/jobrecord/tasks/?q={asked}",
            f"{base}/jobrecord/tasks/task/?name={asked}", f"{base}/jobrecord/gathers/{asked}/",
            f"{base}/jobrecord/export/?format=csv&task={asked}",
            f"{base}/jobrecord/policies/limits/?after={asked}",
            f"{base}/jobrecord/policies/waits/?after={asked}&kind={asked}",
            f"{base}/jobrecord/workers/?q={asked}&queue={asked}",
        ]  # fmt: skip
        for address in addresses:
            assert site.client.get(address).status_code in (200, 302, 400, 404), address


@generated
@given(text=TEXTS, field=st.sampled_from(["queue", "status", "task", "jobId", "attempt", "x"]))
@example(text='{"queue":["default"]}', field="x")
@example(text='{"timestamp":1e999}', field="x")
@example(text=f'{{"timestamp":{10**400}}}', field="x")
def test_a_corrupt_message_of_the_channel(text: str, field: str) -> None:
    observer = Observer(None, ["default"])  # type: ignore[arg-type]
    watched = Monitor(observer, None, interval=1)  # type: ignore[arg-type]
    for message in (text, json.dumps({"queue": "default", field: text})):
        heard = parse(message)
        watched._is_wanted(heard)
        assert line(heard).isprintable()
        out = io.StringIO()
        JsonView(out).show_messages([heard])
        assert json.loads(out.getvalue(), parse_constant=pytest.fail)
