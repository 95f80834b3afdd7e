"""Where other layers plug in: protocols, filled by whoever implements them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .jobdata import JobData, NewJob


class Transport(Protocol):
    """Stands in for Redis towards an application: takes its jobs, and tells of them afterwards.
    The ``testing`` module keeps them in memory."""

    def send(self, jobs: Sequence[NewJob]) -> None:
        """Accept all of ``jobs``, or raise; sending one again changes nothing."""

    def job(self, job_id: str) -> JobData:
        """One job. Raises JobNotFound."""

    def cancel(self, ids: Sequence[str]) -> list[int]:
        """Codes of cancel.lua: 1 cancelled, 2 asked to stop, 0 finished already, -1 not known."""

    def requeue(self, ids: Sequence[str]) -> list[int]:
        """Codes of requeue.lua: 1 requeued, 0 neither failed nor cancelled, -1 not known."""


_transport: list[Transport] = []


def replace_transport(transport: Transport) -> None:
    """Use ``transport`` until ``restore_transport``; replacements nest."""
    _transport.append(transport)


def restore_transport() -> None:
    """Undo the last ``replace_transport``."""
    _transport.pop()


def replaced_transport() -> Transport | None:
    """The transport in use instead of Redis, if any."""
    return _transport[-1] if _transport else None
