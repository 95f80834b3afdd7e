"""``path("jobs", include("django_redisqueue.api.urls"))``; every path works with or without a
trailing slash. Patterns begin with a group, because Django warns about those that begin with a
slash."""

from __future__ import annotations

import re

from django.urls import URLPattern, re_path

from .dispatch import view_for
from .openapi import DOCUMENT
from .table import ENDPOINTS

app_name = "redisqueue_api"


def _pattern(path: str) -> str:
    return re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", rf"(?:{re.escape(path)})/?$")


def _name(path: str) -> str:
    one = path.strip("/").replace("workflows/{flow}", "workflow").replace("{id}", "job")
    return one.replace("/", "-") or "jobs"


urlpatterns: list[URLPattern] = [
    *(
        re_path(_pattern(endpoint.path), view_for(endpoint), name=_name(endpoint.path))
        for endpoint in (DOCUMENT, *ENDPOINTS)
    ),
    re_path(r"(?:/.*)$", view_for(None)),
]
