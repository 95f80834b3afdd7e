"""Shared by all pages: the request, its permissions, rendering, live updates, and the admin's log.

A view returns the whole page, or with ``live`` in the query only the parts that change, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.contrib.admin.models import LogEntry
from django.core.exceptions import PermissionDenied
from django.core.handlers.asgi import ASGIRequest
from django.core.paginator import Paginator
from django.db import Error as DatabaseError
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.middleware.csrf import get_token
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.http import urlencode

from ..api.hub import (
    RETRY_AFTER,
    STREAM_HEADERS,
    TooManyStreams,
    close_connections,
    stream_limiter,
)
from ..broker.base import Read
from ..broker.connection import RedisConnection, producer_connection
from ..broker.queries import Queries
from ..broker.shards import AllShards
from ..conf import APP, get_settings
from ..core import formatting
from ..core.ids import shard_of_id
from ..core.text import printable
from ..exceptions import InvalidOption, RedisQueueError, RedisRefused, RedisUnavailable
from ..health.facts import savepoint
from ..health.findings import DATABASE_AWAY, Finding, unreadable
from ..health.report import HealthReport, read_health
from ..models import JobRecord, SavedFilter
from .admin_log import entries, logging_done

TEMPLATES = f"admin/{APP}"
SUBMIT_ONCE = f"{APP}/page.js"  # keeps a double click from sending a form twice
POLL = 2000  # ms between updates of a page
STRIP = 10  # problems at the top of a page
LIFETIME = 300.0  # s of a stream; the browser then reconnects, and its login is checked again

logger = logging.getLogger("django_redisqueue")

PageView = Callable[..., HttpResponseBase]
ReadParts = Callable[[], dict[str, Any]]
Answer = TypeVar("Answer")
Response = TypeVar("Response", bound=HttpResponseBase)


def route(admin: ModelAdmin[Any], address: str, view: PageView, name: str) -> URLPattern:
    """A URL of the dashboard; it needs the site's login and the permission to view job records."""

    def guarded(request: HttpRequest, **arguments: Any) -> HttpResponseBase:
        return Page(request, admin).answer(view, **arguments)

    return path(address, admin.admin_site.admin_view(guarded), name=f"{APP}_{name}")


class MissingPermission(PermissionDenied):
    """``Page.answer`` shows it as a page, because Django's own page has no text."""


@dataclass(slots=True)
class Page:
    """One request for a page of one AdminSite."""

    request: HttpRequest
    admin: ModelAdmin[Any]
    _health: HealthReport | None = None
    _shards: AllShards | None = None
    _errors: list[str] = field(default_factory=list)
    notices: list[Finding] = field(default_factory=list)  # in addition to those of the health

    @property
    def health(self) -> HealthReport:
        """What is wrong, read once per request, and once for each event of a stream."""
        if self._health is None:
            self._health = read_health()
        return self._health

    def start_over(self, health: HealthReport | None = None) -> None:
        """Forget the health and the errors since; ``health`` is a newer report."""
        self._health, self._shards = health, None
        self._errors.clear()
        self.notices.clear()

    @property
    def shards(self) -> AllShards:
        """All shards. Those that failed to answer this request are missing from then on."""
        if self._shards is None:
            self._shards = AllShards()
            self._shards.missing.update(self.health.facts.missing)
        return self._shards

    @property
    def missing(self) -> Mapping[int, RedisQueueError]:
        """The shards that are not asked again, and why."""
        return self.shards.missing

    @property
    def running_jobs(self) -> int:
        shard = self.health.facts.shard
        return sum(queue.counts["processing"] for queue in shard.queues) if shard else 0

    @property
    def is_redis_away(self) -> bool:
        """Whether the health could not be read, or no shard answered this request."""
        return self.health.facts.shard is None or len(self.missing) == get_settings().shards

    @property
    def is_partial(self) -> bool:
        """Whether some shards failed to answer, but not all."""
        return 0 < len(self.missing) < get_settings().shards

    @property
    def errors(self) -> list[str]:
        """What the health strip does not say, as sentences: which shards failed to answer after
        the health was read, and what could not be read in the others."""
        known, several = self.health.facts.missing, get_settings().shards > 1
        lately = [
            f"Shard {shard} cannot be read: {error}." if several else f"{error}."
            for shard, error in self.missing.items()
            if shard not in known
        ]
        return [*lately, *self._errors]

    def is_away(self, some_id: str) -> bool:
        """Whether the shard of a job or workflow failed to answer this request."""
        return shard_of_id(some_id) in self.missing

    def queries_of(self, some_id: str) -> Queries:
        """For the shard of a job or workflow. Raises the shard's error if it is missing."""
        shard = shard_of_id(some_id)
        if shard in self.missing:
            raise self.missing[shard]
        return Queries(producer_connection(shard))

    def ask(
        self, begin: Callable[[RedisConnection], Read[Answer]], shards: Iterable[int] | None = None
    ) -> Mapping[int, Answer]:
        """The answers of all shards, or of the given ones; see ``reading``. Takes as many round
        trips as one read. After an error that the page shows, there are no answers."""
        found: Mapping[int, Answer] = {}
        with self.reading() as every:
            found = every.read(begin, shards).by_shard
        return found

    def ask_for(
        self,
        places: Iterable[tuple[str, int]],
        begin: Callable[[RedisConnection, list[str]], Read[list[Answer]]],
    ) -> dict[str, Answer]:
        """``ask`` each shard for its own of these keys, given as (key, shard); returns the answers
        by key. ``begin`` reads one answer for each of the keys that it gets."""
        parts: dict[int, list[str]] = {}
        for key, shard in places:
            parts.setdefault(shard, []).append(key)
        found = self.ask(lambda one: begin(one, parts[one.shard]), parts) if parts else {}
        return {
            key: answer
            for shard, answers in found.items()
            for key, answer in zip(parts[shard], answers, strict=True)
        }

    @contextmanager
    def reading(self) -> Iterator[AllShards]:
        """All shards that answer. The page shows any other error of the block."""
        try:
            yield self.shards
        except (RedisUnavailable, RedisRefused):
            pass  # no shard is left
        except RedisQueueError as error:
            self._errors.append(f"{error}.")

    @contextmanager
    def showing_invalid(self) -> Iterator[None]:
        """Show an InvalidOption in the block as a message, and continue."""
        try:
            yield
        except InvalidOption as error:
            messages.error(self.request, str(error))

    @contextmanager
    def querying(self, model: type[Model], what: str) -> Iterator[None]:
        """Show a notice if the database does not answer in the block, and continue."""
        try:
            with savepoint(model):
                yield
        except DatabaseError as error:
            self.notices.append(unreadable(what, error))

    def note(self, some_id: str, error: RedisQueueError) -> None:
        """Show why a job or workflow could not be read; an unavailable shard is missing now."""
        if isinstance(error, RedisUnavailable | RedisRefused):
            self.shards.missing[shard_of_id(some_id)] = error
        else:
            self._errors.append(f"{error}.")

    def why_record(self, what: str, some_id: str) -> str:
        """Why a page shows the record of a job or workflow instead of what Redis has."""
        if not self.is_away(some_id):
            return f"Redis has pruned this {what}; this is its record."
        who = "Redis does" if self.is_redis_away else f"Shard {shard_of_id(some_id)} of Redis does"
        return f"{who} not answer. This is the record of the {what}{self.mirror_age}."

    @property
    def mirror_age(self) -> str:
        """How long ago the mirror was last updated, for the end of a sentence; or ''."""
        facts = self.health.facts
        latest = max((one.updated_at for one in facts.mirrors if one.updated_at), default=None)
        if latest is None:
            return ""
        age = (facts.now - latest).total_seconds()
        return f"; the mirror was last updated {formatting.duration(age * 1000)} ago"

    @property
    def strip(self) -> list[tuple[Finding, str]]:
        """The worst problems, each with the URL of the page to look at, or '' for this page."""
        worst = [(one, self.optional_url(*one.target)) for one in self.health.problems[:STRIP]]
        return [(finding, "" if url == self.request.path else url) for finding, url in worst]

    @property
    def more_problems(self) -> int:
        """How many problems the strip leaves out: with many queues there may be hundreds."""
        return max(0, len(self.health.problems) - STRIP)

    @property
    def user_id(self) -> int:
        assert self.request.user.pk is not None, "the admin has checked the login"
        return self.request.user.pk

    @property
    def saved_filters(self) -> QuerySet[SavedFilter]:
        return SavedFilter.objects.filter(user_id=self.user_id).order_by("name")

    @property
    def sidebar(self) -> Mapping[str, str]:
        """The request for the admin's sidebar, which marks the entry whose URL is in the path: the
        dashboard's entry, on all pages except the records."""
        path, is_records = self.request.path, self.request.path == self.url("jobrecord_changelist")
        return {"path": path if is_records else self.optional_url("dashboard_changelist") or path}

    def has_perm(self, permission: str) -> bool:
        return bool(self.request.user.has_perm(f"{APP}.{permission}"))

    def allowed(self, verbs: Iterable[Any]) -> list[Any]:
        return [verb for verb in verbs if self.has_perm(verb.permission)]

    def require(self, permission: str) -> None:
        if not self.has_perm(permission):
            raise MissingPermission(f"{APP}.{permission}")

    def answer(
        self, view: Callable[..., Response], **arguments: Any
    ) -> Response | TemplateResponse | JsonResponse:
        """The view's response, or a page that names the permission that the user lacks, or says
        what does not exist, or that the database does not answer."""
        try:
            self.require("view_jobrecord")
            return view(self, **arguments)
        except MissingPermission as error:
            return self.render("forbidden", "Permission denied", code=403, permission=error)
        except Http404 as error:  # Django's own page has neither a link nor the admin's messages
            if self.wants_parts:
                raise
            return self.render("not_found", "Not found", code=404, problem=error)
        except DATABASE_AWAY as error:
            problem, title = unreadable("database", error), "The database does not answer"
            if self.wants_parts:
                return JsonResponse({"error": problem.text}, status=503)
            return self.render("database_away", title, code=503, problem=problem)

    def int_param(self, name: str, default: int) -> int:
        """A whole number from the query string; the default if it is not one or is too long."""
        text = self.request.GET.get(name, "")
        return int(text) if text.isdecimal() and len(text) < 9 else default

    def url(self, name: str, /, *args: object, **query: object) -> str:
        """The URL of a page of the same AdminSite. Empty parameters are left out."""
        found = reverse(f"admin:{APP}_{name}", args=args, current_app=self.admin.admin_site.name)
        given = {key: str(value) for key, value in query.items() if value not in ("", None)}
        return f"{found}?{urlencode(given)}" if given else found

    def optional_url(self, name: str, /, *args: object) -> str:
        """The URL of a page that not every AdminSite has, or ''."""
        try:
            return self.url(name, *args)
        except NoReverseMatch:
            return ""

    def export_links(self, name: str, /, *args: object, **query: object) -> list[tuple[str, str]]:
        return [
            (kind, self.url(name, *args, **query, format=kind.lower())) for kind in ("CSV", "JSON")
        ]

    def paginate(
        self, items: Sequence[Any], size: int, name: str, query: Mapping[str, object]
    ) -> dict[str, Any]:
        """The page that the query requests, at most the last, with the links of _numbers.html."""
        shown = Paginator(items, size).get_page(max(1, self.int_param("page", 1)))

        def link(number: int) -> str:
            return self.url(name, **query, page=number if number > 1 else "")

        return {
            "shown": shown,
            "previous_url": link(shown.number - 1) if shown.has_previous() else "",
            "next_url": link(shown.number + 1) if shown.has_next() else "",
        }

    def render(
        self, template: str, title: str, *, code: int = 200, **context: Any
    ) -> TemplateResponse:
        """A whole page. Middleware may add to its context until it is rendered."""
        site = self.admin.admin_site
        self.request.current_app = site.name
        return PrintableResponse(
            self.request,
            f"{TEMPLATES}/{template}.html",
            {**site.each_context(self.request), "title": title, "page": self, **context},
            status=code,
        )

    def confirm(
        self,
        what: str,
        name: str,
        button: str,
        here: str,
        fields: Mapping[str, object],
        *,
        is_dangerous: bool = True,
        **context: Any,
    ) -> TemplateResponse:
        """Ask with ``confirm_<what>.html``, which resends ``fields`` or leads back to ``here``."""
        return self.render(
            f"confirm_{what}", f"{name}: are you sure?", button=button, here=here,
            fields={key: str(value) for key, value in fields.items()}, is_dangerous=is_dangerous,
            **context,
        )  # fmt: skip

    def fragments(self, names: Sequence[str], **context: Any) -> dict[str, str]:
        """Parts of a page, by the ids of the elements that they replace."""
        context["page"] = self
        return {
            f"drq-{name}": printable(
                render_to_string(f"{TEMPLATES}/_{name}.html", context, self.request)
            )
            for name in names
        }

    def live_parts(self, names: Sequence[str], **context: Any) -> dict[str, Any]:
        """Parts of a page and the health strip, for the page's script."""
        return {
            "fragments": self.fragments(("health", *names), **context),
            "level": self.health.level,
            "problems": len(self.health.problems),
            "token": get_token(self.request),
        }

    def render_parts(self, names: Sequence[str], **context: Any) -> JsonResponse:
        return JsonResponse(self.live_parts(names, **context))

    @property
    def wants_parts(self) -> bool:
        """Whether the page's script asks only for the parts that change."""
        return "live" in self.request.GET

    def live_options(
        self, name: str, /, *args: object, stream: str = "", **query: object
    ) -> dict[str, Any]:
        """Where and how often the page's script requests its parts; ``stream``: the URL name of the
        stream with the parts."""
        is_streamed = stream and self.can_stream
        return {
            "url": self.url(name, *args, live=1, **query),
            "stream": self.url(stream, *args, **query) if is_streamed else "",
            "poll": POLL,
        }

    @property
    def can_stream(self) -> bool:
        """Whether the server can hold a response open, which costs no thread under ASGI."""
        return isinstance(self.request, ASGIRequest)

    def stream(self, read_parts: ReadParts) -> HttpResponseBase:
        """Repeatedly send what ``read_parts`` returns as server-sent events."""
        if not self.can_stream:
            error = "events are only served under ASGI; use live/"
            return JsonResponse({"error": error}, status=501)
        try:
            stream_limiter.check(self.user_id)
        except TooManyStreams as full:  # the page's script then polls
            headers = {"Retry-After": str(RETRY_AFTER)}
            return JsonResponse({"error": str(full)}, status=full.status, headers=headers)

        def read() -> dict[str, Any]:
            self.start_over()
            return read_parts()

        events = _events(self.user_id, read)
        headers = {"Cache-Control": "no-store", **STREAM_HEADERS}
        return StreamingHttpResponse(events, content_type="text/event-stream", headers=headers)

    def log(
        self, name: str, what: str, *, pk: str | None = None, model: type[Model] = JobRecord
    ) -> None:
        """Add an entry to the admin's log. With ``pk`` it belongs to the history of that object."""
        with logging_done(self.request, f"{name}: {what}"):
            (entry,) = entries(self.request, model, [(pk, name)], what)
            entry.save()

    def log_jobs(self, job_ids: Sequence[str], what: str) -> None:
        """Add an entry to the history of each of these jobs."""
        with logging_done(self.request, f"{', '.join(job_ids)}: {what}"):
            jobs = [(one, one) for one in job_ids]
            LogEntry.objects.bulk_create(entries(self.request, JobRecord, jobs, what))

    def not_posted(self, here: str) -> TemplateResponse:
        """The answer to a request that should have been a POST, as after a login in between."""
        response = self.render("not_posted", "Nothing was done", code=405, here=here)
        response.headers["Allow"] = "POST"
        return response


class PrintableResponse(TemplateResponse):
    """A page that UTF-8 can encode, whatever text jobs put into it."""

    @property
    def rendered_content(self) -> str:
        return printable(super().rendered_content)


async def _events(user_id: int, read_parts: ReadParts) -> AsyncIterator[str]:
    try:
        slot = stream_limiter.acquire(user_id)
    except TooManyStreams:  # other requests took the last slots after the view checked
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
            await asyncio.sleep(POLL / 1000)
    finally:
        stream_limiter.release(slot)


@cache
def _executor() -> ThreadPoolExecutor:
    """One thread reads for all open streams of the process, one after another: however many there
    are, they use one connection to Redis, and one to each database while a stream reads."""
    return ThreadPoolExecutor(1, thread_name_prefix="redisqueue-dashboard")


def _read(read_parts: ReadParts) -> dict[str, Any] | None:
    """The parts, or None if the database does not answer: the stream ends, and when the browser
    reconnects, it gets the error."""
    try:
        return read_parts()
    except DatabaseError as error:
        #: A page that is open in a browser gets no updates, because the database does not answer.
        #: It reconnects automatically. Look at the database.
        logger.warning("dashboard: the database does not answer, so a stream ends: %s", error)
        return None
    finally:
        close_connections()
