"""Who a child is: ``<name>.<machine>.<pid>.<start>.<n>``, unlike every other child that ever was.

``machine`` stands for host name, boot and pid namespace: within one of them, and only there, a pid
and its start time tell whether a process is still alive. ``n`` counts the children of a supervisor.
"""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..ids import check_worker_name
from ..parsing import whole


@dataclass(frozen=True, slots=True)
class Worker:
    """A supervisor: pid and start time are its own."""

    name: str
    machine: str
    pid: int
    start: int

    def child(self, n: int) -> str:
        """The id of its ``n``-th child."""
        return f"{self.name}.{self.machine}.{self.pid}.{self.start}.{n}"

    @property
    def is_gone(self) -> bool:
        """True when its process is known to be dead: same machine, and no such process."""
        if self.machine != machine():
            return False
        began = start_time(self.pid)
        return began != self.start and not (began == 0 and _is_hidden(self.pid))


def this_worker(name: str | None = None) -> Worker:
    """The identity of the calling process. Raises InvalidName."""
    pid = os.getpid()
    shown = check_worker_name(name) if name else f"{_plain(platform.node())}-{pid}"
    return Worker(shown, machine(), pid, start_time(pid))


def parse_child(child: str) -> Worker | None:
    """The worker a child belongs to, or None when the id has another form."""
    parts = child.split(".")
    if len(parts) != 5:
        return None
    pid, start = whole(parts[2]), whole(parts[3])
    if pid is None or start is None:
        return None
    return Worker(parts[0], parts[1], pid, start)


@cache
def machine() -> str:
    """Eight hex digits for host name, boot and pid namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux: no boot id, so nothing can be known of other processes
        boot, namespace = str(os.getpid()), ""
    text = f"{platform.node()} {boot} {namespace}"
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def start_time(pid: int) -> int:
    """When the process began, in clock ticks since boot; 0 when there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The command's name, in parentheses, may hold spaces; the start time is field 22.
    fields = stat.rpartition(")")[2].split()
    return 0 if fields[0] == "Z" else int(fields[19])


def _is_hidden(pid: int) -> bool:
    """True for a process that /proc does not show to this user (hidepid): it may well live."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except ProcessLookupError:
        pass
    return False


def _plain(node: str) -> str:
    """A host name in the characters of a worker's name."""
    plain = "".join(
        c if c.isalnum() or c in "_-" else "-" for c in node.encode("ascii", "ignore").decode()
    )
    return plain.lstrip("-")[:40] or "worker"
