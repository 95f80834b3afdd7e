"""``redisqueue_doctor``: every problem once, with a remedy, and the exit code."""

from __future__ import annotations

import json
import re
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from django_redisqueue.broker.commands import Commands
from django_redisqueue.broker.connection import worker_connection
from django_redisqueue.models import MirrorState
from tests.app import tasks

pytestmark = pytest.mark.django_db(databases=["default", "other"])


@pytest.fixture(autouse=True)
def silenced(settings: Any, queue_settings: dict[str, Any]) -> None:
    """Silences what is true of every Redis and database of the suite."""
    ids = ("W004", "W014", "W016", "W022")
    settings.SILENCED_SYSTEM_CHECKS = [f"django_redisqueue.{one}" for one in ids]
    settings.REDISQUEUE = {**queue_settings, "MIRROR": True}


def run(*arguments: str) -> tuple[str, str]:
    """Its output, and the error with which it ends, or ''."""
    out = StringIO()
    try:
        call_command("redisqueue_doctor", *arguments, stdout=out)
    except CommandError as error:
        return out.getvalue(), f"{error} ({error.returncode})"
    return out.getvalue(), ""


def ids(*arguments: str) -> list[str]:
    text, _ = run("--json", *arguments)
    return [problem["id"] for problem in json.loads(text)["problems"]]


def test_nothing_is_wrong() -> None:
    text, error = run()
    assert error == ""
    assert text.endswith("\nNo problems.\n")
    for name in ("Python", "Django", "django-redisqueue", "redis", "hiredis"):
        assert re.search(rf"^{name} +\d+\.\d+", text, re.MULTILINE)
    assert "of memory used" in text
    assert "Workers            0 children alive" in text
    assert "Queues             " in text


def test_it_names_every_server(queue_settings: dict[str, Any], settings: Any) -> None:
    url = queue_settings["CONNECTION"]["URL"]
    urls = [url, "unix:///nonexistent/redis.sock"]
    settings.REDISQUEUE = {**queue_settings, "SHARDS": 4, "CONNECTION": {"URL": urls}}
    Commands(worker_connection(2)).heartbeat(["a", "b"])
    text, _ = run()
    assert re.search(rf"^Redis +{url}: \w+ .* used; {urls[1]}: no answer$", text, re.MULTILINE)
    assert "Workers            2 children alive" in text


def test_a_problem_of_the_queues() -> None:
    tasks.noop.enqueue()
    text, error = run()
    assert error == "1 error (1)"
    assert "ERROR in queues (no_worker)" in text
    assert "Remedy: Start one: manage.py runworker." in text
    assert text.endswith("\n1 error\n")


def test_wrong_settings(settings: Any) -> None:
    settings.REDISQUEUE = {"LAESE": 15}
    text, error = run()
    assert error == "1 error (1)"
    assert "ERROR in settings (django_redisqueue.E001)" in text
    assert "did you mean 'LEASE'?" in text


def test_redis_is_down(settings: Any) -> None:
    settings.REDISQUEUE = {"CONNECTION": {"URL": "redis://127.0.0.1:1/0"}, "MIRROR": True}
    text, error = run()
    assert "no answer" in text
    assert "ERROR in redis (django_redisqueue.E010)" in text
    assert error == "1 error (1)", "the health report says the same, and is not repeated"


def test_the_mirror_has_stopped() -> None:
    MirrorState.objects.create(shard=0, problem="this is another Redis")
    assert ids() == ["django_redisqueue.E021"]


def test_warnings_fail_if_asked_to(settings: Any) -> None:
    settings.SILENCED_SYSTEM_CHECKS.remove("django_redisqueue.W016")
    text, error = run()
    assert (text.splitlines()[-1], error) == ("1 warning", "")
    assert "WARNING in redis (django_redisqueue.W016)" in text
    assert run("--fail-level", "WARNING")[1] == "1 warning (1)"


def test_json_has_all() -> None:
    tasks.noop.enqueue()
    text, error = run("--json")
    document = json.loads(text)
    assert error == "1 error (1)"
    assert document["installation"]["Workers"] == "0 children alive"
    (problem,) = document["problems"]
    assert problem == {
        "area": "queues", "level": "error", "id": "no_worker",
        "message": "No worker is alive, and 1 job waits for one.",
        "remedy": "Start one: manage.py runworker.",
    }  # fmt: skip
