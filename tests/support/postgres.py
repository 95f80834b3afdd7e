"""A real PostgreSQL for tests: a cluster in a folder of its own, on a unix socket and nothing else.

`postgres` in `tests/conftest.py` starts one a session. From there:

- `with as_database("default", server.new_database()): ...` puts an alias of this process on a
  fresh, migrated database (the fixture `on_postgres` does that for a whole test);
- `{"REDISQUEUE_TEST_DATABASES": json.dumps({"default": server.new_database()})}` in the environment
  of a process that the test starts does the same there.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from django.db import connection, connections
from django.db.models import Model
from django.test.utils import CaptureQueriesContext

from .commands import migrate
from .program import Program
from .suite import shared

USER = "postgres"  # of the database
TEMPLATE = "migrated"
# Nothing has to survive the test. `max_connections` is PostgreSQL's own default.
OPTIONS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "shared_buffers": "64MB",
    "max_connections": "100",
}


# Truncates every table that has rows, except those that ``migrate`` fills. Then reads these tables
# and the names in the catalogue, which show whether a test changed anything but rows.
FILLED = ("django_migrations", "django_content_type", "auth_permission")
EMPTY = f"""
DO $$
DECLARE
    name text;
    has_rows boolean;
    names text[] := '{{}}';
BEGIN
    FOR name IN SELECT tablename FROM pg_tables
        WHERE schemaname = 'public' AND tablename NOT IN {FILLED}
    LOOP
        EXECUTE format('SELECT EXISTS (SELECT FROM %I)', name) INTO has_rows;
        IF has_rows THEN names := names || quote_ident(name); END IF;
    END LOOP;
    IF names <> '{{}}' THEN
        EXECUTE 'TRUNCATE ' || array_to_string(names, ', ') || ' CASCADE';
    END IF;
    FOR name IN SELECT sequencename FROM pg_sequences
        WHERE schemaname = 'public' AND last_value IS NOT NULL
    LOOP
        IF name <> ALL (ARRAY[{", ".join(f"'{table}_id_seq'" for table in FILLED)}]) THEN
            EXECUTE format('ALTER SEQUENCE %I RESTART', name);
        END IF;
    END LOOP;
END $$;
SELECT md5(string_agg(name, ' ' ORDER BY name)) FROM (
    SELECT concat(relname, relkind) AS name FROM pg_class
        WHERE relnamespace = 'public'::regnamespace
    UNION ALL
    SELECT concat(relname, '.', attname, atttypid) FROM pg_attribute JOIN pg_class
        ON pg_class.oid = attrelid WHERE relnamespace = 'public'::regnamespace
    UNION ALL SELECT conname FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    UNION ALL SELECT tgname FROM pg_trigger WHERE NOT tgisinternal
    UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    UNION ALL SELECT array_to_string(setconfig, ' ') FROM pg_db_role_setting JOIN pg_database
        ON pg_database.oid = setdatabase WHERE datname = current_database()
    {"".join(f" UNION ALL SELECT md5({t}::text) FROM {t}" for t in FILLED)}
) AS names
"""


def find_programs() -> Path | None:
    """The folder that contains initdb and postgres, the newest if there are several."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next(
        (at for at in found if (at / "initdb").exists() and (at / "postgres").exists()), None
    )


def missing() -> str:
    """What prevents tests from running on PostgreSQL here, or ''."""
    if find_spec("psycopg") is None:
        return "psycopg is not installed (it is in the extra 'dev')"
    if find_programs() is None:
        return "no initdb and postgres on PATH or in /usr/lib/postgresql (install 'postgresql')"
    return ""


class PostgresServer(Program):
    """A copy of the cluster prepared for this run of the suite; ``close`` deletes it with its
    folder.

    ``options`` are those of ``postgresql.conf``, laid over OPTIONS.
    """

    def __init__(self, **options: str) -> None:
        self._options = {**OPTIONS, **options}
        programs = find_programs()
        assert programs is not None, missing()
        self._programs = programs
        super().__init__("drq-pg-")
        self._who = self._unprivileged()
        self._numbers = count(1)
        self._data = self.folder / "data"
        made = shared("postgres", self._make_cluster) / "data"
        subprocess.run(["cp", "-a", made, self._data], check=True)  # keeps its owner
        self._emptied: list[str] = []  # names of databases to reuse
        self.start()
        self._shape = self.execute(EMPTY, TEMPLATE)

    def _unprivileged(self) -> dict[str, Any]:
        """PostgreSQL refuses to run as root, so then it runs as another user, who gets the
        folder."""
        if os.getuid() != 0:
            return {}
        names = {entry.pw_name: entry for entry in pwd.getpwall()}
        entry = names.get("postgres") or names["nobody"]
        os.chown(self.folder, entry.pw_uid, entry.pw_gid)
        return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        options = [f"-c{name}={value}" for name, value in self._options.items()]
        self.launch(
            str(self._programs / "postgres"), "-D", str(self._data),
            f"-cunix_socket_directories={self.folder}", *options, **self._who,
        )  # fmt: skip

    def answers(self) -> bool:
        try:
            return bool(self.execute("SELECT 1"))
        except ConnectionError:
            return False

    def stop(self) -> None:
        """SIGQUIT: stops at once, like a crash. Committed data may be lost, because fsync is
        off."""
        self.end(signal.SIGQUIT)

    def close(self) -> None:
        self.stop()  # SIGKILL would leave its children and their shared memory
        super().close()

    def execute(self, sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """The rows of the (last) statement, run on its own connection, outside a transaction."""
        import psycopg

        try:
            link = psycopg.connect(
                host=str(self.folder), user=USER, dbname=database, autocommit=True
            )
        except psycopg.OperationalError as error:
            raise ConnectionError(str(error)) from None
        with link:
            cursor = link.execute(sql)  # type: ignore[call-overload]
            while cursor.nextset():  # the rows of the last statement
                continue
            return cursor.fetchall() if cursor.description else []

    def new_database(self) -> dict[str, Any]:
        """An entry of DATABASES: a new, migrated database without rows."""
        if self._emptied:
            return self._entry(self._emptied.pop())
        name = f"test_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        return self._entry(name)

    def drop(self, entry: dict[str, Any]) -> None:
        """Take back what ``new_database`` returned, even if someone is still connected. Creating a
        database takes many times longer than emptying one, so a later test reuses this one unless
        it was altered."""
        name = entry["NAME"]
        others = "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        end_others = f"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity {others}"
        if self.execute(f"{end_others}; {EMPTY}", name) == self._shape:
            self._emptied.append(name)
        else:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def terminate(self, database: str) -> int:
        """End every connection to a database, as an administrator or a failover does; returns their
        number."""
        return len(
            self.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                f"WHERE datname = '{database}' AND pid <> pg_backend_pid()"
            )
        )

    def _entry(self, name: str) -> dict[str, Any]:
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": name,
            "USER": USER,
            "HOST": str(self.folder),
            "TEST": {"NAME": name},
        }

    def _make_cluster(self, folder: Path) -> None:
        """A cluster with the migrated TEMPLATE, made once per run of the suite."""
        self._run(
            str(self._programs / "initdb"), "--pgdata", str(self._data), "--username", USER,
            "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync",
        )  # fmt: skip
        self.start()
        self.execute(f"CREATE DATABASE {TEMPLATE}")
        migrate(REDISQUEUE_TEST_DATABASES=json.dumps({"default": self._entry(TEMPLATE)}))
        self.end(signal.SIGINT)  # an orderly stop, with a checkpoint
        self._data.rename(folder / "data")

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False, **self._who
        )
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stdout}{done.stderr}")


@contextmanager
def as_database(alias: str, entry: dict[str, Any]) -> Iterator[str]:
    """Inside the block, ``alias`` (new or existing) is the database of ``entry``.

    For this thread and for threads that begin inside; their connections are theirs to close.
    """
    databases = connections.databases
    before = databases.get(alias)
    before_connection = connections[alias] if before is not None else None
    databases[alias] = entry
    connections.configure_settings(databases)  # fills in the defaults
    if before is not None:
        del connections[alias]
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]
        if before is None:
            del databases[alias]
        else:
            databases[alias] = before
            connections[alias] = before_connection


def multiply_by_sql(model: type[Model], count: int, **fields: str) -> None:
    """Copy the only row, with these expressions of SQL, in which ``n`` counts the copies."""
    names = [field.column for field in model._meta.concrete_fields]
    values = ", ".join(fields.get(name, f"r.{name}") for name in names)
    table = model._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")  # so that VACUUM sees the commit
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(names)}) "
            f"SELECT {values} FROM {table} r, generate_series(1, {count}) n"
        )
        cursor.execute(f"VACUUM ANALYZE {table}")


def rows_read_in_vain(act: Callable[[], object]) -> int:
    """How many rows PostgreSQL reads for what this asks, without returning them."""
    plans = []
    with CaptureQueriesContext(connection) as queries:
        act()
    for query in queries.captured_queries:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {query['sql']}")
            plans.append(cursor.fetchone()[0])
    return sum(map(int, re.findall(r'"Rows Removed by Filter": (\d+)', json.dumps(plans))))
