"""Command-line options that every benchmark accepts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """None means the benchmark's own number."""

    jobs: int | None = None
    rounds: int | None = None
    full: bool = False
    peers: tuple[str, ...] = ()
    write: bool = False

    def jobs_or(self, number: int) -> int:
        return self.jobs or number

    def rounds_or(self, number: int) -> int:
        return self.rounds or number
