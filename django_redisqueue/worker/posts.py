"""What a supervisor is told and what it knows of each seat."""

from __future__ import annotations

from dataclasses import dataclass

from .seat import Seat
from .zygote import Role


@dataclass(slots=True)
class Post:
    """A seat and who sits in it."""

    seat: Seat
    role: Role
    child: str = ""
    pid: int = 0
    born: float = 0.0
    watched_until: float = 0.0
    overdue: tuple[str, int, int] | None = None
    is_killed: bool = False  # by us, at shutdown or for its memory: its jobs are not to blame
    is_leaving: bool = False  # told to stop after its job
    respawn_at: float = 0.0
    early_deaths: int = 0
    is_over: bool = False  # nobody will sit here again


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisorOptions:
    """Seconds, bytes; ``max_memory`` 0 for no limit."""

    grace: float = 25.0
    max_memory: int = 0
    burst: bool = False


@dataclass(slots=True)
class Bells:
    """Pipes that wake the supervisor: the children's bell, and its own threads and signals."""

    bell: int
    bell_end: int
    own: int
    own_end: int
