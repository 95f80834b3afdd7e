"""What all pages share: who asks, on which AdminSite, what they may do, and how a page is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.http.response import HttpResponseBase
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.http import urlencode

from ..conf import APP
from ..connection import producer_link
from ..store.reads import Reads
from ..texts import printable

TEMPLATES = f"admin/{APP}"
POLL = 2000  # ms between an answer and a page's next question


class Rendered(TemplateResponse):
    """A page that can be sent, whatever texts stand in it."""

    @property
    def rendered_content(self) -> str:
        return printable(super().rendered_content)


@dataclass(frozen=True, slots=True)
class Page:
    """One request for a page of one AdminSite."""

    request: HttpRequest
    admin: ModelAdmin[Any]

    @property
    def reads(self) -> Reads:
        return Reads(producer_link())

    @property
    def user_id(self) -> int:
        """The login's guard has seen to it that there is one."""
        assert self.request.user.pk is not None
        return self.request.user.pk

    def may(self, permission: str) -> bool:
        """True when the user has that permission of JobRecord."""
        return bool(self.request.user.has_perm(f"{APP}.{permission}"))

    def require(self, permission: str) -> None:
        if not self.may(permission):
            raise PermissionDenied(f"this needs the permission {APP}.{permission}")

    def number(self, name: str, default: int) -> int:
        """A whole number of the query; the default for what is none, or too long to be one."""
        text = self.request.GET.get(name, "")
        return int(text) if text.isdecimal() and len(text) < 9 else default

    def url(self, name: str, /, *args: object, **query: object) -> str:
        """The address of a page of this very site."""
        found = reverse(f"admin:{APP}_{name}", args=args, current_app=self.admin.admin_site.name)
        given = {key: str(value) for key, value in query.items() if value not in ("", None)}
        return f"{found}?{urlencode(given)}" if given else found

    def tell(self, level: int, text: str) -> None:
        """A message on the page that comes next."""
        messages.add_message(self.request, level, text)

    def go(self, address: str) -> HttpResponse:
        return HttpResponseRedirect(address)

    def draw(self, template: str, title: str, **context: Any) -> TemplateResponse:
        """A whole page. (A middleware may add to its context until it is rendered.)"""
        site = self.admin.admin_site
        self.request.current_app = site.name
        return Rendered(
            self.request,
            f"{TEMPLATES}/{template}.html",
            {**site.each_context(self.request), "title": title, "page": self, **context},
        )

    def fragments(self, names: Sequence[str], **context: Any) -> dict[str, str]:
        """Parts of a page by the id of the element that they replace."""
        return {
            f"drq-{name}": printable(
                render_to_string(
                    f"{TEMPLATES}/_{name}.html", {"page": self, **context}, self.request
                )
            )
            for name in names
        }

    def live(self, name: str, /, *args: object, **query: object) -> dict[str, Any]:
        """What a page's script has to know to ask for its parts."""
        return {"url": self.url(name, *args, live=1, **query), "poll": POLL}

    def answer(self, names: Sequence[str], **context: Any) -> JsonResponse:
        """Parts of a page for its script, which asks again and again."""
        return JsonResponse({"fragments": self.fragments(names, **context)})


View = Callable[..., HttpResponseBase]


def route(admin: ModelAdmin[Any], address: str, view: View, name: str) -> URLPattern:
    """An address of the dashboard: behind the site's login, for who may view job records."""

    def guarded(request: HttpRequest, **arguments: Any) -> HttpResponseBase:
        page = Page(request, admin)
        page.require("view_jobrecord")
        return view(page, **arguments)

    return path(address, admin.admin_site.admin_view(guarded), name=f"{APP}_{name}")
