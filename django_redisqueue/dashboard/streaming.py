"""Parts of a page as server-sent events, where a waiting answer costs no thread: under ASGI."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db import close_old_connections
from django.http import JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from . import pages
from .pages import Page

STREAM = 300.0  # s that one stream lasts; the browser then asks for another, with its login

Parts = Callable[[str], dict[str, Any]]  # from the `look` of an answer before, or ''


def streams(page: Page) -> bool:
    """True when the server can hold an answer open."""
    return isinstance(page.request, ASGIRequest)


def stream(page: Page, parts: Parts) -> HttpResponseBase:
    """What ``parts`` gives, again and again."""
    if not streams(page):
        return JsonResponse(
            {"error": "events are served under ASGI only; ask for live/"}, status=501
        )
    answer = StreamingHttpResponse(_events(parts), content_type="text/event-stream")
    answer["Cache-Control"] = "no-store"
    answer["X-Accel-Buffering"] = "no"  # else nginx collects it
    return answer


async def _events(parts: Parts) -> AsyncIterator[str]:
    end = time.monotonic() + STREAM
    look = ""
    while time.monotonic() < end:
        found = await sync_to_async(_parts_in_thread, thread_sensitive=False)(parts, look)
        look = look or found.get("look", "")
        yield f"data: {json.dumps(found)}\n\n"
        await asyncio.sleep(pages.POLL / 1000)


def _parts_in_thread(parts: Parts, look: str) -> dict[str, Any]:
    """No request ends in this thread, so nobody else closes what has become old."""
    close_old_connections()
    try:
        return parts(look)
    finally:
        close_old_connections()
