"""Where the dashboard lives: any AdminSite that registers it, or none at all; and ASGI."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin import AdminSite
from django.contrib.auth.models import User
from django.test import AsyncClient
from django.urls import path
from django.utils import translation

from django_redisqueue import chain
from django_redisqueue.admin import JobRecordAdmin
from django_redisqueue.dashboard import pages
from django_redisqueue.models import JobRecord
from tests.app import tasks
from tests.support.logins import logged_in

from .site import Site, address

ROOT = Path(__file__).resolve().parent.parent.parent

own_site = AdminSite(name="backstage")
own_site.register(JobRecord, JobRecordAdmin)
urlpatterns = [path("backstage/", own_site.urls)]


@pytest.mark.urls(__name__)
def test_a_custom_site_has_all_pages_under_its_name(
    redisqueue: None, staff: Callable[..., User]
) -> None:
    job = tasks.noop.enqueue()
    workflow = chain(tasks.noop.s())
    client = logged_in(staff("view_jobrecord", "cancel_job", "pause_queue"))
    base = "/backstage/django_redisqueue/jobrecord/"
    queues = ("", "dashboard/", "queues/default/queued/", f"jobs/{job.id}/")
    for page in (*queues, "workflows/", f"workflows/{workflow.id}/", f"jobs/{workflow.id}.0/"):
        response = client.get(base + page)
        assert response.status_code == 200
        text = response.content.decode()
        assert f'href="{base}dashboard/"' in text
        assert '"/admin/' not in text
    live = client.get(f"{base}dashboard/live/").json()["fragments"]["drq-queues"]
    assert f'action="{base}queues/default/pause/"' in live
    response = client.post(f"{base}jobs/{job.id}/act/", {"verb": "cancel", "confirmed": "yes"})
    assert response["Location"] == f"{base}jobs/{job.id}/"
    job.refresh()
    assert job.status == "cancelled"


def test_english_runs_from_left_to_right_in_an_admin_that_does_not(site: Site) -> None:
    with translation.override("he"):
        text = site.get("overview")
    assert '<html lang="he" dir="rtl"' in text
    assert text.partition('<div lang="en" dir="ltr">')[2].count("<h1>") == 1
    assert ">Home<" not in text  # Django has a translation of this word


def luminance(colour: str) -> float:
    parts = (int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_coloured_words_have_the_contrast_required_by_wcag() -> None:
    style = (ROOT / "django_redisqueue/static/django_redisqueue/dashboard.css").read_text()
    schemes = re.findall(r"{([^{}]*--drq-red-bg:[^{}]*)}", style)
    assert len(schemes) == 3
    for scheme in schemes:
        colours = dict(re.findall(r"--drq-([\w-]+): (#\w{6});", scheme))
        for name in ("blue", "green", "amber", "red"):
            darker, lighter = sorted(luminance(colours[key]) for key in (name, f"{name}-bg"))
            assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (name, scheme)


WITHOUT_ADMIN = """
import sys
import django
from django.conf import settings
settings.configure(
    SECRET_KEY="x", USE_TZ=True, ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_redisqueue"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
urlpatterns = []
django.setup()
from django.core.management import call_command
call_command("check")
from django_redisqueue.client.registry import get_task
print(get_task("django_redisqueue.bulk").name)
print([name for name in sys.modules if name.startswith("django.contrib.admin")])
"""


def test_the_package_works_without_the_admin() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_ADMIN],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    name, loaded = done.stdout.splitlines()[-2:]
    assert (name, loaded) == ("django_redisqueue.bulk", "[]")


def test_a_page_only_requests_events_where_they_cost_no_thread(site: Site) -> None:
    assert '"stream": ""' in site.get("overview")


async def listen(
    user: User, page: tuple[str, ...], then: Callable[[], Any], until: Callable[[Any], bool]
) -> list[Any]:
    """What a page's stream says ``until`` that is so; ``then`` is called after its first answer."""
    client = AsyncClient()
    await client.aforce_login(user)
    stream = address(f"{page[0]}_stream", *page[1:])
    assert f'"stream": "{stream}' in (await client.get(address(*page))).content.decode()
    answer = await client.get(stream, headers={"Accept-Encoding": "gzip"})  # as browsers do
    assert answer["Content-Type"] == "text/event-stream"
    heard = []
    async for part in answer.streaming_content:  # type: ignore[attr-defined]
        text = part.decode()
        assert text.startswith("data: ")
        assert text.endswith("\n\n")
        heard.append(json.loads(text[6:]))
        if len(heard) == 1:
            await asyncio.to_thread(then)
        if until(heard[-1]["fragments"]):
            return heard
        assert len(heard) < 100
    raise AssertionError("the stream has ended")


@pytest.mark.django_db(transaction=True)
def test_a_workflow_under_asgi(
    redisqueue: None, staff: Callable[..., User], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "POLL", 20)
    workflow = chain(tasks.noop.s(), tasks.noop.s())
    heard = asyncio.run(
        listen(
            staff("view_jobrecord"),
            ("workflow", workflow.id),
            then=workflow.pause,
            until=lambda parts: ">paused</span>" in parts["drq-workflow"],
        )
    )
    assert ">paused</span>" not in heard[0]["fragments"]["drq-workflow"]
    names = [
        "drq-health",
        "drq-workflow",
        "drq-workflowgraph",
        "drq-workflowtimes",
        "drq-workflowjobs",
    ]
    assert list(heard[0]["fragments"]) == names


@pytest.mark.django_db(transaction=True)
def test_events_under_asgi(
    redisqueue: None, staff: Callable[..., User], monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """GZipMiddleware would compress each on its own, of which a browser reads only the first."""
    gzip = "django.middleware.gzip.GZipMiddleware"
    settings.MIDDLEWARE = [gzip, *settings.MIDDLEWARE]
    monkeypatch.setattr(pages, "POLL", 20)
    user = staff("view_jobrecord")

    heard = asyncio.run(
        listen(
            user,
            ("overview",),
            then=tasks.noop.enqueue,
            until=lambda parts: 'data-status="queued">1<' in parts["drq-queues"],
        )
    )
    assert 'data-status="queued">0<' in heard[0]["fragments"]["drq-queues"]
    assert list(heard[0]["fragments"]) == [
        "drq-health", "drq-notices", "drq-queues", "drq-policies", "drq-workers", "drq-server",
    ]  # fmt: skip


def test_a_stream_ends_so_that_its_login_is_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pages, "LIFETIME", 0.0)
    assert asyncio.run(_all(pages._events(1, lambda: {}))) == []


async def _all(events: Any) -> list[str]:
    return [part async for part in events]
