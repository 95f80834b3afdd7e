"""What the pages show."""

from __future__ import annotations

from django_redisqueue import JobQueue
from tests.api.hand import Hand
from tests.app import tasks

from .site import Site


def test_the_overview_has_every_queue_with_its_counts(site: Site, hand: Hand) -> None:
    tasks.noop.enqueue(1)
    tasks.noop.enqueue(2)
    hand.fail_one()
    tasks.noop.using(queue_name="low").enqueue(3)
    JobQueue("low").pause()
    page = site.get("overview")
    assert 'data-status="failed">1<' in page
    assert "low" in page
    assert "paused" in site.words("overview")


def test_a_queue_page(site: Site, hand: Hand) -> None:
    job = tasks.noop.enqueue("an argument")
    words = site.words("queue", "default", "queued")
    assert job.id in words
    assert '"an argument"' in words


def test_a_job_page(site: Site, hand: Hand) -> None:
    job = tasks.noop.enqueue("an argument")
    hand.fail_one("no good")
    words = site.words("job", job.id)
    assert "ValueError : no good" in words
    assert '"an argument"' in words


def test_records(site: Site) -> None:
    assert "No records." in site.words("jobrecord_changelist")
