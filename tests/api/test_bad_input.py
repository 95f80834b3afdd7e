"""Bad input: each reply names what is wrong, and nothing is enqueued."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection

from django_redisqueue import JobQueue, exceptions
from django_redisqueue.api import responses
from django_redisqueue.conf import get_settings
from django_redisqueue.core.codec import MAX_DEPTH
from tests.app import tasks
from tests.support.logins import logged_in
from tests.support.servers import RedisServer

from .api import Api, error
from .tasks import open_task

OPEN = open_task.name


def job(**fields: Any) -> dict[str, Any]:
    return {"task": OPEN, **fields}


def nested(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels - 1):
        made = [made]
    return made


BODIES: list[tuple[Any, str, str, str]] = [  # body, code, field, content of the message
    ({}, "missing_field", "task", "task is missing"),
    (job(task=None), "unknown_task", "task", "None is not a task that may be enqueued"),
    (job(task=["x"]), "unknown_task", "task", "['x'] is not a task"),
    (job(task="os.system"), "unknown_task", "task", "opts in with @task(api=True)"),
    (job(taks="x"), "unknown_field", "taks", "no field 'taks' (did you mean 'task'?)"),
    (job(id="job_1"), "unknown_field", "id", "it accepts task, args, kwargs, queue"),
    (job(args={}), "invalid_arguments", "args", "args must be a JSON array"),
    (job(args=None), "invalid_arguments", "args", "args must be a JSON array"),
    (job(kwargs=[]), "invalid_arguments", "kwargs", "kwargs must be a JSON object"),
    (job(queue="nope"), "unknown_queue", "queue", "unknown queue 'nope'"),
    (job(queue="a b"), "invalid_name", "queue", "'a b' is not a valid queue name"),
    (job(queue=5), "invalid_name", "queue", "5 is not a valid queue name"),
    (job(priority=101), "invalid_option", "priority", "from -100 to 100"),
    (job(priority=True), "invalid_option", "priority", "not True"),
    (job(priority="1"), "invalid_option", "priority", "not '1'"),
    (job(tags={"tenant": 42}), "invalid_option", "tags", "must be text, not 42; pass '42'"),
    (job(tags={"a b": "1"}), "invalid_option", "tags", "'a b' is not a valid name of a tag"),
    (job(tags=["a"]), "invalid_option", "tags", "tags must be a dict"),
    (job(after=["job_1"]), "unknown_field", "after", "a job has no field 'after'"),
    (job(run_after=-1), "invalid_option", "run_after", "zero or more, not -1"),
    (job(run_after=True), "invalid_option", "run_after", "not True"),
    (job(run_after=10**400), "invalid_option", "run_after", "a hundred years"),
    (job(run_after="soon"), "invalid_option", "run_after", "not 'soon'"),
    (job(run_after="2026-02-31T00:00:00Z"), "invalid_option", "run_after", "an offset such as"),
    (job(run_after="2026-01-31T00:00:00"), "invalid_option", "run_after", "an offset such as"),
    (job(run_after="9999-12-31T23:59:59-23:00"), "invalid_option", "run_after", "a hundred years"),
    (job(run_after="0001-01-01T00:00:00+23:00"), "invalid_option", "run_after", "a hundred years"),
    (job(run_after=[]), "invalid_option", "run_after", "not []"),
    (job(args=[1, "\ud800"]), "invalid_arguments", "args", "lone surrogate"),
    (job(args=[nested(MAX_DEPTH + 1)]), "invalid_arguments", "args[0]", "is over 100 levels deep"),
    (job(kwargs={"a": nested(200)}), "invalid_arguments", "kwargs.a", "over 100 levels deep"),
    ([], "invalid_json", "", "must be a JSON object"),
    ("{", "invalid_json", "", "the body is not JSON: "),
    (b"\xff", "invalid_json", "", "the body is not JSON: "),
    ('{"task": NaN}', "invalid_json", "", "NaN is not JSON"),
    ('{"task": "x", "args": [1e999]}', "unknown_task", "task", "'x' is not a task"),
    (f'{{"task": "{OPEN}", "args": [1e999]}}', "invalid_arguments", "args[0]", "is inf"),
    ("[" * 100_000, "invalid_json", "", "nested too deeply"),
    ("1" * 5000, "invalid_json", "", "the body is not JSON: Exceeds the limit"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "code", "field", "says"), BODIES)
def test_a_bad_body(api: Api, body: Any, code: str, field: str, says: str) -> None:
    found = error(api.post("", body), 400)
    assert (found["code"], found.get("field", "")) == (code, field)
    assert says in found["message"]
    assert len(found["message"]) <= responses.MESSAGE_LENGTH
    assert JobQueue("default").get_stats()["queued"] == 0


def test_what_is_allowed_at_the_edge(api: Api) -> None:
    far = (datetime.now(UTC) + timedelta(days=36_000)).isoformat()
    for fields in (
        {"args": [nested(MAX_DEPTH)]}, {"priority": -100}, {"run_after": 0}, {"run_after": far},
        {"kwargs": {"é\u2028": [2**80, -0.0, "\x00"]}}, {"tags": {"tenant": "42", "_a.b-c": "é"}},
        {"kwargs": {"self": 1, "task": 2, "args": [3]}},
    ):  # fmt: skip
        answer = api.post("", job(**fields))
        assert answer.status_code == 201, answer.content
        shown = api.get(f"/{answer.json()['id']}").json()
        assert shown.pop("why_not_running")
        assert shown == answer.json()


def test_a_task_that_did_not_opt_in_looks_like_an_unknown_one(api: Api) -> None:
    there, not_there = tasks.noop.name, tasks.noop.name[:-1] + "x"
    answers = [error(api.post("", job(task=name)), 400) for name in (there, not_there)]
    assert answers[0]["message"].replace(there, "") == answers[1]["message"].replace(not_there, "")


QUERIES = [
    ("/queued?limit=0", "invalid_option", "limit", "from 1 to 100, not '0'"),
    ("/queued?limit=101", "invalid_option", "limit", "from 1 to 100, not '101'"),
    ("/queued?start=-1", "invalid_option", "start", "not '-1'"),
    ("/queued?start=%D9%A3", "invalid_option", "start", "whole number"),
    ("/queued?start=" + "9" * 5000, "invalid_option", "start", "whole number"),
    ("/queued?limit=1&limit=2", "invalid_option", "limit", "limit is given 2 times"),
    ("/queued?queue=nope", "unknown_queue", "queue", "unknown queue 'nope'"),
    ("/queued?queue=", "invalid_name", "queue", "'' is not a valid queue name"),
    ("/queued?que=low", "unknown_parameter", "que", "path (did you mean 'queue'?)"),
    ("/stats?queue=low", "unknown_parameter", "queue", "it accepts none"),
    ("/events?last_event_id=x", "invalid_option", "last_event_id", "such as 1760000000000-0"),
    ("/events?last_event_id=1-" + "9" * 19, "invalid_option", "last_event_id", "not '1-"),
]


@pytest.mark.parametrize(("path", "code", "field", "says"), QUERIES)
def test_a_bad_query(api: Api, path: str, code: str, field: str, says: str) -> None:
    found = error(api.get(path), 400)
    assert (found["code"], found["field"]) == (code, field)
    assert says in found["message"]


def test_a_wrong_parameter_clears_nothing(api: Api) -> None:
    tasks.noop.enqueue()
    assert error(api.delete("/queued?que=low"), 400)["field"] == "que"
    assert error(api.delete("/queued?queue=nope"), 400)["field"] == "queue"
    assert JobQueue("default").get_stats()["queued"] == 1


def test_a_bad_last_event_id(api: Api) -> None:
    assert error(api.get("/events", Last_Event_ID="1-x"), 400)["field"] == "Last-Event-ID"


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_only_json_is_accepted(api: Api, user: Any, content_type: str) -> None:
    for path in ("", "/job_1_x_0/retry"):
        answer = api.call("POST", path, '{"task": "x"}', content_type=content_type)
        assert error(answer, 415)["code"] == "unsupported_media_type"
    session = logged_in(user, enforce_csrf_checks=True)
    answer = Api(session).call("POST", "", "a=b", content_type=content_type)
    assert error(answer, 415)["code"] == "unsupported_media_type"


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded"])
def test_no_body_needs_no_type(api: Api, content_type: str) -> None:
    # wsgiref, and so runserver, gives a request without a Content-Type one of text/plain.
    job = tasks.noop.enqueue()
    for method, path in (("POST", f"/{job.id}/cancel"), ("DELETE", "/cancelled")):
        answer = api.client.generic(
            method, f"/jobs{path}", headers=api.headers, CONTENT_TYPE=content_type
        )
        assert answer.status_code == 200, answer.content
    answer = api.client.generic(
        "POST", f"/jobs/{job.id}/cancel", headers=api.headers, CONTENT_TYPE=content_type,
        HTTP_TRANSFER_ENCODING="chunked",
    )  # fmt: skip
    assert error(answer, 415)["code"] == "unsupported_media_type"


def test_a_body_is_required(api: Api) -> None:
    assert error(api.call("POST", ""), 415)["message"] == "send the body as application/json"
    assert error(api.post("", " "), 400)["code"] == "invalid_json"
    answer = api.call("POST", "", "{}", content_type="application/json; charset=utf-8")
    assert error(answer, 400)["code"] == "missing_field"


def test_too_large_a_body_is_not_read(api: Api, queue_settings: Any, settings: Any) -> None:
    settings.REDISQUEUE = {**queue_settings, "MAX_PAYLOAD_BYTES": 1000}
    found = error(api.post("", job(args=["x" * 20_000])), 413)
    assert (found["code"], found["message"]) == (
        "payload_too_large",
        "the body may have at most 17384 bytes",
    )
    found = error(api.post("", job(args=["x" * 2000])), 413)
    assert found["field"] == "args"
    assert "MAX_PAYLOAD_BYTES" in found["message"]
    assert api.post("", job(args=["x" * 900])).status_code == 201


def test_a_body_shorter_than_it_says(api: Api) -> None:
    answer = api.client.generic(
        "POST", "/jobs", b"{", content_type="application/json",
        headers=api.headers, CONTENT_LENGTH="five",
    )  # fmt: skip
    assert error(answer, 400)["code"] == "invalid_json"


# -- errors of the package


def every_error() -> list[type[Exception]]:
    return [
        kind for _, kind in inspect.getmembers(exceptions, inspect.isclass)
        if issubclass(kind, exceptions.RedisQueueError)
    ]  # fmt: skip


@pytest.mark.parametrize("kind", every_error())
def test_every_error_of_the_package_has_a_reply(kind: type[Any]) -> None:
    found = responses.to_api_error(kind("redis at 10.0.0.1"))
    assert found.code != "error" or kind is exceptions.RedisQueueError, "no row of FAULTS fits it"
    assert ("10.0.0.1" in str(found)) == (found.status < 500), "what begins with 5 tells no address"
    assert ("Retry-After" in found.headers) == (found.status == 503)
    if found.status >= 500:
        assert "`" not in str(found)
        assert "the message" not in str(found), "the client does not see it"
        assert len(str(found)) > 20, "what begins with 5 has a text for the client"


def test_without_a_key_a_client_does_not_repeat_a_call_that_replicas_did_not_confirm() -> None:
    found = responses.to_api_error(exceptions.NotReplicated(""))
    assert "send the same Idempotency-Key, or the job may run twice" in str(found)


def test_the_first_matching_row_is_the_closest() -> None:
    seen: list[type[Exception]] = []
    for fault in responses.FAULTS:
        assert not any(issubclass(fault.kind, earlier) for earlier in seen), fault
        seen.append(fault.kind)


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_the_database_is_down(
    api: Api, kind: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    """The look-up of the token finds this out, before anything is enqueued."""

    def away(*_: object) -> None:
        raise kind("no route to 10.0.0.1")

    with connection.execute_wrapper(away):
        answers = [api.post("", job()), api.get("/errors")]
    for answer in answers:
        assert error(answer, 503) == {
            "code": "database_unavailable", "message": "the database does not answer; try again",
        }  # fmt: skip
        assert answer["Retry-After"]
    told = [one.message for one in caplog.records if one.name == "django_redisqueue.api"]
    assert told == [f"{kind.__name__}: no route to 10.0.0.1"] * 2
    assert JobQueue("default").get_stats()["queued"] == 0


def test_redis_is_down(api: Api, fresh_server: Callable[..., RedisServer], settings: Any) -> None:
    server = fresh_server()
    settings.REDISQUEUE = {"CONNECTION": {"URL": server.url}}
    get_settings.cache_clear()
    made = api.post("", job()).json()
    server.stop()
    for answer in (
        api.get("/stats"), api.get("/queued"), api.get(f"/{made['id']}"), api.get("/events"),
        api.post("", job()), api.post(f"/{made['id']}/cancel"), api.delete("/queued"),
    ):  # fmt: skip
        found = error(answer, 503)
        assert found["code"] == "redis_unavailable"
        assert str(server.folder) not in found["message"]
        assert int(answer["Retry-After"]) > 0
