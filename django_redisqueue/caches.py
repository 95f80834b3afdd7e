"""Entries of ``CACHES`` that are in Redis: those of django-redis and of Django's own RedisCache."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit


def locations(cache: Mapping[str, Any]) -> list[str]:
    """The URLs of an entry, the primary's first."""
    location = cache.get("LOCATION") or ""
    found = re.split("[,;]", location) if isinstance(location, str) else location
    return [str(url).strip() for url in found]


def options_of(cache: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an entry's connections, in small letters."""
    options = cache.get("OPTIONS") or {}
    given = {**(options.get("CONNECTION_POOL_KWARGS") or {}), **options}
    return {name.lower(): value for name, value in given.items()}


def primary_url(cache: Mapping[str, Any]) -> str:
    """The URL of an entry's primary, with the credentials and the database that its options name.
    As in redis-py, what the URL says itself has precedence."""
    url, options = locations(cache)[0], options_of(cache)
    user, password = options.get("username") or "", options.get("password") or ""
    if (user or password) and "@" not in url:
        scheme, _, rest = url.partition("://")
        # They are no part of a URL there, so they may hold what a URL must not.
        url = f"{scheme}://{quote(str(user), safe='')}:{quote(str(password), safe='')}@{rest}"
    if options.get("db") is not None and not _names_database(url):
        url += f"{'&' if '?' in url else '?'}db={options['db']}"
    return url


def _names_database(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:  # whoever connects says what is wrong with it
        return True
    return "db" in parse_qs(parts.query) or (parts.scheme != "unix" and parts.path.strip("/") != "")
