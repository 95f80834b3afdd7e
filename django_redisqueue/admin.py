"""The admin: the dashboard, job records, outbox, mirror's state, approvals, and tokens of the API.

Only Django imports this, when ``django.contrib.admin`` is installed. On an AdminSite of your own:
``site.register(JobRecord, JobRecordAdmin)``, and ``site.register(Dashboard, DashboardAdmin)`` for
its entry in the list of apps.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, cast

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db import Error as DatabaseError
from django.db import router, transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.html import format_html

from .conf import APP
from .core.parsing import storable
from .core.statuses import ApprovalStatus
from .core.text import escape_bidi
from .dashboard.pages import SUBMIT_ONCE, TEMPLATES, Page
from .dashboard.periodic import PeriodicJobAdmin as PeriodicJobAdmin  # noqa: PLC0414 - exported
from .dashboard.records_page import record_page
from .dashboard.urls import dashboard_urls
from .exceptions import RedisQueueError
from .models import ApiToken, Approval, Dashboard, JobRecord, MirrorState, OutboxJob, WorkflowRecord

MAX_COUNT = 1000  # rows that a list counts at most
MAX_COMMENT = 2000  # characters
TOKEN_FACTS = ("hint", "created_at", "last_used_at")


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # Django's is not generic
    """Counts at most MAX_COUNT rows, so that the cost of a list does not depend on its length."""

    @cached_property
    def count(self) -> int:
        return cast("QuerySet[Any]", self.object_list)[:MAX_COUNT].count()


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # Django's is not generic
    """Rows that only the package writes."""

    paginator: ClassVar[type[Paginator[Any]]] = BoundedPaginator
    show_full_result_count = False
    actions: Any = None

    def has_add_permission(self, request: HttpRequest, *_: object) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


class RecordAdmin(ReadOnlyAdmin):
    """Each record has a page of the dashboard, named ``object_page``."""

    object_page: str

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return bool(request.user.has_perm(f"{APP}.view_jobrecord"))

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def change_view(self, request: HttpRequest, object_id: str, *_: Any, **__: Any) -> HttpResponse:

        def redirect(page: Page) -> HttpResponse:
            url = page.optional_url(self.object_page, unquote(object_id))
            if not url:
                raise Http404(f"{object_id!r} has no page")
            return HttpResponseRedirect(url)

        return Page(request, self).answer(redirect)


@admin.register(JobRecord)
class JobRecordAdmin(RecordAdmin):
    """The job records, and the URLs of the dashboard."""

    object_page = "job"

    def get_urls(self) -> list[URLPattern]:
        return [*dashboard_urls(self), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, *_: Any, **__: Any) -> HttpResponse:
        return Page(request, self).answer(record_page)


@admin.register(Dashboard)
class DashboardAdmin(RecordAdmin):
    """The entry of the dashboard, whose URLs ``JobRecordAdmin`` has."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.changelist_view)
        return [path("", view, name=f"{APP}_dashboard_changelist")]

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        has_pages = self.admin_site.is_registered(JobRecord)
        return has_pages and super().has_view_permission(request, obj)

    def changelist_view(self, request: HttpRequest, *_: Any, **__: Any) -> HttpResponse:
        return Page(request, self).answer(lambda page: HttpResponseRedirect(page.url("overview")))


@admin.register(WorkflowRecord)
class WorkflowRecordAdmin(RecordAdmin):
    """Redirects to the pages of workflows, whose URLs ``JobRecordAdmin`` has."""

    object_page = "workflow"

    def changelist_view(self, request: HttpRequest, *_: Any, **__: Any) -> HttpResponse:
        return HttpResponseRedirect(Page(request, self).url("workflows"))


@admin.register(OutboxJob)
class OutboxJobAdmin(ReadOnlyAdmin):
    list_display = ("id", "queue", "task", "created_at", "relayed_at", "problem")
    ordering = ("relayed_at", "created_at")
    sortable_by = ()
    list_per_page = 50
    exclude = ("payload",)  # may contain arguments that a task redacts


@admin.register(MirrorState)
class MirrorStateAdmin(ReadOnlyAdmin):
    list_display = (
        "shard", "position", "epoch", "gaps", "gap_at", "left_out", "incomplete", "fault",
        "updated_at", "problem",
    )  # fmt: skip
    sortable_by = ()


@admin.register(Approval)
class ApprovalAdmin(ReadOnlyAdmin):
    """Shown to users who may view approvals; the permission that the job names decides who may
    approve or reject."""

    change_form_template = f"{TEMPLATES}/approval/change_form.html"
    list_display = ("name", "asked", "status", "task", "asked_at", "expires_at", "decided_by")
    list_filter = ("status", "permission")
    search_fields = ("name", "job_id", "task")
    paginator = Paginator  # counts all rows
    ordering = ("-asked_at",)
    sortable_by = ("asked_at",)
    actions = ("approve_selected", "reject_selected")
    fields = (
        "name", "asked", "status", "permission", "job", "task", "queue", "asked_at",
        "expires_at", "decided_at", "decided_by", "comment",
    )  # fmt: skip
    readonly_fields = fields

    class Media:
        js = (SUBMIT_ONCE,)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.decide_view)
        decide = path("<path:object_id>/decide/", view, name=f"{APP}_approval_decide")
        return [decide, *super().get_urls()]

    def has_decide_permission(self, request: HttpRequest) -> bool:
        """Whether the actions are shown: to users who may decide some row, because each names its
        own permission. A POST gets the reason in any case."""
        if request.method == "POST":
            return True
        named = Approval._base_manager.order_by().values_list("permission", flat=True).distinct()
        return any(map(request.user.has_perm, named))

    @admin.display(description="question")
    def asked(self, row: Approval) -> str:
        return escape_bidi(row.question)  # an amount of 19 must not look like 91

    @admin.display(description="job")
    def job(self, row: Approval) -> str:
        try:
            url = reverse(f"{self.admin_site.name}:{APP}_job", args=[row.job_id])
        except NoReverseMatch:
            return row.job_id
        return format_html('<a href="{}">{}</a>', url, row.job_id)

    @admin.action(description="Approve", permissions=["decide"])
    def approve_selected(self, request: HttpRequest, queryset: QuerySet[Approval]) -> None:
        for row in queryset:
            self._decide(request, row, approved=True)

    @admin.action(description="Reject", permissions=["decide"])
    def reject_selected(self, request: HttpRequest, queryset: QuerySet[Approval]) -> None:
        for row in queryset:
            self._decide(request, row, approved=False)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        row = self.get_object(request, unquote(object_id))
        context = {**(extra_context or {}), "max_comment": MAX_COMMENT}
        if row is not None and row.is_open:
            context["may_decide"] = row.may_decide(request.user)
            context["job_end"] = row.job_end()
        return super().change_view(request, object_id, form_url, context)

    def decide_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        row = self.get_object(request, unquote(object_id))
        if row is None or not self.has_view_permission(request, row):
            raise PermissionDenied
        here = reverse(f"{self.admin_site.name}:{APP}_approval_change", args=[row.pk])
        if request.method != "POST":
            return Page(request, self).not_posted(here)
        decision = request.POST.get("decision")
        if decision in ("approve", "reject"):
            comment = storable(request.POST.get("comment", ""))[:MAX_COMMENT]
            self._decide(request, row, approved=decision == "approve", comment=comment)
        else:
            messages.error(request, "No decision was made. Use one of the buttons.")
        return HttpResponseRedirect(here)

    def _decide(
        self, request: HttpRequest, row: Approval, *, approved: bool, comment: str = ""
    ) -> None:
        """Decide a row, with an entry in the admin's log; show why if that is refused."""
        try:
            with transaction.atomic(using=router.db_for_write(Approval)):
                row.decide(request.user, approved=approved, comment=comment)
                text = f"{ApprovalStatus(row.status).value}. {comment}".strip().capitalize()
                self.log_change(request, row, text)
        except (PermissionDenied, RedisQueueError, DatabaseError) as error:
            why = str(error).partition("\n")[0]  # PostgreSQL adds the statement
            messages.error(request, f"The decision was not accepted: {why}.")
        else:
            messages.success(request, f"{row} is {row.status}.")


@admin.register(ApiToken)
class ApiTokenAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Superusers manage all users' tokens, other users only their own: a token has all the
    permissions of its user."""

    list_display = ("name", "user", "hint", "expires_at", "last_used_at", "created_at")
    list_select_related = ("user",)
    search_fields = ("name", "hint")
    raw_id_fields = ("user",)
    ordering = ("-id",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[ApiToken]:
        found = super().get_queryset(request)
        me: Any = request.user
        return found if _is_superuser(request) else found.filter(user=me)

    def get_fields(self, request: HttpRequest, obj: ApiToken | None = None) -> Any:
        if obj is not None:
            return ["name", "user", "expires_at", *TOKEN_FACTS]
        return ["name", *(["user"] if _is_superuser(request) else []), "expires_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: ApiToken | None = None) -> list[str]:
        return [] if obj is None else ["user", *TOKEN_FACTS]

    def save_model(self, request: HttpRequest, obj: ApiToken, form: Any, change: bool) -> None:
        if not change:
            if not _is_superuser(request):
                obj.user = request.user  # type: ignore[assignment]
            request.redisqueue_token = obj.renew()  # type: ignore[attr-defined]
        super().save_model(request, obj, form, change)

    def response_add(
        self, request: HttpRequest, obj: ApiToken, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Show the token in this response only: no message, cookie or row contains it."""
        page, token = Page(request, self), request.redisqueue_token  # type: ignore[attr-defined]
        back = page.url("apitoken_changelist")
        response = page.render(
            "apitoken/created", "API token", opts=self.opts, row=obj, token=token, back=back
        )
        response.headers["Cache-Control"] = "no-store"
        return response


def _is_superuser(request: HttpRequest) -> bool:
    return bool(getattr(request.user, "is_superuser", False))
