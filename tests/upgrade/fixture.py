"""The data of the previous version: the contents of Redis and the database (see
make_fixture.py)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django.apps.registry import Apps
from django.core.management.color import no_style
from django.db import connection
from redis import Redis

from tests.gauntlet.evidence import READ_PAGE

FILE = Path(__file__).with_name("version_0_1_0.json")
TABLES = "0003_outbox_relayed_to"  # the last migration of the previous version
INSTANT = re.compile(r"(?<!\d)1[4-9]\d{11}(?!\d)")  # in ms, also inside an id
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


@dataclass(frozen=True, slots=True)
class Fixture:
    """``names``: the ids of jobs by name; ``keys``: type, value and TTL in ms by key."""

    names: dict[str, str]
    keys: dict[str, tuple[str, Any, int]]
    rows: list[dict[str, Any]]


def load(age: timedelta) -> Fixture:
    """The fixture with all its times shifted, as if it was made ``age`` ago."""
    text = FILE.read_text(encoding="utf-8")
    made = json.loads(text)["made_ms"]
    shift = time.time_ns() // 1_000_000 - made - round(age.total_seconds() * 1000)

    def moment(found: re.Match[str]) -> str:
        moved = datetime.fromisoformat(found[0]) + timedelta(milliseconds=shift)
        return moved.astimezone(UTC).isoformat().replace("+00:00", "Z")

    text = INSTANT.sub(lambda found: str(int(found[0]) + shift), text)
    found = json.loads(MOMENT.sub(moment, text))
    return Fixture(found["names"], found["keys"], found["rows"])


def restore_keys(redis: Redis, keys: dict[str, tuple[str, Any, int]]) -> None:
    """Write the keys as they were."""
    for name, (kind, value, ttl) in keys.items():
        if kind == "stream":
            for entry_id, parts in value:
                redis.execute_command("XADD", name, entry_id, *parts)
        else:
            WRITERS[kind](redis, name, value)
        if ttl > 0:
            redis.pexpire(name, ttl)


WRITERS: dict[str, Callable[[Redis, str, Any], Any]] = {
    "hash": lambda redis, name, value: redis.execute_command("HSET", name, *value),
    "list": lambda redis, name, value: redis.rpush(name, *value),
    "set": lambda redis, name, value: redis.sadd(name, *value),
    "string": lambda redis, name, value: redis.set(name, value),
    "zset": lambda redis, name, value: redis.zadd(
        name, dict(zip(value[::2], map(float, value[1::2]), strict=True))
    ),
}


def restore_rows(apps: Apps, rows: list[dict[str, Any]]) -> None:
    """Insert the rows with the models of that time, and let new rows have other ids."""
    for row in rows:
        model = apps.get_model(row["model"])
        fields = {name: model._meta.get_field(name) for name in row["fields"]}
        values = {fields[name].attname: value for name, value in row["fields"].items()}
        # Not save(): auto_now_add would replace the times.
        model.objects.bulk_create([model(pk=row["pk"], **values)])
        for name, field in fields.items():
            if getattr(field, "auto_now_add", False) or getattr(field, "auto_now", False):
                model.objects.filter(pk=row["pk"]).update(**{name: values[field.attname]})
    models = [apps.get_model(name) for name in {row["model"] for row in rows}]
    with connection.cursor() as cursor:
        for statement in connection.ops.sequence_reset_sql(no_style(), models):
            cursor.execute(statement)


def read_keys(redis: Redis) -> dict[str, tuple[str, Any, int]]:
    found: Any = redis.eval(READ_PAGE, 0, *sorted(redis.keys("*")))
    return {name: (kind, value, ttl) for name, ttl, kind, value in found}
