"""Figures, times and links in the dashboard's templates. A filter gets '' for a variable that does
not exist, and treats it as None."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Literal

from django import template
from django.template import Context
from django.utils.dateformat import format as format_date
from django.utils.html import conditional_escape, format_html
from django.utils.timezone import is_aware, localtime

from ..core import formatting
from ..core.clock import from_ms
from ..core.errors import TracebackPart, traceback_parts
from ..core.text import escape_bidi
from ..health.policies import limit_use
from ..health.report import paused_ago
from ..metrics.histograms import Sums, percentile

register = template.Library()
register.filter(escape_bidi)
register.filter(formatting.number)
register.filter(limit_use)
register.filter(paused_ago)

Missing = Literal[""] | None


@register.filter
def duration(ms: float | Missing) -> str:
    return formatting.duration(None if ms == "" else ms)


@register.filter
def rate(per_second: float | Missing) -> str:
    return formatting.rate(None if per_second == "" else per_second)


@register.filter
def size(count: int | Missing) -> str:
    """A number of bytes; 0 means that the size is unknown."""
    return formatting.size(count) if count else formatting.NOTHING


@register.filter
def age(since_ms: int | Missing, now_ms: int) -> str:
    """How long ago an instant was, or ''."""
    if since_ms is None or since_ms == "":
        return ""
    return formatting.duration(max(0, now_ms - since_ms))


@register.filter
def left(until_ms: int | Missing, now_ms: int) -> str:
    """How long it is until an instant, or ''."""
    return "" if until_ms is None or until_ms == "" else age(now_ms, until_ms)


@register.filter
def waited(sums: Sums, percent: int) -> str:
    return formatting.duration(percentile(sums.wait, percent / 100))


@register.filter
def ran(sums: Sums, percent: int) -> str:
    return formatting.duration(percentile(sums.run, percent / 100))


@register.filter
def pairs(mapping: Mapping[str, str] | Missing) -> Iterable[tuple[str, str]]:
    """Replaces ``.items``, which a template reads as the key with that name if there is one."""
    return mapping.items() if mapping else ()


@register.filter
def frames(traceback: str) -> Iterator[TracebackPart]:
    """The parts of a traceback. A long one loses its beginning: the error is at the end."""
    if len(traceback) > formatting.LONG:
        traceback = f"…\n{traceback[-formatting.LONG :]}"
    return traceback_parts(escape_bidi(traceback))


@register.filter
def moment(at: datetime | int | Missing) -> str:
    """An instant (a datetime, or milliseconds) as a ``time`` element in the current time zone, or
    ''. The script page.js makes it relative."""
    found = from_ms(at) if isinstance(at, int) else at
    if not found:
        return ""
    local = localtime(found) if is_aware(found) else found
    text = format_date(local, "Y-m-d H:i:s")
    return format_html('<time datetime="{}">{}</time>', local.isoformat(), text)


@register.simple_tag(takes_context=True)
def link(context: Context, name: str, *args: object, text: str = "") -> str:
    """A link to a page of the dashboard, or only its text on an AdminSite without that page. The
    text defaults to the first argument."""
    shown = text or str(args[0])
    url = context["page"].optional_url(name, *args)
    return format_html('<a href="{}">{}</a>', url, shown) if url else conditional_escape(shown)
