"""The example's front page in a browser: a job is followed to its end without a reload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.example.site import Site, free_port


@pytest.mark.slow
def test_the_front_page_follows_its_job_live(browser: Any, tmp_path: Path) -> None:
    site = Site(tmp_path, "--address", f"127.0.0.1:{free_port()}")
    context = browser.new_context()
    context.set_default_timeout(20_000)
    try:
        url = site.found(r"The site: +(\S+)")
        page = context.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        site.wait_until_it_answers(url)
        page.goto(url)
        page.select_option("#language", "de")
        with page.expect_navigation():
            page.click("button")
        page.evaluate("window.since = document.querySelector('[data-show=done]').textContent")
        page.wait_for_function("Number(document.querySelector('[data-show=done]').textContent) > 3")
        assert page.get_attribute("#job", "data-status") == "processing"
        page.wait_for_selector("#job[data-status=completed] tbody th")
        assert page.evaluate("window.since") is not None  # the same page all the time
        assert "%" in page.inner_text("caption")
        assert page.locator("tbody tr").count() > 10
        assert complaints == []
    finally:
        context.close()
        site.close()
