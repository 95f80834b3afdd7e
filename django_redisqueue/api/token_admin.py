"""Tokens of the HTTP API in the admin: create (shown once), watch, and revoke by deleting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse

from ..models import ApiToken

if TYPE_CHECKING:
    TokenAdminBase = admin.ModelAdmin[ApiToken]
else:
    TokenAdminBase = admin.ModelAdmin

TEMPLATE = "admin/django_redisqueue/apitoken/created.html"
FACTS = ("hint", "created_at", "last_used_at")


@admin.register(ApiToken)
class ApiTokenAdmin(TokenAdminBase):
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
            return ["name", "user", "expires_at", *FACTS]
        return ["name", *(["user"] if _is_superuser(request) else []), "expires_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: ApiToken | None = None) -> list[str]:
        return [] if obj is None else ["user", *FACTS]

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
        response = TemplateResponse(request, TEMPLATE, {
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
