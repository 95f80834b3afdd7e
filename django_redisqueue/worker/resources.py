"""What the operating system says of processes, and lets them have."""

from __future__ import annotations

import os
import resource
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 when it cannot be read (gone, or not Linux)."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * resource.getpagesize()


def bury_strangers(own: int) -> None:
    """Reap what has died of other processes' children than ``own``, the only one of ours.

    For a worker that is the first process of a container: whatever loses its parent (a program of a
    job whose process was killed) becomes its child, and nobody else would take it off the table.
    """
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid == own:
            return
        os.waitpid(found.si_pid, 0)


def allow_files(needed: int) -> int:
    """Let this process, and those that it forks, have so many files open; what the limit was.
    Raises OSError or ValueError when the hard limit, or the system, is against it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    return soft


def most_files() -> int:
    """How many files this process could be allowed; -1 for no limit."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def limit_files(limit: int) -> None:
    """Have the limit be what it was before ``allow_files``."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most_files()))
