"""The pages of workflows in a real Chromium."""

from __future__ import annotations

from typing import Any

import pytest

from django_redisqueue import Gather, Workflow
from tests.app import tasks
from tests.client.gather import tasks as gather_tasks
from tests.dashboard.site import address
from tests.support.manual_worker import ManualWorker
from tests.support.shards import mirror

from .visitor import Visitor

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "other"]),
    pytest.mark.slow,
]
MARKUP = "<img src=x onerror=alert(1)>"


def fan(name: str = "nightly") -> Workflow:
    with Workflow(name) as workflow:
        first = workflow.add(tasks.noop, MARKUP)
        middle = [workflow.add(tasks.noop, n, after=first) for n in range(2)]
        workflow.add(tasks.noop, after=middle)
    return workflow


def box(visitor: Visitor, number: int) -> Any:
    return visitor.page.locator(".drq-box").nth(number)


def stroke(visitor: Visitor, number: int) -> str:
    return str(box(visitor, number).locator("rect").evaluate("e => getComputedStyle(e).stroke"))


def test_the_graph_changes_live(visitor: Visitor, manual_worker: ManualWorker) -> None:
    workflow = fan(MARKUP)
    visitor.go("workflow", workflow.id)
    visitor.mark()
    visitor.sees("Live", "#drq-state")
    colours = [stroke(visitor, n) for n in (0, 3)]
    assert colours[0] != colours[1], "queued and waiting"
    first = box(visitor, 0).locator("a")
    first.focus()
    manual_worker.complete_one()
    box(visitor, 0).get_by_text("completed", exact=True).wait_for()
    box(visitor, 1).get_by_text("queued", exact=True).wait_for()
    visitor.sees("1 of 4 jobs completed", "#drq-workflow")
    assert visitor.is_marked()
    assert first.evaluate("e => e === document.activeElement"), "the focus stays where it was"
    assert stroke(visitor, 0) not in colours
    places = [box(visitor, n).bounding_box()["x"] for n in range(4)]
    assert places[0] < places[1] == places[2] < places[3]
    first.click()
    visitor.page.wait_for_url(f"**/jobs/{workflow.id}.0/")
    visitor.page.locator("#drq-job").get_by_role("link", name=workflow.id, exact=True).click()
    visitor.page.wait_for_url(f"**/workflows/{workflow.id}/")


def test_the_focus_stays_in_the_graph_when_a_box_becomes_two(
    visitor: Visitor, manual_worker: ManualWorker
) -> None:
    with Workflow() as workflow:
        alike = [workflow.add(tasks.noop) for _ in range(14)]
        workflow.add(tasks.add, 1, 2, after=alike)
    visitor.go("workflow", workflow.id)
    visitor.sees("Live", "#drq-state")
    visitor.expect(".drq-box").to_have_count(2)
    last = box(visitor, 1).locator("a")
    last.focus()
    manual_worker.claim_one()
    visitor.expect(".drq-box").to_have_count(3)
    visitor.expect(".drq-edge").to_have_count(2)
    assert box(visitor, 2).locator("a").evaluate("e => e === document.activeElement")


def view(visitor: Visitor) -> list[float]:
    return visitor.page.locator("#drq-graph svg").evaluate(  # type: ignore[no-any-return]
        "svg => svg.getAttribute('viewBox').split(' ').map(Number)"
    )


def test_the_graph_keeps_its_position_and_zoom(
    visitor: Visitor, manual_worker: ManualWorker
) -> None:
    workflow = fan()
    visitor.go("workflow", workflow.id)
    visitor.sees("Live", "#drq-state")
    whole = view(visitor)
    graph = visitor.page.locator("#drq-graph")
    graph.focus()
    visitor.page.keyboard.press("0")
    assert view(visitor) == whole
    visitor.page.keyboard.press("+")
    zoomed = view(visitor)
    assert zoomed[2] == pytest.approx(whole[2] / 1.25)
    visitor.page.keyboard.press("ArrowRight")
    moved = view(visitor)
    assert moved[0] > zoomed[0]
    manual_worker.complete_one()
    box(visitor, 0).get_by_text("completed", exact=True).wait_for()
    assert view(visitor) == moved, "an update leaves it where it is"
    place = graph.bounding_box()
    visitor.page.mouse.move(place["x"] + place["width"] - 20, place["y"] + 20)
    visitor.page.mouse.down()
    visitor.page.mouse.move(place["x"] + place["width"] - 80, place["y"] + 20, steps=4)
    visitor.page.mouse.up()
    assert view(visitor)[0] > moved[0]
    assert view(visitor)[1] == moved[1]
    visitor.click("Fit")
    assert view(visitor) == whole
    visitor.sees("completed, waited", "#drq-workflowtimes")


def test_it_is_paused_released_retried_and_cancelled(
    visitor: Visitor, manual_worker: ManualWorker
) -> None:
    workflow = fan()
    visitor.go("workflow", workflow.id)
    visitor.click("Pause")
    visitor.is_told("is paused")
    visitor.click("Release")
    visitor.is_told("was released")
    manual_worker.fail_one()
    visitor.click("Retry failed jobs")
    visitor.is_told("1 job sent back")
    visitor.click("Cancel")
    visitor.sees("A cancelled workflow cannot be resumed.")
    visitor.click("Cancel the workflow")
    visitor.is_told("was cancelled")
    assert workflow.status == "cancelled"


def test_the_list_leads_to_it_and_is_live(visitor: Visitor, manual_worker: ManualWorker) -> None:
    workflow = fan(MARKUP)
    mirror()
    visitor.go("overview")
    visitor.page.get_by_role("link", name="Workflows", exact=True).first.click()
    visitor.sees("0 of 4 jobs completed")
    manual_worker.complete_one()
    visitor.sees("1 of 4 jobs completed")
    visitor.expect(".drq-bar rect.completed").to_have_attribute("width", "25.0")
    visitor.page.get_by_role("link", name=MARKUP).focus()
    fan("newer")
    mirror()
    visitor.sees("newer", "#drq-workflows")
    visitor.page.keyboard.press("Enter")  # the focus stays with its row
    visitor.page.wait_for_url(f"**/workflows/{workflow.id}/")
    visitor.page.get_by_role("link", name="Waiting", exact=True).click()
    rows = visitor.page.locator("#drq-workflowjobs tbody tr")
    visitor.expect(rows).to_have_count(1)
    visitor.expect(rows).to_contain_text(f"{workflow.id}.3")


def test_it_can_be_read_on_a_phone_and_without_scripts(browser: Any, visitor: Visitor) -> None:
    workflow = fan()
    visitor.go("overview")
    state = visitor.page.context.storage_state()
    context = browser.new_context(
        viewport={"width": 380, "height": 800}, java_script_enabled=False, storage_state=state
    )
    page = context.new_page()
    page.goto(visitor.base + address("workflow", workflow.id))
    assert page.locator(".drq-box").count() == 4
    assert page.locator("#drq-workflowjobs tbody tr").count() == 4
    context.close()
    wide = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    visitor.page.set_viewport_size({"width": 380, "height": 800})
    visitor.go("workflow", workflow.id)
    assert visitor.page.evaluate(wide)


def test_the_page_of_a_gather_follows_its_parts(
    visitor: Visitor, manual_worker: ManualWorker
) -> None:
    Gather.start(
        "report-42", topic="report", payload={"record_id": 42}, threshold=2, then=gather_tasks.merge
    )
    visitor.go("gathers").page.get_by_role("link", name="report-42").click()
    visitor.sees("0 of 3 jobs completed", "#drq-gather")
    visitor.mark()
    manual_worker.fail_one(MARKUP)
    visitor.sees("First failure", "#drq-gather")
    visitor.sees(MARKUP, "#drq-gather")
    manual_worker.complete_one("1")
    manual_worker.complete_one("2")
    visitor.sees("2 of 3, 2 needed", "#drq-gather")
    visitor.expect("#drq-workflowtimes li").to_have_count(3)
    assert visitor.is_marked()
    visitor.page.set_viewport_size({"width": 390, "height": 800})
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390
    visitor.go("gathers")
    visitor.sees("released", "#drq-gathers")
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= 390
