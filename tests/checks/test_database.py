"""The checks that query the database, and the page that lists all checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.core.management import CommandError, call_command
from django.db import OperationalError, connections

from django_redisqueue.checks import check_database, check_settings, local
from django_redisqueue.conf import get_settings
from django_redisqueue.models import MirrorState
from django_redisqueue.worker import readiness
from django_redisqueue.worker.readiness import needed_aliases
from tests.outbox.tasks import count_once

ROOT = Path(__file__).resolve().parent.parent.parent
MIRROR = {"MIRROR": True}


def ids(messages: list[CheckMessage]) -> list[str]:
    return [str(message.id).rpartition(".")[2] for message in messages]


@pytest.fixture(autouse=True)
def _no_tasks_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exactly_once tasks of other tests would need databases, too."""
    monkeypatch.setattr(readiness, "task_names", list)
    monkeypatch.setattr(local, "_tasks", list)


@pytest.fixture
def sqlite(
    tmp_path: Path, django_db_setup: None, django_db_blocker: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., None]]:
    """Makes the alias ``default`` an SQLite file for this test, with these OPTIONS."""
    own = connections["default"]

    def make(
        *, migrated: bool = True, name: object = tmp_path / "db.sqlite3", **options: Any
    ) -> None:
        settings = {**own.settings_dict, "NAME": str(name), "OPTIONS": options}
        connections["default"] = type(own)(settings, "default")
        if migrated:
            call_command("migrate", "django_redisqueue", verbosity=0)

    with django_db_blocker.unblock():
        yield make
        connections["default"].close()
        connections["default"] = own


GOOD = {"init_command": "PRAGMA journal_mode=WAL;", "transaction_mode": "IMMEDIATE"}


def test_a_good_database(sqlite: Callable[..., None], settings: Any) -> None:
    settings.REDISQUEUE = MIRROR
    sqlite(**GOOD)
    assert check_database() == []


def test_missing_tables(sqlite: Callable[..., None], settings: Any) -> None:
    sqlite(migrated=False)
    settings.REDISQUEUE = {"MIRROR": False}
    assert check_database() == []  # nothing would use them
    for wants in (MIRROR, {"MIRROR": False, "OUTBOX": True}):
        settings.REDISQUEUE = wants
        (message,) = check_database()
        assert message.id == "django_redisqueue.E020"
        assert message.msg.startswith(
            "The database 'default' lacks migrations of django_redisqueue (0001_initial"
        )
        assert "run: manage.py migrate." in message.msg
        assert "workers take no jobs" in str(message.hint)


class NotHere:
    """A router that keeps this app from every database."""

    def allow_migrate(self, alias: str, app: str, **_: Any) -> bool | None:
        return False if app == "django_redisqueue" else None


def test_tables_that_a_router_forbids(
    sqlite: Callable[..., None], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Django nevertheless calls the database migrated."""
    settings.DATABASE_ROUTERS = [NotHere()]
    sqlite(**GOOD)
    settings.REDISQUEUE = MIRROR
    (message,) = check_database()
    assert message.id == "django_redisqueue.E020"
    assert "has no table django_redisqueue_jobrecord, although it was migrated" in message.msg
    settings.REDISQUEUE = {"MIRROR": False}
    assert check_database() == []
    monkeypatch.setattr(local, "_tasks", lambda: [count_once])
    (message,) = check_database()
    assert "has no table django_redisqueue_receipt" in message.msg
    settings.DATABASE_ROUTERS = []
    call_command("migrate", "django_redisqueue", "zero", fake=True, verbosity=0)
    call_command("migrate", "django_redisqueue", verbosity=0)
    assert check_database() == []


def test_a_database_that_is_down(
    sqlite: Callable[..., None], settings: Any, tmp_path: Path
) -> None:
    settings.REDISQUEUE = MIRROR
    sqlite(migrated=False, name=str(tmp_path / "no folder" / "db.sqlite3"))
    (message,) = check_database()
    assert message.id == "django_redisqueue.E020"
    assert "The database 'default' does not answer (unable to open" in message.msg


def test_a_database_that_ends_between_two_checks(
    sqlite: Callable[..., None], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that starts at that moment must not end: it waits for its tables."""

    def end() -> None:
        monkeypatch.setattr(local, "table_problem", lambda alias, _: f"no answer of {alias!r}")
        raise OperationalError("server closed the connection unexpectedly")

    settings.REDISQUEUE = MIRROR
    sqlite(**GOOD)
    monkeypatch.setattr(local, "_mirror", end)
    (message,) = check_database()
    assert message.id == "django_redisqueue.E020"
    assert "No answer of 'default'" in message.msg


NO_ENGINE = r"DATABASES has no engine for 'default', so .* nowhere .*\"MIRROR\": False"


def test_a_project_without_a_database(
    settings: Any,
    monkeypatch: pytest.MonkeyPatch,
    django_db_setup: None,
    django_db_blocker: Any,
) -> None:
    own = connections["default"]
    dummy = {"ENGINE": "django.db.backends.dummy"}
    monkeypatch.setitem(connections.settings, "default", {**own.settings_dict, **dummy})
    connections["default"] = connections.create_connection("default")
    try:
        with django_db_blocker.unblock():
            settings.REDISQUEUE = {"MIRROR": False, "OUTBOX": True}
            assert check_database() == check_settings() == []
            assert needed_aliases(get_settings()) == []  # a worker does not wait for it
            settings.REDISQUEUE = MIRROR
            (message,) = check_database()
            assert check_settings() == []  # a process that only enqueues needs no database
            for command in ("runworker", "bridgeevents"):
                with pytest.raises(CommandError, match=NO_ENGINE):
                    call_command(command, skip_checks=True)
    finally:
        connections["default"] = own
    assert message.id == "django_redisqueue.E020"
    assert "does not answer (settings.DATABASES is improperly configured." in message.msg
    assert 'REDISQUEUE["MIRROR"]' in str(message.hint)


def test_a_mirror_that_has_stopped(sqlite: Callable[..., None], settings: Any) -> None:
    settings.REDISQUEUE = MIRROR
    sqlite(**GOOD)
    for shard in range(2):  # both aliases have the same server, which is named once
        MirrorState.objects.create(shard=shard, problem="this is another Redis than before")
    (message,) = check_database()
    assert message.id == "django_redisqueue.E021"
    assert message.msg == "The mirror has stopped: this is another Redis than before"
    assert "reapqueue --accept-redis" in str(message.hint)


@pytest.mark.parametrize(
    ("options", "lacks", "has"),
    [
        ({}, ["journal_mode=WAL", '"transaction_mode": "IMMEDIATE"'], []),
        ({"transaction_mode": "IMMEDIATE"}, ["journal_mode=WAL"], ["transaction_mode"]),
        ({"init_command": "PRAGMA journal_mode=WAL;"}, ["transaction_mode"], ["journal_mode"]),
    ],
)
def test_sqlite_for_one_writer(
    sqlite: Callable[..., None],
    settings: Any,
    options: dict[str, Any],
    lacks: list[str],
    has: list[str],
) -> None:
    settings.REDISQUEUE = MIRROR
    sqlite(**options)
    (message,) = check_database()
    assert message.id == "django_redisqueue.W022"
    assert "The SQLite database 'default', which the mirror writes to" in message.msg
    assert all(word in str(message.hint) for word in lacks)
    assert not any(word in str(message.hint) for word in has)


def test_sqlite_without_the_mirror_or_in_memory_is_fine(
    sqlite: Callable[..., None], settings: Any
) -> None:
    settings.REDISQUEUE = {"MIRROR": False, "OUTBOX": True}
    sqlite()
    assert check_database() == []
    settings.REDISQUEUE = MIRROR
    sqlite(name=":memory:")
    assert check_database() == []


def test_invalid_settings_are_reported_elsewhere(settings: Any) -> None:
    settings.REDISQUEUE = {"LAESE": 1}
    assert check_database() == []


def test_it_is_a_deploy_check(sqlite: Callable[..., None], settings: Any) -> None:
    settings.REDISQUEUE = {**MIRROR, "CONNECTION": {"URL": "unix:///nonexistent.sock"}}
    sqlite(migrated=False)
    assert "E020" not in ids(run_checks(tags=["redisqueue"]))
    assert "E020" in ids(run_checks(tags=["redisqueue"], include_deployment_checks=True))


# --- the page -------------------------------------------------------------------------------------


def made_in_the_code() -> set[str]:
    found = set()
    for path in (ROOT / "django_redisqueue").rglob("*.py"):
        code = path.read_text()
        if not re.search(r"make_error|make_warning|django_redisqueue\.[EW]\d", code):
            continue  # parsing it would take a hundred times as long
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                kind = {"make_error": "E", "make_warning": "W"}.get(node.func.id)
                if kind and isinstance(node.args[0], ast.Constant):
                    found.add(f"django_redisqueue.{kind}{node.args[0].value:03}")
            elif isinstance(node, ast.keyword) and node.arg == "id":  # of a check created elsewhere
                value = node.value.value if isinstance(node.value, ast.Constant) else ""
                found |= set(re.findall(r"^django_redisqueue\.[EW]\d{3}$", str(value)))
    return found


def test_the_page_lists_every_check_and_no_other() -> None:
    page = (ROOT / "docs" / "checks.md").read_text()
    listed = re.findall(r"^\| `(django_redisqueue\.[EW]\d{3})`", page, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == made_in_the_code()
    numbers = [one[-3:] for one in listed]
    assert len(numbers) == len(set(numbers)), "a number stands for one check"
