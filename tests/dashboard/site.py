"""The dashboard as a test sees it: pages as text, forms as calls."""

from __future__ import annotations

import html
import re
from typing import Any

from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

NAME = "admin:django_redisqueue_"


def address(name: str, *args: object) -> str:
    return reverse(NAME + name, args=args)


class Site:
    """Asks for pages by their names."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def get(self, name: str, /, *args: object, code: int = 200, **query: object) -> str:
        """A page's HTML."""
        response = self.client.get(address(name, *args), query)
        assert response.status_code == code, response.content.decode()[:2000]
        return response.content.decode()

    def text(self, name: str, /, *args: object, **query: object) -> str:
        """A page without tags, with all white space as single spaces."""
        text = re.sub(r"<(script|style).*?</\1>", "", self.get(name, *args, **query), flags=re.S)
        return plain(text)

    def json(self, name: str, /, *args: object, **query: object) -> Any:
        response = self.client.get(address(name, *args), query)
        assert response.status_code == 200
        return response.json()

    def post(self, name: str, /, *args: object, **fields: object) -> str:
        """Send a form; returns the messages of the next page, or the confirmation page."""
        response = self.client.post(address(name, *args), fields, follow=True)
        assert response.status_code == 200, response.content.decode()[:2000]
        text = response.content.decode()
        told = [str(message) for message in response.context["messages"]]
        assert all(html.escape(message)[1:] in text for message in told)
        return " ".join(told) or text


def plain(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def rows(text: str) -> list[str]:
    """The rows of a page's table, as text."""
    return [plain(row) for row in re.findall(r"<tr data-id.*?</tr>", text, re.DOTALL)]


def logged() -> list[tuple[str, str]]:
    """(object, action) of each log entry, oldest first."""
    entries = LogEntry.objects.order_by("pk")
    return [(entry.object_repr, entry.change_message) for entry in entries]
