"""Ids of workers, ``<name>.<machine>.<pid>.<start>``, and of their children, ``<worker>.<n>``.

Neither is ever reused.

``machine`` identifies the host name, boot and pid namespace: only within one machine do a pid and
its start time tell whether a process is alive. ``n`` counts the children of a supervisor. In the
ids of children that do not run jobs, their role precedes it, as in ``maintenance3``.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from uuid import uuid4

from ..conf import Settings
from ..core.ids import check_worker_name
from ..core.parsing import int_or_none


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker, identified by the process of its supervisor."""

    name: str
    machine: str
    pid: int
    start: int

    @property
    def id(self) -> str:
        return f"{self.name}.{self.machine}.{self.pid}.{self.start}"

    def child(self, n: int, role: str = "jobs") -> str:
        return f"{self.id}.{n if role == 'jobs' else f'{role}{n}'}"

    @property
    def is_gone(self) -> bool:
        """Whether its process is known to be dead: the same machine, but no such process."""
        if self.machine != machine():
            return False
        began = start_time(self.pid)
        return began != self.start and not (began == 0 and _is_hidden(self.pid))


def shard_label(name: str, shard: int, settings: Settings) -> str:
    """The name, for the log, of a part of a worker that serves one shard."""
    return f"{name} of shard {shard}" if settings.shards > 1 else name


def this_worker(name: str | None = None) -> Worker:
    """The identity of the calling process. Raises InvalidName."""
    pid = os.getpid()
    shown = check_worker_name(name) if name else f"{_plain(platform.node())}-{pid}"
    return Worker(shown, machine(), pid, start_time(pid))


def parse_child(child: str) -> Worker | None:
    """The worker of a child, or None for an id of any other form."""
    parts = child.split(".")
    if len(parts) != 5:
        return None
    pid, start = int_or_none(parts[2]), int_or_none(parts[3])
    if pid is None or start is None:
        return None
    return Worker(parts[0], parts[1], pid, start)


def name_and_number(child: str) -> tuple[str, str]:
    """What people know a child by: the name of its worker, and its number with its role. Of an id
    of another form, the whole id and its last part."""
    worker = parse_child(child)
    return worker.name if worker else child, child.rpartition(".")[2]


@cache
def machine() -> str:
    """Eight hex digits that identify the host name, boot and pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux, or a sandbox: nothing is known about other processes
        boot, namespace = uuid4().hex, ""
    text = f"{platform.node()} {boot} {namespace}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The command's name, in parentheses, may contain spaces; the start time is field 22.
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])


def _is_hidden(pid: int) -> bool:
    """True for a process that /proc hides from this user (hidepid): it may be alive."""
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)
    return False


def _plain(node: str) -> str:
    """A host name, reduced to the characters that a worker's name may have."""
    plain = re.sub(r"[^\w-]", "-", node.encode("ascii", "ignore").decode(), flags=re.ASCII)
    return plain.lstrip("-")[:40] or "worker"
