"""The OpenAPI document is valid, complete, and describes what the API does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from django.test import Client
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from redis import Redis

from django_redisqueue import chain
from django_redisqueue.api.openapi import DOCUMENT, build
from django_redisqueue.api.table import ENDPOINTS
from django_redisqueue.models import ApiToken
from tests.app import tasks
from tests.app.wsgi import application
from tests.support.manual_worker import ManualWorker
from tests.support.shards import keys_of

from .api import Api
from .tasks import open_task

CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
]
OPERATIONS = [
    (method, endpoint.path) for endpoint in (DOCUMENT, *ENDPOINTS) for method in endpoint.operations
]
NAMES = {path.split("/")[1] for _, path in OPERATIONS if path} - {"{id}"}


@pytest.fixture
def document(api: Api) -> dict[str, Any]:
    found: dict[str, Any] = api.get("/openapi.json").json()
    return found


def test_the_document_is_valid(document: dict[str, Any]) -> None:
    from openapi_spec_validator import OpenAPIV31SpecValidator

    OpenAPIV31SpecValidator(document).validate()


def test_the_document_has_every_operation_once(document: dict[str, Any]) -> None:
    described = [
        (method.upper(), path.removeprefix("/jobs"), operation["operationId"])
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    assert sorted((method, path) for method, path, _ in described) == sorted(OPERATIONS)
    assert len({name for _, _, name in described}) == len(described)


def test_the_document_contains_the_url_of_the_api(api: Api, document: dict[str, Any]) -> None:
    assert document["servers"] == [{"url": "/"}]
    assert "/jobs/stats" in document["paths"]
    below = build("/internal/api", "/queue", [])
    assert below["servers"] == [{"url": "/internal/api"}]
    assert {"/queue", "/queue/{id}/retry"} <= below["paths"].keys()


def test_task_names_are_only_shown_to_users_who_may_enqueue_them(
    make_user: Any, document: dict[str, Any], queue_settings: Any
) -> None:
    named = document["components"]["schemas"]["NewJob"]["properties"]["task"]["enum"]
    assert open_task.name in named
    assert tasks.noop.name not in named
    reader = ApiToken.create(make_user("bob", "view_jobrecord"), "t")[1]
    schemas = Api(Client(), reader).get("/openapi.json").json()["components"]["schemas"]
    assert "enum" not in schemas["NewJob"]["properties"]["task"]


@pytest.fixture
def ids(manual_worker: ManualWorker, redis: Redis, queue_settings: dict[str, Any]) -> list[str]:
    """One job of each kind, including one that cannot be read."""
    completed = tasks.noop.enqueue()
    manual_worker.complete_one('{"a": [1, null]}')
    failed = tasks.add.enqueue(1, b="é")
    manual_worker.fail_one()
    running = tasks.noop.enqueue()
    manual_worker.claim_one()
    queued, broken = tasks.noop.enqueue_many([(1,), (2,)])
    redis.hset(keys_of().job(broken.id), "payload", "{")
    later = tasks.noop.using(run_after=60).enqueue()
    return [job.id for job in (completed, failed, running, queued, broken, later)]


@pytest.fixture
def workflows(manual_worker: ManualWorker) -> list[str]:
    """A running workflow, a paused one, and one that has ended."""
    made = [chain(tasks.noop.s(), tasks.noop.s()) for _ in range(3)]
    made[1].pause()
    made[2].cancel()
    return [workflow.id for workflow in made]


@pytest.fixture(scope="module")
def loaded() -> dict[str, Any]:
    return {}


@pytest.fixture
def open_connections() -> Iterator[None]:
    """A request does not close the connection of the test's transaction, as with Django's client.
    (SQLite's connections in memory are never closed.)"""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.fixture
def schema(
    loaded: dict[str, Any], token: str, queue_settings: dict[str, Any], open_connections: None
) -> Any:
    """The API's own schema. Shared by all tests, because it caches what is expensive to compute."""
    import schemathesis  # half a second, in each process of the suite, if it were at module level

    if not loaded:
        login = {"Authorization": f"Bearer {token}"}
        url = "/jobs/openapi.json"
        loaded["schema"] = schemathesis.openapi.from_wsgi(url, application, headers=login)
    return loaded["schema"]


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=[f"{m} {p}" for m, p in OPERATIONS])
def test_the_api_behaves_as_documented(
    schema: Any, token: str, ids: list[str], workflows: list[str],
    method: str, path: str, mode: str,
) -> None:  # fmt: skip
    from schemathesis import GenerationMode, checks

    login = {"Authorization": f"Bearer {token}"}
    held = [getattr(checks, name) for name in CHECKS]
    operation = schema[f"/jobs{path}"][method]

    @settings(
        max_examples=10 if method == "POST" else 5,
        derandomize=True,
        database=None,
    )
    @given(
        operation.as_strategy(GenerationMode(mode)),
        st.none() | st.sampled_from(ids),
        st.none() | st.sampled_from(workflows),
    )
    def fuzz(case: Any, known: str | None, workflow: str | None) -> None:
        if known and "{id}" in path:
            case.path_parameters = {"id": known}
        if workflow and "{flow}" in path:
            case.path_parameters = {"flow": workflow}
        assume((case.path_parameters or {}).get("id") not in NAMES)  # the path of another operation
        case.validate_response(case.call(headers=login), checks=held)

    fuzz()
