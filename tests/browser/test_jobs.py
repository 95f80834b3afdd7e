"""The page of a job in a real Chromium."""

from __future__ import annotations

import re

import pytest
from django.conf import settings as django_settings

from django_redisqueue import JobQueue, get_job
from django_redisqueue.core.job_data import encode_error
from django_redisqueue.models import PeriodicJob
from tests.app import tasks
from tests.support.manual_worker import ManualWorker
from tests.support.shards import mirror

from .visitor import Visitor

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.slow,
]
OWN = '  File "/srv/shop/tasks.py", line 3, in <b>\n    pay(1)\n'


def fail_attempt(manual_worker: ManualWorker, message: str) -> None:
    text = encode_error("Declined", message, f"Traceback:\n{OWN}Declined: {message}\n", 9999)
    manual_worker.store.promote(["default"])
    manual_worker.settle(manual_worker.claim_one(), "retrying", text, "0")
    mirror()


def test_attempts_open_stay_open_and_are_copied(
    visitor: Visitor, manual_worker: ManualWorker
) -> None:
    job = tasks.flaky.enqueue("k", 9)
    fail_attempt(manual_worker, "first")
    visitor.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visitor.go("job", job.id)
    visitor.sees("Live", "#drq-state")
    attempts = visitor.page.locator(".drq-attempt")
    assert attempts.locator("mark").inner_text().endswith("pay(1)\n")
    fail_attempt(manual_worker, "second")
    attempts.filter(has_text="Attempt 2 of 5").wait_for()
    assert [each.get_attribute("data-id") for each in attempts.all()] == ["0-2", "0-1"]
    assert attempts.nth(1).evaluate("e => e.open"), "it stays as the reader has left it"
    attempts.nth(0).locator("summary").click()
    fail_attempt(manual_worker, "third")
    attempts.filter(has_text="Attempt 3 of 5").wait_for()
    assert [each.evaluate("e => e.open") for each in attempts.all()] == [True, False, True]
    visitor.page.get_by_role("button", name="Copy the traceback of attempt 1").click()
    copied = visitor.page.wait_for_function("navigator.clipboard.readText()").json_value()
    assert copied == f"Traceback:\n{OWN}Declined: first\n"
    enqueued = visitor.page.locator("#drq-job dd time").first
    assert re.fullmatch(r"now|\d+ s ago|\d+ m( \d+ s)? ago", enqueued.inner_text())
    assert re.fullmatch(r"20\d\d-\d\d-\d\d [\d:]{8} \(UTC.*\)", enqueued.get_attribute("title"))


def test_a_copy_has_changed_arguments(visitor: Visitor, manual_worker: ManualWorker) -> None:
    job = tasks.add.enqueue(1, 2)
    visitor.go("job", job.id)
    visitor.page.get_by_role("link", name="Copy with changed arguments").click()
    visitor.page.get_by_label("Arguments, a JSON list").fill("[1, 2, 3]")
    visitor.click("Enqueue the copy")
    visitor.sees("too many positional arguments")
    visitor.page.get_by_label("Arguments, a JSON list").fill("[3, 4]")
    visitor.click("Enqueue the copy")
    visitor.is_told("This copy was enqueued")
    assert [each.args for each in JobQueue().get_jobs("queued")] == [(1, 2), (3, 4)]  # type: ignore[union-attr]


def test_a_filter_is_saved_and_picked_later_on_a_phone_too(
    visitor: Visitor, manual_worker: ManualWorker
) -> None:
    tasks.noop.enqueue_many([(1,), (2,)])
    manual_worker.fail_one("card declined")
    other = manual_worker.fail_one("no such card")
    visitor.go("queue", "default", "failed")
    visitor.page.get_by_label("Text in arguments or error").fill("declined")
    visitor.click("Filter", exact=True)
    visitor.page.wait_for_url("**text=declined**")
    visitor.page.get_by_label("Save this filter as").fill("broken payments")
    visitor.click("Save", exact=True)
    visitor.is_told("The filter broken payments was saved.")
    visitor.page.set_viewport_size({"width": 390, "height": 800})
    visitor.go("queue", "default", "failed")
    visitor.sees(other)
    visitor.page.get_by_text("Filter", exact=True).first.click()
    visitor.page.get_by_role("link", name="broken payments").click()
    visitor.sees("1 job of the 2 searched")
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390
    visitor.click("Delete the filter broken payments")
    visitor.is_told("The filter broken payments was deleted.")
    visitor.expect("a[href='?text=declined']").to_have_count(0)


def test_a_selection_survives_a_login_in_another_tab(
    visitor: Visitor, manual_worker: ManualWorker
) -> None:
    """The page stayed logged out, and the server refused its token: the selection was lost."""
    tasks.noop.enqueue_many([(1,), (2,)])
    failed = [manual_worker.fail_one(), manual_worker.fail_one()]
    visitor.go("queue", "default", "failed").mark()
    visitor.sees("Live", "#drq-state")
    visitor.page.get_by_label(f"Select {failed[0]}").check()
    cookies = visitor.page.context.cookies()
    visitor.page.context.clear_cookies()
    visitor.sees("You are logged out", "#drq-state")
    for one in cookies:
        if one["name"] == django_settings.CSRF_COOKIE_NAME:
            one["value"] = "a" * len(one["value"])  # a login changes it
    visitor.page.context.add_cookies(cookies)
    visitor.sees("Live", "#drq-state")
    assert visitor.is_marked()
    visitor.expect("#drq-selected").to_have_text("(1)")
    visitor.click("Retry")
    visitor.is_told("1 job sent back to the queue.")
    assert [get_job(each).status for each in failed] == ["queued", "failed"]


# What elements with scroll bars have that paper cannot show
CUT = """() => [...document.querySelectorAll("#content *")]
    .filter((one) => getComputedStyle(one).overflowY === "auto")
    .filter((one) => one.scrollHeight > one.clientHeight || one.scrollWidth > one.clientWidth)
    .map((one) => one.className)"""


def test_a_long_traceback_is_printed_to_its_end(
    visitor: Visitor, manual_worker: ManualWorker
) -> None:
    job = tasks.noop.enqueue(["x" * 400] * 40)
    error = encode_error("Declined", "no", OWN * 200, 99_999)
    manual_worker.settle(manual_worker.claim_one(), "failed", error)
    visitor.go("job", job.id)
    assert visitor.page.evaluate(CUT) == ["drq-json", "drq-pre"]
    visitor.page.emulate_media(media="print")
    assert visitor.page.evaluate(CUT) == []
    visitor.expect("#nav-sidebar").to_be_hidden()


# What django-grappelli has for buttons in its own forms
GRAPPELLI = "button { margin: 0 0 0 -25px; width: 25px; height: 25px; overflow: hidden; }"
ADD_STYLES = """(styles) => {
    const sheet = new CSSStyleSheet();  // which the content security policy allows
    sheet.replaceSync(styles);
    document.adoptedStyleSheets = [sheet];
}"""
CUT_OFF = """() => [...document.querySelectorAll("#content button")]
    .filter((button) => button.scrollWidth > button.clientWidth)
    .map((button) => button.innerText)"""


@pytest.mark.parametrize("name", ["job", "periodicjob_change"])
def test_the_buttons_are_whole_in_a_theme_whose_own_are_small(visitor: Visitor, name: str) -> None:
    job = tasks.noop.enqueue()
    row = PeriodicJob.objects.create(name="often", task=tasks.noop.name, every="1h")
    visitor.go(name, job.id if name == "job" else row.pk)
    visitor.page.evaluate(ADD_STYLES, GRAPPELLI)
    assert visitor.page.evaluate(CUT_OFF) == []
