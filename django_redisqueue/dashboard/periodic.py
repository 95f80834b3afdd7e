"""Periodic jobs in the admin: a preview of due times before saving, run now, pause, history."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db import Error as DatabaseError
from django.db.models import JSONField, QuerySet
from django.forms import Textarea
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.views.decorators.http import require_POST

from ..broker.schedules import ScheduleQueries, UnreadableSchedule
from ..broker.shards import AllShards
from ..client import schedules
from ..conf import APP
from ..core.clock import from_ms, ms_of
from ..core.ids import due_ms_of, periodic_prefix
from ..core.schedules import Cron, ScheduleData, Source, make_schedule
from ..exceptions import InvalidOption, RedisQueueError
from ..health.findings import local_time
from ..models import JobRecord, PeriodicJob
from ..models.tables import last_with_prefix
from .admin_log import logging_done
from .pages import SUBMIT_ONCE, TEMPLATES, Page

PREVIEW = 5  # due times
HISTORY = 20  # runs
TIMING = ("cron", "every", "timezone", "jitter")  # fields
FROM_CODE = "the code defines a schedule with this name, which runs instead"
State = ScheduleData | UnreadableSchedule | None


class PeriodicJobChangeList(ChangeList):
    """Reads the schedules of a whole page of rows from Redis at once."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows = list(self.result_list)
        for row, state in zip(rows, read_states([row.name for row in rows]), strict=True):
            row.redis_state = state
        self.result_list = rows


@admin.register(PeriodicJob)
class PeriodicJobAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's is not generic
    """Rows from the admin can be changed; those from the code can be paused and run."""

    change_form_template = f"{TEMPLATES}/periodicjob/change_form.html"
    list_display = ("name", "task", "due_times", "state", "last_run", "next_due", "source")
    list_filter = ("is_enabled", "source")
    search_fields = ("name", "task")
    ordering = ("name",)
    sortable_by = ("name", "task")
    actions = ("run_selected", "pause_selected", "resume_selected")
    formfield_overrides = {JSONField: {"widget": Textarea(attrs={"rows": 3})}}
    fields = (
        "name", "task", "args", "kwargs", "cron", "every", "timezone", "misfire", "overlap",
        "jitter", "queue_name", "priority", "is_enabled",
    )  # fmt: skip

    class Media:
        js = (SUBMIT_ONCE,)

    def get_changelist(self, request: HttpRequest, **_: Any) -> type[ChangeList]:
        return PeriodicJobChangeList

    def get_readonly_fields(
        self, request: HttpRequest, obj: PeriodicJob | None = None
    ) -> tuple[str, ...]:
        if obj is not None and obj.is_of_code:
            return tuple(name for name in self.fields if name != "is_enabled")
        return ("name",) if obj is not None else ()  # another name would be another schedule

    def has_delete_permission(self, request: HttpRequest, obj: PeriodicJob | None = None) -> bool:
        is_of_code = obj is not None and obj.is_of_code
        return not is_of_code and super().has_delete_permission(request, obj)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Refuse to delete schedules that the code would define again."""
        deleted, counts, missing, protected = super().get_deleted_objects(objs, request)
        of_code = [f"{row} (defined by the code)" for row in objs if row.is_of_code]
        return deleted, counts, missing, [*protected, *of_code]

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[PeriodicJob]) -> None:
        for row in queryset:  # each removes its schedule from Redis
            row.delete()

    def get_urls(self) -> list[URLPattern]:
        preview = self.admin_site.admin_view(require_POST(self.preview_view))
        do = self.admin_site.admin_view(self.do_view)
        return [
            path("preview/", preview, name=f"{APP}_periodicjob_preview"),
            path("<path:object_id>/do/", do, name=f"{APP}_periodicjob_do"),
            *super().get_urls(),
        ]

    # Columns

    @admin.display(description="due")
    def due_times(self, row: PeriodicJob) -> str:
        return row.cron or f"every {row.every}"

    @admin.display(description="state")
    def state(self, row: PeriodicJob) -> str:
        return state_text(row, _state_of(row))

    @admin.display(description="last run")
    def last_run(self, row: PeriodicJob) -> str:
        found = _state_of(row)
        return local_time(from_ms(found.last_ms) if isinstance(found, ScheduleData) else None)

    @admin.display(description="next due")
    def next_due(self, row: PeriodicJob) -> str:
        found = _state_of(row)
        if not isinstance(found, ScheduleData) or found.is_stopped:
            return local_time(None)
        return local_time(from_ms(found.next_ms))

    # Actions, on several rows or on one

    @admin.action(description="Run now", permissions=["change"])
    def run_selected(self, request: HttpRequest, queryset: QuerySet[PeriodicJob]) -> None:
        self._apply(request, queryset, "run")

    @admin.action(description="Pause", permissions=["change"])
    def pause_selected(self, request: HttpRequest, queryset: QuerySet[PeriodicJob]) -> None:
        self._apply(request, queryset, "pause")

    @admin.action(description="Resume", permissions=["change"])
    def resume_selected(self, request: HttpRequest, queryset: QuerySet[PeriodicJob]) -> None:
        self._apply(request, queryset, "resume")

    def _apply(self, request: HttpRequest, rows: Iterable[PeriodicJob], verb: str) -> None:
        """Run, pause or resume each row; shows and logs the outcome."""
        for row in rows:
            try:
                if verb == "run":
                    done = f"Enqueued as job {schedules.run_now(row.name).id}."
                else:
                    row.is_enabled = verb == "resume"
                    row.save(update_fields=["is_enabled", "updated_at"])
                    done = "Resumed." if row.is_enabled else "Paused."
            except (RedisQueueError, DatabaseError) as error:
                self.message_user(request, f"{row.name}: {error}", messages.ERROR)
                continue
            with logging_done(request, f"{row.name}: {done}"):
                self.log_change(request, row, done)
            self.message_user(request, f"{row.name}: {done}", messages.SUCCESS)

    def do_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Handle the buttons on a row's page."""
        row = self.get_object(request, unquote(object_id))
        if row is None or not self.has_change_permission(request, row):
            raise PermissionDenied
        here = reverse(f"{self.admin_site.name}:{APP}_periodicjob_change", args=[row.pk])
        if request.method != "POST":
            return Page(request, self).not_posted(here)
        verb = request.POST.get("verb", "")
        if verb in ("run", "pause", "resume"):
            self._apply(request, [row], verb)
        return HttpResponseRedirect(here)

    # Pages

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """The next due times for the form as filled in, or what is wrong with it."""
        if not (self.has_add_permission(request) or self.has_change_permission(request)):
            raise PermissionDenied
        due, error = preview(request.POST)
        return TemplateResponse(
            request, f"{TEMPLATES}/periodicjob/_preview.html", {"due": due, "error": error}
        )

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        row = self.get_object(request, unquote(object_id)) if object_id else None
        context: dict[str, Any] = {"may_act": False}
        if row is not None and self.has_view_permission(request, row):
            (state,) = read_states([row.name])
            context = {
                "redis": state if isinstance(state, ScheduleData) else None,
                "state_text": state_text(row, state),
                "history": history(row.name),
                "may_act": self.has_change_permission(request, row),
                "may_see_jobs": request.user.has_perm(f"{APP}.view_jobrecord"),
                "due": preview({name: getattr(row, name) for name in TIMING})[0],
            }
        return super().changeform_view(
            request, object_id, form_url, {**context, **(extra_context or {})}
        )


def read_states(names: list[str]) -> list[State]:
    """These schedules as in Redis; an error for one whose shard may be unavailable."""
    try:
        found = AllShards().read(lambda one: ScheduleQueries(one).schedules.read(names))
    except RedisQueueError as error:
        return [UnreadableSchedule(name, str(error)) for name in names]
    states: list[State] = []
    for name, *each in zip(names, *found.by_shard.values(), strict=True):
        unknown = UnreadableSchedule(name, found.problem) if found.missing else None
        states.append(next(filter(None, each), unknown))
    return states


def _state_of(row: PeriodicJob) -> State:
    found: State = getattr(row, "redis_state", None)
    return found


def state_text(row: PeriodicJob, state: State) -> str:
    """Whether it runs, and if not, why."""
    if isinstance(state, UnreadableSchedule):
        return state.problem
    if state is not None and state.source is Source.CODE and not row.is_of_code:
        return FROM_CODE
    if row.problem:
        return row.problem
    if state is None:
        return "not in Redis yet"
    if state.error:
        return state.error
    return "paused" if state.paused_ms is not None else "enabled"


def preview(form: Any) -> tuple[list[str], str]:
    """The next due times for a form, and an error or ''."""
    given = {name: form.get(name, "").strip() for name in TIMING}
    try:
        schedule = make_schedule({name: value for name, value in given.items() if value})
    except InvalidOption as error:
        return [], str(error)
    found = schedule.in_zone(timezone.get_default_timezone_name())
    zone = ZoneInfo(found.timezone) if isinstance(found, Cron) else None  # None: the viewer's
    times = [from_ms(ms) for ms in found.upcoming(ms_of(timezone.now()), PREVIEW)]
    return [f"{timezone.localtime(at, zone):%a %Y-%m-%d %H:%M:%S %Z}" for at in times], ""


def history(name: str) -> list[dict[str, Any]]:
    """The last runs, from the mirror."""
    records = last_with_prefix(JobRecord.objects.all(), periodic_prefix(name))
    return [
        {
            "id": record.id,
            "status": record.status,
            "due": local_time(from_ms(due_ms_of(record.id))),
            "started": local_time(record.started_at),
            "seconds": round((record.finished_at - record.started_at).total_seconds(), 3)
            if record.started_at and record.finished_at
            else None,
        }
        for record in records[:HISTORY]
    ]
