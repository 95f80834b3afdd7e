"""Parts of a page as server-sent events, where a waiting answer costs no thread: under ASGI.

All open streams of a process look through one thread, one after the other. However many there are,
they use one connection to Redis, and one to each database while one of them looks.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.db import Error as DatabaseError
from django.http import JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from ..streams import RETRY_AFTER, TooManyStreams, close_connections, places
from . import pages
from .pages import Page

logger = logging.getLogger("django_redisqueue")

STREAM = 300.0  # s that one stream lasts; the browser then asks for another, with its login

Parts = Callable[[], dict[str, Any]]


def streams(page: Page) -> bool:
    """True when the server can hold an answer open."""
    return isinstance(page.request, ASGIRequest)


def stream(page: Page, parts: Parts) -> HttpResponseBase:
    """What ``parts`` gives, again and again; it is called in the thread of all streams."""
    if not streams(page):
        return JsonResponse(
            {"error": "events are served under ASGI only; ask for live/"}, status=501
        )
    try:
        places.check(page.user_id)
    except TooManyStreams as error:  # the page's script then asks for live/ again and again
        headers = {"Retry-After": str(RETRY_AFTER)}
        return JsonResponse({"error": str(error)}, status=error.status, headers=headers)
    answer = StreamingHttpResponse(_events(page.user_id, parts), content_type="text/event-stream")
    answer["Cache-Control"] = "no-store"
    answer["X-Accel-Buffering"] = "no"  # else nginx collects it
    return answer


async def _events(user_id: int, parts: Parts) -> AsyncIterator[str]:
    try:
        place = places.take(user_id)
    except TooManyStreams:  # others were faster between the view's look and now
        yield f"retry: {RETRY_AFTER * 1000}\n\n"
        return
    try:
        await sync_to_async(close_connections)()  # of the thread that has looked at the login
        end = time.monotonic() + STREAM
        while time.monotonic() < end:
            found = await sync_to_async(_look, thread_sensitive=False, executor=_reader())(parts)
            if found is None:
                return
            yield f"data: {json.dumps(found)}\n\n"
            await asyncio.sleep(pages.POLL / 1000)
    finally:
        places.free(place)


@cache
def _reader() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="redisqueue-dashboard")


def _look(parts: Parts) -> dict[str, Any] | None:
    """None when the database does not answer: the browser comes back, and is told so."""
    try:
        return parts()
    except DatabaseError as error:
        logger.warning("dashboard: a stream ends, for the database does not answer: %s", error)
        return None
    finally:
        close_connections()
