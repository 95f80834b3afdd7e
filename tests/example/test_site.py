"""The example site as ``manage.py site`` runs it: a real server, a real worker, asked over HTTP."""

from __future__ import annotations

import json
import re
import signal
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.worker.processes import eventually

from .plain_count import plain_count
from .site import Site, Visitor
from .test_demo_numbers import DJANGO


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, migrated: Path) -> Iterator[Site]:
    made = Site(tmp_path_factory.mktemp("site"), "--address", "127.0.0.1:0", migrated=migrated)
    try:
        made.found(r"(Ctrl-C stops both)")
        yield made
    finally:
        made.close()


@pytest.fixture
def visitor(site: Site) -> Visitor:
    url = site.found(r"The site: +(http://[\d.:]+)/")
    site.wait_until_it_answers(url)
    return Visitor(url)


def measured(language: str) -> dict[str, dict[str, int]]:
    """The numbers of a language by path, from a plain loop."""
    files = DJANGO.glob(f"**/locale/{language}/LC_MESSAGES/*.po")
    return {file.relative_to(DJANGO).as_posix(): dict(plain_count(file)) for file in files}


@pytest.mark.slow
def test_the_front_page_enqueues_a_job_and_follows_it_to_its_end(visitor: Visitor) -> None:
    page = visitor.post("/", language="fy")
    job_id = urllib.parse.parse_qs(urllib.parse.urlsplit(visitor.url).query)["job"][0]
    assert f'data-url="/progress/{job_id}"' in page
    seen: list[dict[str, Any]] = []

    def ended() -> bool:
        seen.append(json.loads(visitor.get(f"/progress/{job_id}")))
        return bool(seen[-1]["ended"])

    eventually(ended, 30, every=0.05, why=lambda: seen[-1])
    last = seen[-1]
    assert (last["status"], last["error"], last["language"]) == ("completed", "", "fy")
    counted = measured("fy")
    assert {row["path"] for row in last["rows"]} == set(counted)
    for row in last["rows"]:
        assert {name: row[name] for name in counted[row["path"]]} == counted[row["path"]]
    assert last["done"] == last["total"] == len(counted)
    assert {state["done"] for state in seen} - {0, len(counted)}, "it was seen on its way"
    page = visitor.get(f"/?job={job_id}")
    assert "data-url" not in page  # nothing left to follow
    assert page.count('<th scope="row">') == len(counted)


@pytest.mark.slow
def test_the_page_has_no_inline_script_and_its_files_exist(visitor: Visitor) -> None:
    page = visitor.get("/")
    assert re.findall(r"<script(?! src)", page) == []
    assert not re.search(r"<style| style=| on\w+=", page)
    for path in re.findall(r'(?:src|href)="(/static/[^"]+)"', page):
        assert visitor.get(path)


@pytest.mark.slow
def test_missing_objects_are_reported(visitor: Visitor) -> None:
    assert visitor.refused("/?job=job_1_aaaaaaaaaa_0")[0] == 404
    assert "There is no such job." in visitor.refused("/?job=%3Cscript%3E")[1]
    code, text = visitor.refused("/progress/job_1_aaaaaaaaaa_0")
    assert (code, "no job job_1_aaaaaaaaaa_0" in json.loads(text)["problem"]) == (404, True)
    with pytest.raises(urllib.error.HTTPError) as caught:
        visitor.post("/", language="xx")
    with caught.value as answer:
        assert (answer.code, "Choose a language." in answer.read().decode()) == (400, True)


@pytest.mark.slow
def test_the_printed_password_opens_the_admin_and_its_dashboard(
    site: Site, visitor: Visitor
) -> None:
    password = site.found(r"user demo, password (\S+)")
    page = visitor.post("/admin/login/?next=/admin/", username="demo", password=password)
    assert "Log out" in page
    assert "default" in visitor.get("/admin/django_redisqueue/jobrecord/dashboard/")
    assert json.loads(visitor.get("/jobs/stats"))


@pytest.mark.slow
def test_a_port_in_use_is_reported_and_leaves_nothing_behind(
    site: Site, visitor: Visitor, tmp_path: Path
) -> None:
    taken = Site(tmp_path, "--address", visitor.site.removeprefix("http://"))
    try:
        assert "cannot listen on" in taken.found(r"(.*choose another: --address host:port)")
        assert taken.process.wait(30) == 1
        assert not (tmp_path / "db.sqlite3").exists()
    finally:
        taken.close()


@pytest.mark.slow
def test_ctrl_c_ends_the_site_and_its_worker(tmp_path: Path) -> None:
    """A site that has created its tables itself."""
    site = Site(tmp_path, "--address", "127.0.0.1:0")
    try:
        worker = int(site.found(r"pid (\d+)"))
        assert site.stop(signal.SIGINT) == 0
        assert not psutil.pid_exists(worker)
        assert "Traceback" not in site.output
    finally:
        site.close()
