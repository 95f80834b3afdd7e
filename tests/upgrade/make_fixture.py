"""``python -m tests.upgrade.make_fixture`` recreates the data of the previous version.

It needs that version in git's history, and leaves a job in every state: of a worker that was
killed, of a bridge that was behind, and of a web process that could not reach Redis.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from tests.mirror.mirror_processes import sqlite_entry  # noqa: E402
from tests.support.servers import RedisServer  # noqa: E402
from tests.support.warm import ROOT  # noqa: E402
from tests.worker.processes import eventually  # noqa: E402

from .fixture import FILE, read_keys  # noqa: E402
from .site import Site, unpack_previous  # noqa: E402


def make() -> None:
    with (
        tempfile.TemporaryDirectory(prefix="drq-upgrade-") as folder,
        RedisServer() as server,
    ):
        root = Path(folder)
        (root / "package").mkdir()
        problem = unpack_previous(root / "package")
        if problem:
            sys.exit(problem)
        found = run_previous_version(root, root / "package", server)
    text = json.dumps(found, indent=0, ensure_ascii=False)
    FILE.write_text(text.replace(str(ROOT), "/srv/app") + "\n", encoding="utf-8")


def run_previous_version(folder: Path, package: Path, server: RedisServer) -> dict[str, Any]:
    """Replay what happened on the site of the previous version."""
    entry = sqlite_entry(folder / "default.sqlite3")
    site = Site(server.url, entry, folder, package)
    redis = server.client(decode_responses=True)
    site.python("-m", "django", "migrate", "--verbosity", "0")
    (folder / "hold").touch()
    worker = site.start(
        "runworker", "--name", "previous", "--processes", "4", "--queues", "default"
    )
    try:
        names = site.act("fill")

        def has_begun() -> bool:
            held = [folder / f"{name}.runs" for name in ("alone", "workflow", "gather")]
            statuses = {
                name: redis.hget(f"job_queue:{{0}}:job:{names[name]}", "status")
                for name in ("completed", "receipt", "failed", "retrying", "first")
            }
            return all(path.exists() for path in held) and (
                list(statuses.values())
                == ["completed", "completed", "failed", "retrying", "completed"]
            )

        eventually(has_begun, 30, why=lambda: worker.output)
        eventually(lambda: len(site.act("rows")) > 20, 30)  # the bridge is running
    finally:
        worker.end()
    names |= site.act("leave")
    names |= Site("unix:///nonexistent/redis.sock", entry, folder, package).act("strand")
    made_ms = time.time_ns() // 1_000_000
    return {
        "made_ms": made_ms,
        "names": names,
        "keys": read_keys(redis),
        "rows": site.act("rows"),
    }


if __name__ == "__main__":
    make()
