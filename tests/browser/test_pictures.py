"""The pictures in the documentation: pages with the jobs of a shop (``make pictures``)."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from django_redisqueue import Workflow, task
from django_redisqueue.broker.commands import ClaimRequest
from django_redisqueue.core.job_data import encode_error
from django_redisqueue.metrics.histograms import add, encode
from django_redisqueue.models import Rollup
from tests.support.manual_worker import ManualWorker
from tests.support.shards import mirror

from .visitor import Visitor

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.slow,
]
CHILD = "web-1.aaaaaaaa.1.1.worker1"
MAX_BYTES = 120_000  # of a picture
FRAME = '  File "/srv/shop/orders/tasks.py", line 31, in charge\n    bank.pay(order.total)\n'
BANK = '  File "/srv/.venv/lib/python3.13/site-packages/bank/api.py", line 88, in pay\n'
RAISE = '    raise Declined("no funds")\n'


@task(name="shop.tasks.charge", max_attempts=3)
def charge(order: int) -> None:
    """Takes the money."""


@task(name="shop.tasks.invoice")
def invoice(order: int) -> None:
    """Writes the invoice."""


@task(name="shop.tasks.send_receipt", priority=-5)
def send_receipt(order: int) -> None:
    """Sends the receipt."""


def hour_of_figures() -> None:
    """An hour of throughput with a rush in the middle."""
    now = timezone.now()
    for ago in range(60):
        passed = now.second / 60 if ago == 0 else 1  # for the current minute
        jobs = round(passed * (60 + 4 * (30 - abs(30 - ago)) + ago % 7))
        wait, run = list[int](), list[int]()
        for n in range(jobs):
            add(wait, 5 + n % 40 * (1 + abs(30 - ago) / 10))
            add(run, 90 + n % 25 * 16)
        Rollup.objects.create(
            minute=now.replace(second=0, microsecond=0) - timedelta(minutes=ago),
            queue="default", task="shop.tasks.charge", enqueued=jobs + 3, completed=jobs,
            failed=ago % 9 == 0, retried=ago % 5,
            wait=encode(wait), run=encode(run),
        )  # fmt: skip


def shop(manual_worker: ManualWorker) -> tuple[str, str]:
    """The ids of a failed job and of a running workflow."""
    manual_worker.claim_request = ClaimRequest(CHILD, ("default", "low"))
    hour_of_figures()
    charge.enqueue_many([(order,) for order in range(1040, 1044)])
    for _ in range(3):
        job = manual_worker.claim_one()
        trace = f"Traceback (most recent call last):\n{FRAME}{BANK}{RAISE}Declined: no funds\n"
        error = encode_error("bank.Declined", "no funds", trace, 9999)
        manual_worker.settle(job, "failed", error)
    manual_worker.complete_one()
    with Workflow("order 1044") as workflow:
        paid = workflow.add(charge, 1044)
        papers = [workflow.add(invoice, 1044, after=paid), workflow.add(charge, 1045, after=paid)]
        workflow.add(send_receipt, 1044, after=papers)
    manual_worker.complete_one()
    manual_worker.claim_one()
    invoice.enqueue_many([(order,) for order in range(1046, 1060)])
    mirror()
    return job.id, workflow.id


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the pictures are saved: the folder that ``make pictures`` names."""
    return Path(os.environ.get("REDISQUEUE_PICTURES") or tmp_path)


def test_the_pictures_of_the_documentation_are_light(
    visitor: Visitor, redisqueue: dict[str, Any], folder: Path
) -> None:
    manual_worker = ManualWorker()
    job_id, workflow_id = shop(manual_worker)
    visitor.page.set_viewport_size({"width": 1020, "height": 840})

    def take(name: str, sees: str) -> None:
        manual_worker.store.heartbeat([CHILD], (), ["default", "low"])
        visitor.sees("Live", "#drq-state")
        visitor.expect("#drq-health p").to_have_count(0)
        visitor.sees(sees)
        path = folder / f"{name}.png"
        visitor.page.screenshot(path=path, animations="disabled")
        assert path.stat().st_size < MAX_BYTES

    visitor.go("overview").page.locator("#toggle-nav-sidebar").click()  # it stays closed
    visitor.expect("#drq-charts canvas").to_have_count(2)
    take("overview", "default")
    visitor.go("job", job_id)
    take("job", "All errors like this one")
    visitor.go("workflow", workflow_id)
    take("workflow", "1 of 4 jobs completed")
    manual_worker.close()
