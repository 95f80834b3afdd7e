"""docs/tutorial.md, followed literally: its commands and files, in order, in a new folder."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from tests.docs.pages import Block, blocks
from tests.support.embedded import stop_server
from tests.support.imports import ROOT
from tests.support.servers import free_port
from tests.worker.processes import eventually

PAGE = ROOT / "docs" / "tutorial.md"
FILE = re.compile(r"# (\S+\.py)(: add at the end)?\n")
USER = {
    "DJANGO_SUPERUSER_USERNAME": "ada",
    "DJANGO_SUPERUSER_PASSWORD": "secret",
    "DJANGO_SUPERUSER_EMAIL": "ada@bakery.example",
}


class Reader:
    """Does what the page says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.said: list[str] = []
        self.environment = {**os.environ, **USER, "PYTHONPATH": str(ROOT)}
        self.environment.pop("DJANGO_SETTINGS_MODULE", None)
        self._background: dict[str, subprocess.Popen[bytes]] = {}

    def follow(self, block: Block) -> None:
        if block.language == "python":
            self._write(block)
        else:
            for line in block.text.splitlines():
                self._run(shlex.split(line))

    def _write(self, block: Block) -> None:
        found = FILE.match(block.text)
        assert found, f"{block}: its first line names no file"
        path = self.folder / found[1]
        before = path.read_text() if found[2] else ""
        path.write_text(f"{before}\n{block.text}")

    def _run(self, words: list[str]) -> None:
        if words[0] == "pip":
            return
        if words[0] == "cd":
            self.folder /= words[1]
            return
        program = [sys.executable] if words[0] == "python" else [sys.executable, "-m", "django"]
        words = [*program, *words[1:]]
        match words[2]:
            case "runworker" | "runserver":
                self._start(words)
                return
            case "createsuperuser":
                words.append("--noinput")
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        self.said.append(done.stdout + done.stderr)
        assert done.returncode == 0, self.said[-1]

    def _start(self, words: list[str]) -> None:
        """In another terminal; whatever ran there before is stopped with Ctrl-C."""
        name = words[2]
        if name == "runserver":
            words += ["--noreload", str(self.port)]
        self._stop(name)
        with (self.folder / f"{name}.log").open("wb") as log:
            self._background[name] = subprocess.Popen(
                words, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _stop(self, name: str) -> None:
        process = self._background.pop(name, None)
        if process is not None:
            process.terminate()
            process.wait(60)

    def close(self) -> None:
        for name in list(self._background):
            self._stop(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


@pytest.fixture
def reader() -> Iterator[Reader]:
    # Not tmp_path: the path of Redis's socket may have at most 104 bytes.
    folder = Path(tempfile.mkdtemp(prefix="drq-tutorial-", dir="/tmp"))
    made = Reader(folder)
    yield made
    made.close()
    stop_server(made.folder / "redis")
    shutil.rmtree(folder, ignore_errors=True)


def page_of(reader: Reader, *path: str) -> str:
    """A page of the admin, after logging in."""
    site = f"http://127.0.0.1:{reader.port}"
    jar = CookieJar()
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))

    def is_up() -> bool:
        try:
            browser.open(f"{site}/admin/login/", timeout=30).close()
        except OSError:
            return False
        return True

    eventually(is_up, 60, why=lambda: reader.log("runserver"))
    token = next(cookie.value for cookie in jar if cookie.name == "csrftoken")
    form = {"username": "ada", "password": "secret", "csrfmiddlewaretoken": token}
    data = urllib.parse.urlencode({**form, "next": "/admin/"}).encode()
    browser.open(f"{site}/admin/login/", data, timeout=30).close()
    with browser.open(f"{site}/admin/{'/'.join(path)}", timeout=30) as response:
        return str(response.read().decode())


@pytest.mark.slow
@pytest.mark.one_shard("the project has one")
def test_the_tutorial_works(reader: Reader) -> None:
    both = sorted([*blocks("console", PAGE), *blocks("python", PAGE)], key=lambda one: one.line)
    for block in both:
        reader.follow(block)
    assert "3 cakes" in "".join(reader.said)
    assert "OK" in reader.said[-1]
    assert "Queues and jobs" in page_of(reader)

    def failed() -> bool:
        return "outcome=failed" in reader.log("runworker")

    eventually(failed, 60, why=lambda: reader.log("runworker"))

    def records() -> bool:
        page = page_of(reader, "django_redisqueue", "jobrecord", "")
        return "shop.tasks.bake" in page and "shop.tasks.deliver" in page

    eventually(records, 60, every=0.5, why=lambda: reader.log("runworker"))
