"""What DEBUG error pages, error trackers and stored errors show of redacted arguments and of the
password of Redis: nothing."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test import RequestFactory
from django.views.debug import ExceptionReporter

from django_redisqueue import Gather, JobQueue, Limit, Workflow, listener, publish, task
from django_redisqueue.api import views
from django_redisqueue.api.requests import ApiRequest
from django_redisqueue.conf import get_settings
from django_redisqueue.core.ports import ports
from django_redisqueue.core.redaction import Hidden, secrets_in
from django_redisqueue.exceptions import RedisUnavailable
from django_redisqueue.models import OutboxJob
from django_redisqueue.worker.child import retry_policy
from django_redisqueue.worker.child.executor import Execution
from tests.support.servers import RedisServer
from tests.worker.parts import claimed

from . import tasks

SECRET = "41" + "11'zq\\xk" + "22"  # a page shows the lines of this file, and ids in hexadecimal
AWAY = {"CONNECTION": {"URL": "redis://127.0.0.1:1/0"}, "MIRROR": False}


def page(raising: Callable[[], object]) -> str:
    """Django's page, with the variables of every frame."""
    try:
        raising()
    except Exception:
        reporter = ExceptionReporter(RequestFactory().get("/"), *sys.exc_info())
        return reporter.get_traceback_html() + reporter.get_traceback_text()
    raise AssertionError("nothing was raised")


def assert_hidden(shown: str, expected: str) -> None:
    assert expected in shown
    assert "4111'zq" not in shown
    assert "xk22" not in shown


@listener("pages.paid", redact=("card",))
def pay(order: int, card: str) -> None: ...


def full(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
    """A database that has no room for outbox rows."""
    if sql.startswith("INSERT"):
        raise DatabaseError("no room")
    return execute(sql, params, many, context)


def push() -> None:
    with Workflow() as workflow:
        workflow.add(tasks.charge, 1, card=SECRET)


def add(n: int) -> None:
    Workflow().add(tasks.charge, 1, CARDS[n])


WAYS: list[Callable[[], object]] = [
    lambda: tasks.charge.enqueue(1, SECRET),
    lambda: tasks.charge.enqueue(1, card=SECRET),
    lambda: tasks.charge.using(on_commit=False).enqueue(1, SECRET),
    lambda: tasks.charge.enqueue_many([(1, SECRET)]),
    lambda: asyncio.run(tasks.charge.aenqueue(1, card=SECRET)),
    lambda: JobQueue().add_job(tasks.charge, order=1, card=SECRET),
    push,
    lambda: publish("pages.paid", {"order": 1, "card": SECRET}),
    lambda: Gather.start(
        "pages", topic="pages.paid", payload={"order": 1, "card": SECRET}, then=tasks.stored.s()
    ),
]


@pytest.mark.parametrize("way", range(len(WAYS)))
def test_redis_is_down(way: int, settings: Any) -> None:
    settings.REDISQUEUE = AWAY
    assert_hidden(page(WAYS[way]), "RedisUnavailable")


CARDS: list[Any] = [
    [SECRET, float("nan")],
    [SECRET, object()],
    SECRET * 100_000,
    ["\ud800", SECRET],
]
REFUSED: list[Callable[[int], object]] = [
    lambda n: tasks.charge.enqueue(1, CARDS[n]),
    lambda n: tasks.charge.enqueue_many([(1, CARDS[n])]),
    lambda n: asyncio.run(tasks.charge.aenqueue(1, CARDS[n])),
    add,
]


@pytest.mark.parametrize("way", range(len(REFUSED)))
@pytest.mark.parametrize("card", range(len(CARDS)))
def test_a_refused_argument(queue_settings: Any, way: int, card: int) -> None:
    assert_hidden(page(lambda: REFUSED[way](card)), "argument")


@task(redact=("card",), concurrency=Limit(1, key=lambda card: {}[card]))
def pay_in_turn(card: str) -> None: ...


def test_a_callable_that_quotes_an_argument(queue_settings: Any) -> None:
    assert_hidden(page(lambda: pay_in_turn.enqueue(SECRET)), "key of Limit of")


@pytest.mark.django_db(transaction=True)
def test_the_outbox_is_full(queue_settings: Any, settings: Any) -> None:
    settings.REDISQUEUE = {**queue_settings, "OUTBOX": True}

    def enqueue() -> None:
        with transaction.atomic(), connection.execute_wrapper(full):
            tasks.charge.enqueue(1, SECRET)

    assert_hidden(page(enqueue), "no room")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", [0, 1, 3, 5, 6, 7, 8])
def test_neither_redis_nor_the_outbox_accepts_what_has_committed(
    way: int, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDISQUEUE = AWAY
    monkeypatch.setattr(ports, "outbox", None)

    def view() -> None:
        with transaction.atomic():
            WAYS[way]()

    assert_hidden(page(view), "RedisUnavailable")


PASSWORD = "hun" + "ter2"  # a page shows the lines of this file
AT_ONCE = tasks.stored.using(on_commit=False, outbox=False)


@pytest.mark.parametrize(
    ("connection", "arguments", "expected"),
    [
        ({"URL": f"redis://:{PASSWORD}@127.0.0.1:1"}, [object()], "InvalidArguments"),
        ({"URL": f"redis://:{PASSWORD}@127.0.0.1:1"}, [], "RedisUnavailable"),
        ({"URL": f"redis+sentinel://:{PASSWORD}@127.0.0.1:1/x"}, [], "RedisUnavailable"),
        ({"URL": f"redis+cluster://:{PASSWORD}@127.0.0.1:1"}, [], "RedisUnavailable"),
        ({"URL": f"redis://:{PASSWORD}@127.0.0.1:1", "X": 1}, [], "ConfigurationError"),
        ({"URL": f"reds://:{PASSWORD}@127.0.0.1:1"}, [], "ConfigurationError"),
        ({"URL": f"redis+sentinel://:{PASSWORD}@127.0.0.1:1"}, [], "ConfigurationError"),
        ({"URL": f"redis://:{PASSWORD}@127.0.0.1:x"}, [], "ConfigurationError"),
    ],
)
def test_the_password_of_redis(
    settings: Any, connection: dict[str, Any], arguments: list[Any], expected: str
) -> None:
    settings.REDISQUEUE = {"CONNECTION": connection, "MIRROR": False}
    assert_no_password(page(lambda: AT_ONCE.enqueue(*arguments)), expected)


@pytest.mark.one_server("it logs in on its server")
def test_a_password_that_redis_refuses(settings: Any, redis_server: RedisServer) -> None:
    url = f"unix://someone:{PASSWORD}@{redis_server.url.removeprefix('unix://')}"
    settings.REDISQUEUE = {"CONNECTION": {"URL": url}, "MIRROR": False}
    assert_no_password(page(AT_ONCE.enqueue), "LoginRefused")


def assert_no_password(shown: str, expected: str) -> None:
    shown = shown.partition('id="requestinfo"')[0]  # before the list of Django's settings
    assert expected in shown
    assert PASSWORD not in shown


@pytest.mark.parametrize("way", [0, 3, 4, 7, 8])
def test_an_error_that_the_caller_is_handling_keeps_its_traceback(way: int, settings: Any) -> None:
    settings.REDISQUEUE = AWAY
    own = LookupError("the caller's own")
    try:
        raise own
    except LookupError:
        with pytest.raises(RedisUnavailable):
            WAYS[way]()
    assert own.__traceback__ is not None


def test_the_api(queue_settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any, **__: Any) -> None:
        raise DatabaseError("no room")

    body = {"task": tasks.charge, "args": [1, SECRET]}
    monkeypatch.setattr(views, "read_body", lambda _: dict(body))
    monkeypatch.setattr("django_redisqueue.client.tasks.submit", away)
    call = ApiRequest(RequestFactory().post("/jobs"), None, {}, {})

    def enqueue() -> None:
        try:
            views.enqueue(call)
        finally:
            body.clear()

    assert_hidden(page(enqueue), "no room")


def test_a_hidden_text_is_still_a_str() -> None:
    hidden = Hidden(SECRET)
    assert hidden == SECRET
    assert json.dumps(hidden) == json.dumps(SECRET)
    assert repr([hidden, (hidden,)]) == "['[redacted]', ('[redacted]',)]"


def test_an_error_of_the_job_is_stored_without_them(queue_settings: Any) -> None:
    def run(order: int, card: Any) -> None:
        try:
            int(card["number"])
        except ValueError as error:
            raise KeyError(card) from error

    card = {"number": SECRET, "year": 2031, "is_new": True, "code": "12"}
    call = Execution(claimed(), tasks.charge, [1, card], {"note": "shown"}, 0, 1)
    try:
        run(*call.args)
    except KeyError as error:
        resolution = retry_policy.resolve_error(
            error, tasks.charge.options, 0, 1, get_settings(), call.secrets()
        )
    stored = json.loads(resolution.body)
    assert "'year': [redacted], 'is_new': True, 'code': '12'" in stored["message"]
    assert "invalid literal for int() with base 10: " in stored["traceback"]
    assert "4111" not in resolution.body


def test_the_redacted_values_of_a_job_are_found_at_their_places() -> None:
    assert secrets_in(["a", "long text"], {"k": [5000, 1.25, None, "é\n1"]}, [1, "k", 7, "no"]) == [
        "\\u00e9\\n1", "long text", "1.25", "5000", "é\\n1", "é\n1",
    ]  # fmt: skip


def test_a_redacted_text_is_recognised_with_prefixed_lines_and_in_ascii() -> None:
    text = "-- key --\nMIIB\nÄöü\n"
    group = ExceptionGroup("in a task group", [ValueError(text), ValueError(json.dumps([text]))])
    stored = retry_policy.describe(group, 9999, secrets_in([text], {}, [0]))
    assert json.loads(stored)["traceback"].count("| ValueError: ") == 2
    assert not [part for part in ("key", "MIIB", "Äöü", "00c4") if part in stored]


def test_the_result_of_a_parent_shifts_the_places() -> None:
    """An argument after the parent's result is still the named one."""
    signature = tasks.charge.s(SECRET).taking_result()
    assert json.loads(signature.new_job().options)["redact"] == [0]
    assert SECRET not in repr(signature)


def test_postgresql_accepts_a_hidden_text(on_postgres: object, queue_settings: Any) -> None:
    with transaction.atomic():
        job = tasks.charge.using(outbox=True).enqueue(1, SECRET)
    assert OutboxJob.objects.get(pk=job.id).payload == json.dumps([[1, SECRET], {}]).replace(
        " ", ""
    )
