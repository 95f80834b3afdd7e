"""The page of a job: its attempts, its arguments by name, its time left, its links, and copies."""

from __future__ import annotations

import html
import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User

from django_redisqueue import JobQueue, get_job, task
from django_redisqueue.broker.queries import Queries
from django_redisqueue.client.transport import connection_of
from django_redisqueue.conf import get_settings
from django_redisqueue.core.errors import traceback_parts
from django_redisqueue.core.ids import periodic_job_id
from django_redisqueue.core.job_data import encode_error
from django_redisqueue.mirror.bridge import make_bridge
from django_redisqueue.models import ErrorGroup, PeriodicJob
from django_redisqueue.telemetry import correlate
from tests.app import tasks
from tests.mirror.rows import event, record
from tests.support.manual_worker import ManualWorker
from tests.support.shards import shard_of

from .site import Site, address, logged


@task(unique="until_finished")
def once(x: int) -> None:
    """Has its own unique key."""


TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 3, in charge
    pay(1)
    ~~~^^^
  File "/srv/.venv/lib/python3.11/site-packages/bank.py", line 9, in pay
    raise ValueError("no")
ValueError: no
"""


def test_the_frames_of_the_application_are_distinguished_in_a_traceback() -> None:
    parts = list(traceback_parts(TRACEBACK + "  + Exception Group\n  | File is no frame\n"))
    assert "".join(part.text for part in parts).startswith(TRACEBACK)
    (own,) = [part.text for part in parts if part.is_own]
    assert own.startswith('  File "/srv/shop/tasks.py"')
    assert own.endswith("~~~^^^\n")
    paths = ("/usr/lib/python3.11/json/decoder.py", "<string>", "/x/dist-packages/y.py")
    for path in paths:
        assert not any(
            p.is_own for p in traceback_parts(f'  File "{path}", line 1, in f\n    f()\n')
        )


def mirror() -> None:
    bridge = make_bridge(get_settings(), shard=shard_of())
    while bridge.run_once():
        pass
    bridge.connection.close()


def attempts(site: Site, job_id: str) -> list[str]:
    """The sections of the attempts as text, newest first."""
    page = site.get("job", job_id)
    found = re.findall(r'<details class="drq-attempt".*?</details>', page, re.S)
    return [" ".join(re.sub(r"<[^>]*>", " ", each).split()) for each in found]


def settle(
    manual_worker: ManualWorker, job: Any, kind: str, message: str, detail: str, trace: str = ""
) -> None:
    manual_worker.settle(job, kind, encode_error("shop.Declined", message, trace, 50_000), detail)


@pytest.mark.django_db(databases=["default", "other"])
def test_each_attempt_has_its_section_with_its_error(
    site: Site, manual_worker: ManualWorker
) -> None:
    job = tasks.flaky.enqueue("k", 9)
    settle(manual_worker, manual_worker.claim_one(), "retrying", "first", "0", TRACEBACK)
    manual_worker.store.promote(["default"])
    settle(
        manual_worker, manual_worker.claim_one(), "retrying", "second", "0", TRACEBACK + "x" * 2000
    )
    manual_worker.store.promote(["default"])
    running = manual_worker.claim_one()
    mirror()
    third, second, first = attempts(site, job.id)
    assert third.startswith("Attempt 3 of 5 processing")
    assert second.startswith("Attempt 2 of 5 retrying")
    assert "shop.Declined : second Traceback" in second
    assert "shop.Declined : first" in first
    assert '<mark class="drq-own">  File &quot;/srv/shop' in site.get("job", job.id)
    settle(manual_worker, running, "failed", "third", "", "x" * 2000)
    mirror()
    third, second, first = attempts(site, job.id)
    assert "Declined : third" in third
    assert "is no longer available" in second, "over 1 KB, and not the last one"
    get_job(job.id).requeue()
    manual_worker.claim_one()
    mirror()
    assert attempts(site, job.id)[0].startswith("Attempt 1 of 5, after manual retry 1 processing")
    assert len(attempts(site, job.id)) == 4


def test_attempts_without_events_and_with_too_many(site: Site, manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue()
    assert attempts(site, job.id) == []
    manual_worker.fail_one("alone")
    (only,) = attempts(site, job.id)
    assert only.startswith("Attempt 1 of 1 failed")
    assert "ValueError : alone" in only
    record("job_x", "completed", task=tasks.noop.name)
    for n in range(1, 31):
        event("job_x", "processing", attempt=n, worker="box.aaaaaaaa.1.2.3")
        event("job_x", "queued", attempt=n - 1)  # its worker was lost
        event("job_x", "processing", attempt=n, worker="box.aaaaaaaa.1.2.4")
        event("job_x", "retrying", attempt=n, detail={"error": 5})
    found = attempts(site, "job_x")
    assert len(found) == 20
    assert found[0].startswith("Attempt 30 of 1 retrying")
    assert "box, child 3, then box, child 4" in found[0]


def test_progress_is_folded_in_the_history(site: Site, redisqueue: None) -> None:
    for n in range(5):
        detail = {"progress": {"done": n, "total": 5, "note": ""}} if n else None
        event("job_p", "processing", attempt=1, detail=detail)
    words = site.text("job", "job_p")
    assert "4 of 5 3 earlier reports of progress" in words
    assert words.index("4 of 5") < words.index("1 of 5")


def test_arguments_have_their_parameter_names_and_are_indented(site: Site) -> None:
    job = tasks.noop.enqueue({"b": [1]})
    page = site.get("job", job.id)
    assert '<th scope="row">x</th>' in page
    assert "{\n  &quot;b&quot;: [\n    1\n  ]\n}" in page
    record("job_u", task="gone.task", payload='[["a"],{"named":2}]')
    assert '1 "a" named 2' in site.text("job", "job_u")


def test_no_character_of_a_value_changes_the_writing_direction(
    site: Site, manual_worker: ManualWorker
) -> None:
    """An amount of 19 looked like 91."""
    name = "Bob\u202e"
    tasks.noop.enqueue([name, 19])
    job = manual_worker.claim_one()
    text = encode_error("Declined", f"no {name} 19", f"Traceback\n  {name}\n", 9999)
    manual_worker.settle(job, "failed", text)
    mirror()
    pages = {"job": (job.id,), "queue": ("default", "failed"), "copy_job": (job.id,), "errors": ()}
    for page, arguments in pages.items():
        shown = site.get(page, *arguments)
        assert "Bob\\u202e" in shown, page
        assert "\u202e" not in shown, page
    text = site.get("copy_job", job.id).partition('name="args"')[2].partition("</textarea>")[0]
    args = html.unescape(text.partition(">")[2])
    site.post("copy_job", job.id, args=args, kwargs="{}")
    (copy,) = JobQueue().get_jobs("queued")
    assert copy.args == ([name, 19],)


def test_the_time_that_is_left(site: Site, manual_worker: ManualWorker) -> None:
    job = tasks.noop.using(timeout=300).enqueue()
    later = tasks.noop.using(run_after=7200).enqueue()
    assert re.search(r"Due in (1 h 59 m|2 h)", site.text("job", later.id))
    assert "Time left" not in site.text("job", job.id)
    running = manual_worker.claim_one()
    assert re.search(r"Time left (4 m \d+ s|5 m) of 5 m", site.text("job", job.id))
    manual_worker.settle(running, "retrying", encode_error("E", "no", "", 999), "3600000")
    assert re.search(r"Next attempt in (59 m|1 h)", site.text("job", job.id))


def test_until_when_a_job_may_start(site: Site, manual_worker: ManualWorker) -> None:
    job = tasks.noop.using(expires="10m").enqueue()
    assert "Expires after 10 m" in site.text("job", job.id)
    at = tasks.noop.using(expires=datetime(2100, 1, 2, 3, 4, tzinfo=UTC)).enqueue()
    assert re.search(r"Expires 2100-01-0\d \d\d:\d4", site.text("job", at.id))
    assert "Expires" not in site.text("job", tasks.noop.enqueue().id)
    error = encode_error("JobExpired", "no worker claimed it", "", 999)
    manual_worker.settle(manual_worker.claim_one(), "cancelled", error, "expired")
    words = site.text("job", job.id)
    assert "expired" in words
    assert "JobExpired : no worker claimed it" in words


def test_links_to_everything_a_job_belongs_to(site: Site, manual_worker: ManualWorker) -> None:
    PeriodicJob.objects.create(name="nightly", task=tasks.noop.name, every="1h")

    name = "host.machine.1.2.worker3"
    record(periodic_job_id("nightly", 1_700_000_000_000), task=tasks.noop.name, worker=name)
    page = site.get("job", periodic_job_id("nightly", 1_700_000_000_000))
    assert f'href="{address("queue", "default", "queued")}"' in page
    assert f'href="{address("task")}?name={tasks.noop.name}"' in page
    assert f'href="{address("workers")}?q=host.machine.1.2"' in page
    assert address("periodicjob_change", PeriodicJob.objects.get().pk) in page


@pytest.mark.django_db(databases=["default", "other"])
def test_each_failed_attempt_links_to_the_group_of_its_error(
    site: Site, manual_worker: ManualWorker
) -> None:
    job = tasks.flaky.enqueue("k", 9)
    settle(manual_worker, manual_worker.claim_one(), "retrying", "order 7", "0", TRACEBACK)
    manual_worker.store.promote(["default"])
    settle(manual_worker, manual_worker.claim_one(), "failed", "order 'x'", "", TRACEBACK)
    mirror()
    groups = {group.message: group.pk for group in ErrorGroup.objects.all()}
    links = re.findall(r'href="([^"]*)">All errors like this', site.get("job", job.id))
    assert links == [address("error", groups[text]) for text in ("order '…'", "order <n>")]
    assert job.id in site.get("error", groups["order '…'"])
    ErrorGroup.objects.all().delete()  # as retention does
    assert "All errors like this" not in site.get("job", job.id)


@pytest.mark.django_db(databases=["default", "other"])
def test_the_correlation_id_of_a_job_is_shown(site: Site, manual_worker: ManualWorker) -> None:
    with correlate("import-7"):
        job = tasks.noop.using(tags={"tenant": "42"}).enqueue()
    assert "Correlation id import-7" in site.text("job", job.id)
    assert "Correlation id" not in site.text("job", tasks.noop.enqueue().id)
    mirror()
    connection = connection_of(job.id)
    connection.call("DEL", Queries(connection).keys.job(job.id))
    words = site.text("job", job.id)
    assert "this is its record" in words
    assert "Tag tenant 42" in words
    assert "Correlation id import-7" in words


# -- a copy with changed arguments


@pytest.fixture
def original(site: Site) -> str:
    options: dict[str, Any] = {"tags": {"tenant": "42"}, "priority": 7, "timeout": 60}
    return tasks.add.using(queue_name="low", max_attempts=4, **options).enqueue(1, b=2).id


def test_a_copy_with_changed_arguments_keeps_the_options(site: Site, original: str) -> None:
    form = site.get("copy_job", original)
    assert "tests.app.tasks.add(a, b)" in form
    assert re.search(r'name="args"[^>]*>\[\n  1\n\]</textarea>', form)
    assert "&quot;b&quot;: 2" in form
    text = site.post("copy_job", original, args="[10]", kwargs='{"b": 20}')
    assert "This copy was enqueued" in text
    (copy,) = [job for job in JobQueue("low").get_jobs("queued") if job.id != original]
    assert (copy.args, copy.kwargs, copy.priority) == ((10,), {"b": 20}, 7)  # type: ignore[union-attr]
    data = get_job(copy.id).data
    assert (dict(data.tags), data.options["timeout_ms"]) == ({"tenant": "42"}, 60_000)
    assert data.options["max_attempts"] == 4
    assert logged()[0] == (original, f"Enqueued a copy, {copy.id}")


@pytest.mark.parametrize(
    ("args", "kwargs", "error"),
    [
        ("[1", "{}", "Args is not JSON"),
        ("{}", "{}", "Args must be a list, such as"),
        ("[1, 2]", "[]", "Kwargs must be an object"),
        ("[1, 2, 3]", "{}", "too many positional arguments"),
        ("[NaN, 2]", "{}", "NaN is not JSON"),
        ("[1]", '{"c": 1}', "missing a required argument"),
        ("", "{}", "Args is not JSON"),
        (json.dumps(["x" * 2_000_000, 1]), "{}", "MAX_PAYLOAD_BYTES"),
    ],
)
def test_an_error_in_the_form_is_explained_and_the_input_kept(
    site: Site, original: str, args: str, kwargs: str, error: str
) -> None:
    page = site.client.post(address("copy_job", original), {"args": args, "kwargs": kwargs})
    text = page.content.decode()
    assert error in re.sub("&#x27;|&quot;", '"', text)
    assert args[:9].replace('"', "&quot;") in text, "what was written stays"
    assert JobQueue("low").get_stats()["queued"] == 1
    assert logged() == []


def test_a_unique_key_is_not_copied_and_that_of_the_task_applies(
    site: Site, manual_worker: ManualWorker
) -> None:
    job = tasks.noop.using(unique="until_finished").enqueue(1)
    assert "This copy was" in site.post("copy_job", job.id, args="[1]", kwargs="{}")
    owner = once.enqueue(1)
    duplicate = "The job was not copied: this job holds the unique key."
    assert site.post("copy_job", owner.id, args="[1]", kwargs="{}") == duplicate
    assert "This copy was" in site.post("copy_job", owner.id, args="[2]", kwargs="{}")
    assert JobQueue().get_stats()["queued"] == 4


def test_a_redacted_argument_stays_in_its_place_only(
    site: Site, manual_worker: ManualWorker
) -> None:
    secret = "the number of a card"
    job = tasks.add.enqueue(secret, 2)
    manual_worker.connection.call(
        "HSET", manual_worker.store.keys.job(job.id), "options", '{"redact":[0]}'
    )
    assert "[redacted]" in site.get("copy_job", job.id)
    assert secret not in site.get("copy_job", job.id)
    wrong = site.post("copy_job", job.id, args='[3, "[redacted]"]', kwargs="{}")
    assert "only for values that the job itself has redacted" in wrong
    assert "This copy was" in site.post("copy_job", job.id, args='["[redacted]", 9]', kwargs="{}")
    assert [job.payload for job in manual_worker.claim(2)][1] == '[["the number of a card",9],{}]'


def test_the_form_needs_its_permission(site: Site, staff: Any, original: str) -> None:
    site.client.force_login(staff("view_jobrecord", name="bob"))
    assert "copy_job" not in site.get("job", original)
    assert address("copy_job", original) not in site.get("job", original)
    for method in (site.client.get, site.client.post):
        assert method(address("copy_job", original)).status_code == 403
    assert User.objects.filter(username="bob").exists()
