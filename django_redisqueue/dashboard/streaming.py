"""Live parts of a page as server-sent events.

Only under ASGI, where an open response costs no thread. One thread per process reads for all open
streams, one after the other, so however many there are, they use one connection to Redis, and one
to each database while a stream reads.
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

from ..api.hub import RETRY_AFTER, TooManyStreams, close_connections, stream_limiter
from . import pages
from .pages import Page

logger = logging.getLogger("django_redisqueue")

LIFETIME = 300.0  # s; the browser then reconnects, and its login is checked again

ReadParts = Callable[[], dict[str, Any]]


def can_stream(page: Page) -> bool:
    """Whether the server can hold a response open."""
    return isinstance(page.request, ASGIRequest)


def stream(page: Page, read_parts: ReadParts) -> HttpResponseBase:
    """Send what ``read_parts`` returns, again and again; it runs in the thread of all streams."""
    if not can_stream(page):
        return JsonResponse(
            {"error": "events are served under ASGI only; ask for live/"}, status=501
        )
    try:
        stream_limiter.check(page.user_id)
    except TooManyStreams as error:  # the page's script then falls back to polling live/
        headers = {"Retry-After": str(RETRY_AFTER)}
        return JsonResponse({"error": str(error)}, status=error.status, headers=headers)
    response = StreamingHttpResponse(
        _events(page.user_id, read_parts), content_type="text/event-stream"
    )
    response["Cache-Control"] = "no-store"
    response["X-Accel-Buffering"] = "no"  # otherwise nginx buffers the events
    return response


async def _events(user_id: int, read_parts: ReadParts) -> AsyncIterator[str]:
    try:
        slot = stream_limiter.acquire(user_id)
    except TooManyStreams:  # other requests took the last slots since the view checked
        yield f"retry: {RETRY_AFTER * 1000}\n\n"
        return
    try:
        await sync_to_async(close_connections)()  # of the thread that authenticated the request
        end = time.monotonic() + LIFETIME
        while time.monotonic() < end:
            read = sync_to_async(_read, thread_sensitive=False, executor=_executor())
            parts = await read(read_parts)
            if parts is None:
                return
            yield f"data: {json.dumps(parts)}\n\n"
            await asyncio.sleep(pages.POLL / 1000)
    finally:
        stream_limiter.release(slot)


@cache
def _executor() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="redisqueue-dashboard")


def _read(read_parts: ReadParts) -> dict[str, Any] | None:
    """The parts, or None when the database does not answer: the stream ends, and the browser that
    reconnects gets the error."""
    try:
        return read_parts()
    except DatabaseError as error:
        #: A page that is open in a browser gets no updates, because the database does not answer.
        #: It reconnects by itself; look at the database.
        logger.warning("dashboard: the database does not answer, so a stream ends: %s", error)
        return None
    finally:
        close_connections()
