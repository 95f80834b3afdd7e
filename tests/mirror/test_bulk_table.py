"""Values are read from the database as they were written, whatever they contain."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection

from django_redisqueue.mirror.bulk_table import NULL, BulkTable, copy_text, instant_adapter
from django_redisqueue.models import JobRecord

from .mirrored_shard import MirroredShard

NASTY = [
    "\t",
    "\n",
    "\r\n",
    "\\",
    "\\N",
    "\\.",
    NULL,
    f"a{NULL}",
    "",
    "é\u2028",
    '{"a":"\\n"}',
    "N",
]


def test_rows_without_special_characters_are_sent_unchanged() -> None:
    assert copy_text([["a", 1, None], ["", -2, "b c"]]) == f"a\t1\t{NULL}\n\t-2\tb c\n"


@pytest.mark.parametrize("value", NASTY)
def test_a_value_is_never_taken_for_a_separator(value: str) -> None:
    line = copy_text([[value, 1, None]])
    assert (line.count("\t"), line.count("\n"), line.count(NULL)) == (2, 1, 1)


@pytest.mark.parametrize("copies", [True, False], ids=["COPY", "JSON for psycopg2"])
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_records_are_read_as_they_were_written(
    shard: MirroredShard, copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not copies:  # the module has the same name as psycopg2's
        monkeypatch.setattr(connection.Database, "__name__", "psycopg2")
    now = datetime.now(UTC).replace(microsecond=0)
    table, instants = BulkTable(JobRecord, "default"), instant_adapter("default")
    defaults: dict[str, Any] = {
        field.name: field.get_default() for field in JobRecord._meta.concrete_fields
    }
    rows = [
        [*{**defaults, "id": f"j{at}", "task": "t", "queue": "q", "payload": value, "error": value,
           "enqueued_at": instants(round(now.timestamp() * 1000))}.values()]
        for at, value in enumerate(NASTY)
    ]  # fmt: skip
    table.insert(tuple(defaults), rows)
    found = JobRecord.objects.in_bulk()
    assert [found[f"j{at}"].payload for at in range(len(NASTY))] == NASTY
    assert [found[f"j{at}"].error for at in range(len(NASTY))] == NASTY
    assert {(record.due_at, record.enqueued_at) for record in found.values()} == {(None, now)}
    assert {record.pk for record in table.select(["j0", "j3", "x"])} == {"j0", "j3"}
    assert connection.vendor == "postgresql"
