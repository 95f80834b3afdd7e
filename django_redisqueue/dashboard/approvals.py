"""Approvals in the admin: what running jobs ask, with the buttons of those who may decide."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db import router, transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.html import format_html

from ..conf import APP
from ..core.statuses import ApprovalStatus
from ..exceptions import RedisQueueError
from ..models import Approval
from .pages import TEMPLATES

if TYPE_CHECKING:
    ApprovalAdminBase = admin.ModelAdmin[Approval]
else:
    ApprovalAdminBase = admin.ModelAdmin

MAX_COMMENT = 2000  # characters


@admin.register(Approval)
class ApprovalAdmin(ApprovalAdminBase):
    """Whoever may view approvals sees them; the permission that a job names decides who may
    approve or reject."""

    change_form_template = f"{TEMPLATES}/approval/change_form.html"
    list_display = ("name", "question", "status", "task", "asked_at", "expires_at", "decided_by")
    list_filter = ("status", "permission")
    search_fields = ("name", "job_id", "task")
    ordering = ("-asked_at",)
    sortable_by = ("asked_at",)
    show_full_result_count = False
    actions = ("approve_selected", "reject_selected")
    fields = (
        "name", "question", "status", "permission", "job", "task", "queue", "asked_at",
        "expires_at", "decided_at", "decided_by", "comment",
    )  # fmt: skip
    readonly_fields = fields

    def has_add_permission(self, request: HttpRequest, *_: object) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Approval | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Approval | None = None) -> bool:
        return False

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.decide_view)
        decide = path("<path:object_id>/decide/", view, name=f"{APP}_approval_decide")
        return [decide, *super().get_urls()]

    @admin.display(description="job")
    def job(self, row: Approval) -> str:
        try:
            url = reverse(f"{self.admin_site.name}:{APP}_job", args=[row.job_id])
        except NoReverseMatch:
            return row.job_id
        return format_html('<a href="{}">{}</a>', url, row.job_id)

    @admin.action(description="Approve", permissions=["view"])
    def approve_selected(self, request: HttpRequest, queryset: QuerySet[Approval]) -> None:
        for row in queryset:
            self._decide(request, row, approved=True)

    @admin.action(description="Reject", permissions=["view"])
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
        """What the buttons of a row's page send."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        row = self.get_object(request, unquote(object_id))
        if row is None or not self.has_view_permission(request, row):
            raise PermissionDenied
        decision = request.POST.get("decision")
        if decision in ("approve", "reject"):
            comment = request.POST.get("comment", "")[:MAX_COMMENT]
            self._decide(request, row, approved=decision == "approve", comment=comment)
        else:
            messages.error(request, "Nothing was decided: use one of the buttons.")
        page = f"{self.admin_site.name}:{APP}_approval_change"
        return HttpResponseRedirect(reverse(page, args=[row.pk]))

    def _decide(
        self, request: HttpRequest, row: Approval, *, approved: bool, comment: str = ""
    ) -> None:
        """Decide a row, with an entry in the admin's log; say why if that is refused."""
        try:
            with transaction.atomic(using=router.db_for_write(Approval)):
                row.decide(request.user, approved=approved, comment=comment)
                text = f"{ApprovalStatus(row.status).value}. {comment}".strip().capitalize()
                self.log_change(request, row, text)
        except (PermissionDenied, RedisQueueError) as error:
            messages.error(request, f"Not decided: {error}.")
        else:
            messages.success(request, f"{row} is {row.status}.")
