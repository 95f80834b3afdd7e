"""From a request to its response: authentication by a session with CSRF protection or by a token,
permissions, checks, and errors as JSON."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.csrf import CsrfViewMiddleware
from django.utils.cache import patch_vary_headers
from django.views.decorators.csrf import csrf_exempt

from ..conf import APP
from ..core.ids import check_job_id, check_workflow_id
from ..exceptions import InvalidName, RedisQueueError
from ..health.findings import DATABASE_AWAY
from ..models import ApiToken
from .requests import ApiRequest, check_content_type, read_query
from .responses import ApiError, to_api_error
from .table import Endpoint

logger = logging.getLogger("django_redisqueue.api")

CHECKS = {"id": check_job_id, "flow": check_workflow_id}  # of a path's arguments
View = Callable[..., HttpResponseBase]
SAFE = ("GET", "HEAD")
CHALLENGE = {"WWW-Authenticate": 'Bearer realm="jobs"'}


def view_for(endpoint: Endpoint | None) -> View:
    """The Django view of one path, or of unknown paths below the mount. It checks login and CSRF
    itself, and never runs in a transaction of the request: the answer could not show a job that
    waits for the commit."""

    def view(request: HttpRequest, **path: str) -> HttpResponseBase:
        try:
            response = _answer(endpoint, request, path)
        except ApiError as error:
            response = error.response()
        except RedisQueueError as error:
            response = to_api_error(error).response()
        except DATABASE_AWAY as error:
            #: The HTTP API answered with 503, because the database does not answer or lacks tables
            #: of this app. The text says which; clients see only that the request failed.
            logger.error("%s: %s", type(error).__name__, error)
            message = "the database does not answer; try again"
            response = ApiError(503, "database_unavailable", message).response()
        response.headers["Cache-Control"] = "no-store"
        patch_vary_headers(response, ["Cookie", "Authorization"])
        return response

    made: Any = view
    for alias in connections.settings:
        made = transaction.non_atomic_requests(alias)(made)
    exempt: View = csrf_exempt(login_not_required(made))
    return exempt


def _answer(
    endpoint: Endpoint | None, request: HttpRequest, path: dict[str, str]
) -> HttpResponseBase:
    user, token = identify(request)
    if endpoint is None:
        raise ApiError(404, "not_found", f"the path {request.path} does not exist")
    operation = endpoint.find(request.method or "")
    if operation is None:
        raise ApiError(
            405, "method_not_allowed", f"this path allows {endpoint.allow or 'no method'}, "
            f"not {request.method}", headers={"Allow": endpoint.allow},
        )  # fmt: skip
    if request.method not in SAFE:
        check_content_type(request)
        if token is None:
            check_csrf(request)
    check_permission(user, operation.permission)
    query = read_query(request.GET, operation.query)
    response = operation.view(
        ApiRequest(request, user, _checked(path), query, token.name if token else "")
    )
    if request.method not in SAFE:
        #: A request through the HTTP API changed something. This line records who did what. No
        #: action is needed.
        logger.info("%s %s by user %s", request.method, request.get_full_path(), user.pk)
    return response


def _checked(path: dict[str, str]) -> dict[str, str]:
    for name, value in path.items():
        try:
            CHECKS[name](value)
        except InvalidName as error:
            raise ApiError(404, "not_found", f"the path does not exist: {error}") from None
    return path


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
                401, "invalid_token", "the token is unknown or has expired, or its user may not "
                "log in; create another one in the admin", headers=CHALLENGE,
            )  # fmt: skip
        found.mark_used()
        return found.user, found
    user = getattr(request, "user", None)  # missing without AuthenticationMiddleware
    if user is None or not user.is_authenticated or not user.is_active:
        raise ApiError(
            401, "not_authenticated", "log in, or send a token created in the admin as "
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
            403, "permission_denied", f"your user lacks the permission {APP}.{permission}"
        )


class _CsrfCheck(CsrfViewMiddleware):
    """Django's own check; the views are exempt from the middleware because tokens need none."""

    def _reject(self, request: HttpRequest, reason: str) -> HttpResponse:
        raise ApiError(
            403, "csrf", f"{reason} Within a session, a request that changes something needs the "
            "CSRF token in its header; with an API token it does not",
        )  # fmt: skip


def _no_response(request: HttpRequest) -> HttpResponse:
    raise AssertionError("the check calls no view")
