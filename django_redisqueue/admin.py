"""The admin: the dashboard with the records of jobs, the outbox, the mirror's state, and the
tokens of the HTTP API.

Only Django imports this, when ``django.contrib.admin`` is installed. On an AdminSite of your own:
``site.register(JobRecord, JobRecordAdmin)``, and ``site.register(Dashboard, DashboardAdmin)`` for
its entry in the list of apps.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse

from .conf import APP
from .dashboard.approvals import ApprovalAdmin
from .dashboard.pages import Page
from .dashboard.periodic import PeriodicJobAdmin
from .dashboard.records_page import record_page
from .dashboard.urls import dashboard_urls
from .models import ApiToken, Dashboard, JobRecord, MirrorState, OutboxJob, WorkflowRecord

__all__ = [
    "ApiTokenAdmin",
    "ApprovalAdmin",
    "DashboardAdmin",
    "JobRecordAdmin",
    "MirrorStateAdmin",
    "OutboxJobAdmin",
    "PeriodicJobAdmin",
    "WorkflowRecordAdmin",
]

MAX_COUNT = 1000  # rows that a list counts at most
TOKEN_TEMPLATE = "admin/django_redisqueue/apitoken/created.html"
TOKEN_FACTS = ("hint", "created_at", "last_used_at")


if TYPE_CHECKING:
    BasePaginator = Paginator[Any]
    BaseAdmin = admin.ModelAdmin[Any]
else:
    BasePaginator = Paginator
    BaseAdmin = admin.ModelAdmin


class BoundedPaginator(BasePaginator):
    """Counts at most MAX_COUNT rows, so that a list costs the same however long it is."""

    @cached_property
    def count(self) -> int:
        return cast("QuerySet[Any]", self.object_list)[:MAX_COUNT].count()


class ReadOnlyAdmin(BaseAdmin):
    """Rows that only the package writes."""

    paginator = BoundedPaginator
    show_full_result_count = False
    actions = None

    def has_add_permission(self, request: HttpRequest, *_: object) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


@admin.register(JobRecord)
class JobRecordAdmin(ReadOnlyAdmin):
    """The records, and the URLs of the dashboard."""

    def get_urls(self) -> list[URLPattern]:
        return [*dashboard_urls(self), *super().get_urls()]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        page = Page(request, self)
        page.require("view_jobrecord")
        return record_page(page)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Redirect to the page of the job."""
        page = Page(request, self)
        page.require("view_jobrecord")
        return _redirect_to(page, "job", unquote(object_id))


@admin.register(Dashboard)
class DashboardAdmin(ReadOnlyAdmin):
    """The entry of the dashboard, whose URLs ``JobRecordAdmin`` has."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.changelist_view)
        return [path("", view, name=f"{APP}_dashboard_changelist")]

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        has_pages = self.admin_site.is_registered(JobRecord)
        return has_pages and request.user.has_perm(f"{APP}.view_jobrecord")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        page = Page(request, self)
        page.require("view_jobrecord")
        return page.redirect(page.url("overview"))


@admin.register(WorkflowRecord)
class WorkflowRecordAdmin(ReadOnlyAdmin):
    """Redirects to the pages of workflows, whose URLs ``JobRecordAdmin`` has."""

    def has_view_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return bool(request.user.has_perm(f"{APP}.view_jobrecord"))

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        page = Page(request, self)
        return page.redirect(page.url("workflows"))

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        page = Page(request, self)
        return _redirect_to(page, "workflow", unquote(object_id))


def _redirect_to(page: Page, name: str, object_id: str) -> HttpResponse:
    try:
        return page.redirect(page.url(name, object_id))
    except NoReverseMatch:
        raise Http404(f"{object_id!r} has no page") from None


@admin.register(OutboxJob)
class OutboxJobAdmin(ReadOnlyAdmin):
    """Jobs that wait to be relayed to Redis."""

    list_display = ("id", "queue", "task", "created_at", "relayed_at", "problem")
    ordering = ("relayed_at", "created_at")
    sortable_by = ()
    list_per_page = 50
    exclude = ("payload",)  # it may contain arguments that a task redacts


@admin.register(MirrorState)
class MirrorStateAdmin(ReadOnlyAdmin):
    """The position of the mirror, and its problems."""

    list_display = (
        "shard", "position", "epoch", "gaps", "gap_at", "left_out", "incomplete", "fault",
        "updated_at", "problem",
    )  # fmt: skip
    sortable_by = ()


@admin.register(ApiToken)
class ApiTokenAdmin(BaseAdmin):
    """Superusers manage everybody's tokens, other users only their own: a token has all the
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
        """Show the token, in this response only: no message, cookie or row contains it."""
        site = self.admin_site
        request.current_app = site.name
        response = TemplateResponse(request, TOKEN_TEMPLATE, {
            **site.each_context(request),
            "title": "API token",
            "opts": self.opts,
            "row": obj,
            "token": request.redisqueue_token,  # type: ignore[attr-defined]
            "back": reverse(f"{site.name}:django_redisqueue_apitoken_changelist"),
        })  # fmt: skip
        response.headers["Cache-Control"] = "no-store"
        return response


def _is_superuser(request: HttpRequest) -> bool:
    return bool(getattr(request.user, "is_superuser", False))
