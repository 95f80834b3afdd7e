"""Answers of all shards, which name those that are missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import JsonResponse

from ..broker.shards import AllShards
from .errors import to_api_error
from .rendering import INTEGER, TEXT, Schema, an_object

MISSING = "missing_shards"


def answer(shards: AllShards, document: Mapping[str, Any]) -> JsonResponse:
    """The document, which has the field ``missing_shards`` if it lacks what some shards have."""
    missing = missing_json(shards)
    return JsonResponse({**document, MISSING: missing} if missing else document)


def missing_json(shards: AllShards) -> list[dict[str, Any]]:
    """The shards without an answer, each with the code of its error."""
    return [
        {"shard": shard, "error": to_api_error(error).code}
        for shard, error in sorted(shards.missing.items())
    ]


def partial_object(**properties: Schema) -> Schema:
    """The schema of such an answer."""
    made = an_object(**properties)
    missing: Schema = {
        "type": "array",
        "items": an_object(shard=INTEGER, error=TEXT),
        "description": "Only if some shards did not answer: the rest is without what they have.",
    }
    return {**made, "properties": {**made["properties"], MISSING: missing}}
