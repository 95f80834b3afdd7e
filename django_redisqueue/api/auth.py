"""Who asks, and may they: a session with CSRF, or a token; anything else is refused."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware

from ..conf import APP
from ..models import ApiToken
from .errors import ApiError

SAFE = ("GET", "HEAD")
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="jobs"'}


def identify(request: HttpRequest) -> tuple[Any, bool]:
    """The active user who asks, and whether by a session. Raises ApiError 401.

    A request with a token stands and falls with it: its session is not looked at.
    """
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        found = ApiToken.find(token.strip())
        if found is None:
            raise ApiError(
                401, "invalid_token", "this token is not known, has expired, or its user may not "
                "log in; make another in the admin", headers=CHALLENGE,
            )  # fmt: skip
        found.mark_used()
        return found.user, False
    user = getattr(request, "user", None)  # not there without AuthenticationMiddleware
    if user is None or not user.is_authenticated or not user.is_active:
        raise ApiError(
            401, "not_authenticated", "log in, or send a token made in the admin as "
            '"Authorization: Bearer <token>"', headers=CHALLENGE,
        )  # fmt: skip
    return user, True


def check_csrf(request: HttpRequest) -> None:
    """Raise ApiError 403 unless an unsafe request of a session carries its CSRF token."""
    check = _CsrfCheck(_no_response)
    check.process_request(request)
    check.process_view(request, _no_response, (), {})


def check_permission(user: Any, permission: str) -> None:
    """Raise ApiError 403 unless the user has it."""
    if not user.has_perm(f"{APP}.{permission}"):
        raise ApiError(
            403, "permission_denied", f"this user lacks the permission {APP}.{permission}"
        )


class _CsrfCheck(CsrfViewMiddleware):
    """Django's own check, for views that are exempt from it until their user is known."""

    def _reject(self, request: HttpRequest, reason: str) -> HttpResponse:
        raise ApiError(
            403, "csrf", f"{reason} A request of a session that changes something needs the CSRF "
            "token in its header; one with an API token does not",
        )  # fmt: skip


def _no_response(request: HttpRequest) -> HttpResponse:
    raise AssertionError("only here to stand for a view")
