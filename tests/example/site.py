"""``manage.py site`` as a process, and a visitor without JavaScript."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from tests.support.embedded import stop_server
from tests.worker.processes import eventually

MANAGE = Path(__file__).parents[2] / "example_project" / "manage.py"


def copy_tables(migrated: Path, folder: Path) -> None:
    """Copy the suite's migrated database, whose apps include the example's, to where the example
    keeps its own: creating its tables takes seconds of CPU."""
    shutil.copy(migrated / "default.sqlite3", folder / "db.sqlite3")


class Visitor:
    """A browser without JavaScript: keeps cookies, follows redirects, sends the form's token."""

    def __init__(self, site: str) -> None:
        self.site = site
        self.cookies = CookieJar()
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(self.cookies))
        self.url = ""

    def get(self, path: str) -> str:
        return self._read(urllib.request.Request(self.site + path))

    def post(self, path: str, **fields: str) -> str:
        page = self.get(path)
        found = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        assert found, page
        data = urllib.parse.urlencode({**fields, "csrfmiddlewaretoken": found[1]}).encode()
        return self._read(urllib.request.Request(self.site + path, data))

    def refused(self, path: str) -> tuple[int, str]:
        """The status and text of an error response."""
        with pytest.raises(urllib.error.HTTPError) as caught:
            self.get(path)
        with caught.value as answer:
            return answer.code, answer.read().decode()

    def _read(self, request: urllib.request.Request) -> str:
        with self._opener.open(request, timeout=20) as answer:
            self.url = answer.url
            text: str = answer.read().decode()
            return text


class Site:
    """``manage.py site``, whose output is in ``output``. ``migrated``: whether its database already
    has its tables, which it otherwise creates itself."""

    def __init__(self, folder: Path, *arguments: str, migrated: Path | None = None) -> None:
        self.folder = folder
        self.output = ""
        if migrated:
            copy_tables(migrated, folder)
        self.process = subprocess.Popen(
            [sys.executable, str(MANAGE), "site", "--processes", "1", "--users", "40", *arguments],
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "config.settings",
                "REDISQUEUE_URL": f"embedded://{folder}/redis",
                "EXAMPLE_DATABASE": str(folder / "db.sqlite3"),
                "EXAMPLE_MEDIA": str(folder / "media"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line

    def found(self, pattern: str) -> str:
        """The first group of a pattern, once it has been printed."""
        match = eventually(lambda: re.search(pattern, self.output), 120, why=lambda: self.output)
        return match[1]

    def wait_until_it_answers(self, url: str) -> None:
        """Wait until its front page works; an error on the page is raised at once."""

        def answers() -> bool:
            try:
                with urllib.request.urlopen(url, timeout=20) as answer:
                    return bool(answer.read())
            except urllib.error.HTTPError:
                raise
            except urllib.error.URLError:  # it is not listening yet
                return False

        eventually(answers, 20, why=lambda: self.output)

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(40)
        self._reader.join(10)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.stop(signal.SIGTERM)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()
        stop_server(self.folder / "redis")
