"""A client of the API for tests."""

from __future__ import annotations

import json
from typing import Any

from django.test import Client

from django_redisqueue.api.openapi import OTHER_CODES
from django_redisqueue.api.responses import FAULTS

CODES = {*OTHER_CODES, *(fault.code for fault in FAULTS)}


class Api:
    """Calls below ``/jobs``. Without a token they use the login of ``client``."""

    def __init__(self, client: Client, token: str = "") -> None:
        self.client = client
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str, **headers: str) -> Any:
        return self.call("GET", path, **headers)

    def delete(self, path: str, **headers: str) -> Any:
        return self.call("DELETE", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        """``body`` is a value to send as JSON, or text or bytes to send unchanged."""
        data = body if isinstance(body, str | bytes) else json.dumps(body)
        return self.call("POST", path, "" if body is None else data, **headers)

    def call(
        self,
        method: str,
        path: str,
        data: str | bytes = "",
        *,
        content_type: str = "",
        **headers: str,
    ) -> Any:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        kind = content_type or ("application/json" if data else "")
        return self.client.generic(
            method, f"/jobs{path}", data, content_type=kind, headers={**self.headers, **named}
        )


def error(response: Any, status: int) -> dict[str, str]:
    """The error in a reply that has this status."""
    assert response.status_code == status, response.content
    assert response["Content-Type"] == "application/json"
    found: dict[str, str] = response.json()["error"]
    assert set(found) <= {"code", "message", "field"}
    assert found["code"] in CODES, "the schema does not list it"
    return found
