"""Where other layers plug in: protocols, filled by whoever implements them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .jobdata import NewJob


class Transport(Protocol):
    """Takes jobs on their way out of the application. The default sends them to Redis; the
    ``testing`` module keeps them."""

    def send(self, jobs: Sequence[NewJob]) -> None:
        """Accept all of ``jobs``, or raise; sending one again changes nothing."""


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
