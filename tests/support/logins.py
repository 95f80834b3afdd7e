"""Browsers without a screen that are logged in."""

from __future__ import annotations

from typing import Any

from django.test import Client


def logged_in(user: Any, **options: Any) -> Client:
    client = Client(**options)
    client.force_login(user)
    return client
