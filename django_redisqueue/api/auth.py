"""Authentication by a session with CSRF protection or by a token; everything else is refused."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.middleware.csrf import CsrfViewMiddleware

from ..conf import APP
from ..models import ApiToken
from .errors import ApiError

SAFE = ("GET", "HEAD")
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="jobs"'}


def identify(request: HttpRequest) -> tuple[Any, ApiToken | None]:
    """The active user, and the token that authenticates them; None for a session. Raises ApiError
    401.

    If a request has a token, only the token counts: its session is ignored.
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
        return found.user, found
    user = getattr(request, "user", None)  # missing without AuthenticationMiddleware
    if user is None or not user.is_authenticated or not user.is_active:
        raise ApiError(
            401, "not_authenticated", "log in, or send a token made in the admin as "
            '"Authorization: Bearer <token>"', headers=CHALLENGE,
        )  # fmt: skip
    return user, None


def check_csrf(request: HttpRequest) -> None:
    """Check the CSRF token of an unsafe request of a session. Raises ApiError 403."""
    check = _CsrfCheck(_no_response)
    check.process_request(request)
    check.process_view(request, _no_response, (), {})


def check_permission(user: Any, permission: str) -> None:
    """Raises ApiError 403."""
    if not user.has_perm(f"{APP}.{permission}"):
        raise ApiError(
            403, "permission_denied", f"this user lacks the permission {APP}.{permission}"
        )


class _CsrfCheck(CsrfViewMiddleware):
    """Django's own check; the views are exempt from the middleware because tokens need none."""

    def _reject(self, request: HttpRequest, reason: str) -> HttpResponse:
        raise ApiError(
            403, "csrf", f"{reason} A request of a session that changes something needs the CSRF "
            "token in its header; one with an API token does not",
        )  # fmt: skip


def _no_response(request: HttpRequest) -> HttpResponse:
    raise AssertionError("the check calls no view")
