"""What the operating system says of a process."""

from __future__ import annotations

import resource
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 when it can not be read (gone, or not Linux)."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0
    return pages * resource.getpagesize()
