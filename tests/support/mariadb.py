"""A real MariaDB or MySQL for tests: its data in a folder of its own, on a unix socket and nothing
else.

`mariadb` in `tests/conftest.py` starts one a session, and `on_mariadb` puts the alias ``default``
on a fresh, migrated database. With ``REDISQUEUE_TEST_DATABASE=mariadb`` all tests of PostgreSQL run
there; those of its own statements and errors fail. With ``REDISQUEUE_TEST_DATABASE=mysql`` these
tests and those of MariaDB run on MySQL.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from contextlib import closing, suppress
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

from tests.settings import use_pymysql

from .commands import migrate
from .postgres import FILLED
from .program import Program
from .suite import shared

TEMPLATE = "migrated"
IS_MYSQL = os.environ.get("REDISQUEUE_TEST_DATABASE") == "mysql"
SERVER = "mysqld" if IS_MYSQL else "mariadbd"
# Nothing has to survive the test.
OPTIONS = [
    "--no-defaults", "--skip-networking", "--skip-log-bin", "--innodb-flush-log-at-trx-commit=0",
    "--innodb-flush-method=nosync", "--innodb-buffer-pool-size=64M",
]  # fmt: skip
if IS_MYSQL:  # without TLS, which PyMySQL would use even on a unix socket
    OPTIONS += ["--mysqlx=OFF", "--secure-file-priv=NULL", "--tls-version="]
else:
    OPTIONS += ["--innodb-log-file-size=8M"]


def missing() -> str:
    """What prevents tests from running on MariaDB or MySQL here, or ''."""
    if find_spec("MySQLdb") is None and find_spec("pymysql") is None:
        return "neither mysqlclient nor PyMySQL is installed (PyMySQL is in the extra 'dev')"
    if IS_MYSQL:
        return "" if _program(SERVER) else "no mysqld on PATH (install 'mysql-server-core')"
    if _program(SERVER) is None or _program("mariadb-install-db") is None:
        return "no mariadbd and mariadb-install-db on PATH (install 'mariadb-server')"
    return ""


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")


class MariaDBServer(Program):
    """A copy of the data directory prepared for this run of the suite; ``close`` deletes it with
    its folder."""

    def __init__(self) -> None:
        use_pymysql()
        super().__init__("drq-my-")
        self._data = self.folder / "data"
        self._who = ["--user=root"] if os.getuid() == 0 else []
        self._numbers = count(1)
        self._emptied: list[str] = []  # names of databases to reuse
        made = shared(SERVER, self._make_data) / "data"
        subprocess.run(["cp", "-a", made, self._data], check=True)
        self.start()

    def start(self) -> None:
        """Start it and wait until it accepts connections."""
        self.launch(
            str(_program(SERVER)), *OPTIONS, *self._who, f"--datadir={self._data}",
            f"--socket={self._socket}",
        )  # fmt: skip

    def answers(self) -> bool:
        try:
            return Path(self._socket).exists() and bool(self.execute("SELECT 1"))
        except ConnectionError:
            return False

    def execute(self, *statements: str, database: str = "mysql") -> list[tuple[Any, ...]]:
        """The rows of the last statement, run on its own connection, outside a transaction."""
        import MySQLdb

        try:
            link = MySQLdb.connect(
                unix_socket=self._socket, user="root", database=database, autocommit=True
            )
        except MySQLdb.OperationalError as error:
            raise ConnectionError(str(error)) from None
        with closing(link), closing(link.cursor()) as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    def new_database(self) -> dict[str, Any]:
        """An entry of DATABASES: a new, migrated database without rows."""
        if self._emptied:
            return self._entry(self._emptied.pop())
        name = f"test_{next(self._numbers)}"
        tables = self._tables(TEMPLATE)
        self._create(name)
        self.execute(
            *(f"CREATE TABLE {table} LIKE {TEMPLATE}.{table}" for table in tables),
            *(f"INSERT INTO {table} SELECT * FROM {TEMPLATE}.{table}" for table in FILLED),
            database=name,
        )
        return self._entry(name)

    def drop(self, entry: dict[str, Any]) -> None:
        """Take back what ``new_database`` returned, even if someone is still connected."""
        name = entry["NAME"]
        self.terminate(name)
        tables = [table for table in self._tables(name) if table not in FILLED]
        self.execute(*(f"DELETE FROM {table}" for table in tables), database=name)
        self._emptied.append(name)

    def terminate(self, database: str) -> int:
        """End every connection to a database, as an administrator or a failover does; returns their
        number."""
        import MySQLdb

        found = self.execute(
            f"SELECT id FROM information_schema.processlist WHERE db = '{database}'"
        )
        for (number,) in found:
            with suppress(MySQLdb.OperationalError):  # it has just ended by itself
                self.execute(f"KILL CONNECTION {number}")
        return len(found)

    def _tables(self, database: str) -> list[str]:
        return [
            name
            for (name,) in self.execute(
                f"SELECT table_name FROM information_schema.tables WHERE table_schema='{database}'"
            )
        ]

    def _create(self, name: str) -> None:
        # The default on many servers. Django recommends utf8mb4, but the migrations do not need it.
        self.execute(f"CREATE DATABASE {name} CHARACTER SET latin1")

    @property
    def _socket(self) -> str:
        return str(self.folder / "socket")

    def _entry(self, name: str) -> dict[str, Any]:
        return {
            "ENGINE": "django.db.backends.mysql",
            "NAME": name,
            "USER": "root",
            "HOST": self._socket,
            "TEST": {"NAME": name},
        }

    def _make_data(self, folder: Path) -> None:
        """The data directory with the migrated TEMPLATE, made once per run of the suite."""
        if IS_MYSQL:
            command = [str(_program(SERVER)), *OPTIONS, "--initialize-insecure"]
        else:
            command = [
                str(_program("mariadb-install-db")), "--no-defaults", "--skip-test-db",
                "--auth-root-authentication-method=normal", "--innodb-log-file-size=8M",
            ]  # fmt: skip
        command += [*self._who, f"--datadir={self._data}"]
        subprocess.run(command, cwd=self.folder, check=True, capture_output=True)
        self.start()
        self._create(TEMPLATE)
        migrate(REDISQUEUE_TEST_DATABASES=json.dumps({"default": self._entry(TEMPLATE)}))
        self.end(signal.SIGTERM)
        self._data.rename(folder / "data")
