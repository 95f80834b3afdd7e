"""Lists as files, and the search box."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from typing import Any

import pytest
from django.test import AsyncClient
from django.utils import timezone

from django_redisqueue.dashboard import export
from django_redisqueue.models import ErrorGroup
from tests.app import tasks
from tests.mirror.rows import record
from tests.support.manual_worker import ManualWorker

from .site import Site, address

FORMULA = "=HYPERLINK(1)"


def body(site: Site, name: str, *args: object, **query: object) -> str:
    response = site.client.get(address(name, *args), query)
    assert response.status_code == 200
    return b"".join(response.streaming_content).decode()  # type: ignore[arg-type]


@pytest.mark.parametrize("first", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_no_cell_begins_as_a_formula(site: Site, manual_worker: ManualWorker, first: str) -> None:
    """The list of OWASP: https://owasp.org/www-community/attacks/CSV_Injection"""
    tasks.noop.enqueue()
    manual_worker.fail_one(f"{first}1+1")
    text = body(site, "export_queue", "default", "failed", format="csv")
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert row["error_message"] == f"'{first}1+1"


def test_no_part_of_a_cell_begins_as_a_formula(site: Site, manual_worker: ManualWorker) -> None:
    """A spreadsheet whose separator is the semicolon also ends a cell at a line break."""
    tasks.noop.enqueue("x;=1+1")
    manual_worker.fail_one("a - b = c; =1+1;\n- 2\t@3;4")
    text = body(site, "export_queue", "default", "failed", format="csv")
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert row["error_message"] == "a - b = c;' =1+1;'\n'- 2\t'@3;4"
    assert row["args"] == """["x;'=1+1"]"""


def test_a_list_as_csv_and_json_with_its_filter(
    site: Site, manual_worker: ManualWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(120):
        tasks.noop.using(tags={"n": str(n)}, priority=-5).enqueue(f"no {n}")
    ids = [manual_worker.fail_one(FORMULA) for _ in range(120)]
    text = body(site, "export_queue", "default", "failed", format="csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["id"] for row in rows] == ids[::-1]
    assert rows[0]["error_message"] == f"'{FORMULA}", "no spreadsheet calculates it"
    assert (rows[0]["priority"], rows[0]["args"], rows[0]["tags"]) == (
        "-5", '["no 119"]', '{"n":"119"}',
    )  # fmt: skip
    text = body(site, "export_queue", "default", "failed", format="json", text="no 11")
    assert [row["args"] for row in json.loads(text)][:2] == [["no 119"], ["no 118"]]
    assert len(json.loads(text)) == 11
    monkeypatch.setattr(export, "ROWS", 70)
    text = body(site, "export_queue", "default", "failed", format="json")
    assert len(json.loads(text)) == 70
    assert json.loads(body(site, "export_queue", "low", "failed", format="json")) == []


def test_records_as_a_file(site: Site) -> None:
    for n in range(60):
        record(f"job_{n}", "failed" if n % 2 else "completed", payload='[["é"],{}]')
    text = body(site, "export_records", format="json", status="failed")
    assert len(json.loads(text)) == 30
    assert json.loads(text)[0]["args"] == ["é"]


def test_an_unknown_format_or_filter_is_explained(site: Site, redisqueue: None) -> None:
    for query, why in (
        ({"format": "xls"}, "one of csv, json"),
        ({"since": "x"}, "is not a valid time"),
    ):
        page = site.get("export_queue", "default", "failed", code=400, **{"format": "csv", **query})
        assert why in page


@pytest.mark.django_db(transaction=True)
def test_under_asgi_the_file_is_streamed_without_compression(
    site: Site, manual_worker: ManualWorker, settings: Any
) -> None:
    """GZipMiddleware would compress each part on its own, of which a browser decodes the first."""
    settings.MIDDLEWARE = ["django.middleware.gzip.GZipMiddleware", *settings.MIDDLEWARE]
    tasks.noop.enqueue("x")

    async def ask() -> list[Any]:
        client = AsyncClient()
        client.cookies = site.client.cookies
        response = await client.get(
            address("export_queue", "default", "queued"),
            {"format": "csv"},
            headers={"Accept-Encoding": "gzip"},
        )
        return [part async for part in response.streaming_content]

    assert b'noop,default,queued,0,0,1,{},"[""x""]"' in b"".join(asyncio.run(ask()))


def test_the_search_box(site: Site, manual_worker: ManualWorker) -> None:
    job = tasks.noop.enqueue()
    found = site.client.get(address("search"), {"q": job.id})
    assert found["Location"] == address("job", job.id)
    record("job_17_abc", "failed")
    ErrorGroup.objects.create(
        id="f" * 32, task="shop.charge", exception="shop.Declined", message="card 4 <b>",
        first_seen=timezone.now(), last_seen=timezone.now(),
    )  # fmt: skip
    assert "Task tests.app.tasks.noop" in site.text("search", q="NOOP")
    assert "Queue default" in site.text("search", q="defau")
    assert "Error shop.charge: shop.Declined: card 4 <b>" in site.text("search", q="declined")
    assert "Job job_17_abc" in site.text("search", q="job_17")
    record("job_18_abc", "failed", correlation_id="req-7")
    assert f"{address('jobrecord_changelist')}?correlation=req-7" in site.get("search", q="req-7")
    assert "correlation id" not in site.text("search", q="req-")
    assert "job_18_abc" in site.text("jobrecord_changelist", correlation="req-7")
    page = site.get("search", q="tenant=42")
    assert f"{address('jobrecord_changelist')}?tag=tenant%3D42" in page
    assert "Enter an id" in site.text("search")
    assert "is not allowed in text" in site.text("search", q="a\x00")
