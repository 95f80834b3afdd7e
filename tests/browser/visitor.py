"""A person in front of a browser."""

from __future__ import annotations

from typing import Any

from tests.dashboard.site import address


class Visitor:
    """Clicks and reads; ``page`` is a Playwright page."""

    def __init__(self, page: Any, base: str) -> None:
        self.page = page
        self.base = base
        self.complaints: list[str] = []
        self._listeners = {
            "dialog": self._dialog,
            "pageerror": lambda error: self.complaints.append(f"script: {error}"),
            "console": self._console,
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)

    def leave(self) -> None:
        """Leave the page as the next visitor expects it: blank, and without listeners."""
        self.page.unroute_all(behavior="wait")
        self.page.goto("about:blank")
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)

    def _dialog(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _console(self, message: Any) -> None:
        if "Content Security Policy" in message.text:
            self.complaints.append(message.text)

    def log_in(self) -> Visitor:
        """Log in with the admin's own form, which leads to the requested page."""
        self.go("overview")
        self.page.fill("#id_username", "ada")
        self.page.fill("#id_password", "secret")
        self.page.click("[type=submit]")
        self.page.wait_for_url("**/dashboard/")  # and until all of it is loaded
        assert "Queues and jobs" in self.page.title()
        return self

    def go(self, name: str, *args: object, query: str = "") -> Visitor:
        self.page.goto(self.base + address(name, *args) + query)
        return self

    def click(self, name: str, *, exact: bool = False) -> None:
        """Click a button with this name, after the page's first update, which may move it."""
        self.expect("#drq-state[data-state=off]").to_have_count(0)
        button = self.page.get_by_role("button", name=name, exact=exact).first
        button.wait_for()
        was_seen = "() => [...document.forms].forEach((form) => delete form.drqChanged)"
        self.page.evaluate(was_seen)  # page.js ignores clicks on buttons that have just changed
        button.click()

    def sees(self, text: str, within: str = "#content") -> None:
        """Wait for a text, without reloading."""
        self.page.locator(within).get_by_text(text).first.wait_for()

    def is_told(self, text: str) -> None:
        """Wait for the admin's message."""
        self.expect(".messagelist").to_contain_text(text)

    def expect(self, found: Any) -> Any:
        """Playwright's assertions about a locator or a selector; they wait while a page loads."""
        from playwright.sync_api import expect  # may be missing, as conftest.py explains

        expect.set_options(timeout=10_000)
        return expect(self.page.locator(found) if isinstance(found, str) else found)

    def count(self, queue: str, status: str) -> Any:
        """A count in the overview."""
        return self.page.locator(f"tr[data-queue={queue}] a[data-status={status}]")

    def mark(self) -> None:
        """Mark the page; ``is_marked`` tells whether it is still the same one."""
        self.page.evaluate("window.marked = true")

    def is_marked(self) -> bool:
        return bool(self.page.evaluate("window.marked === true"))
