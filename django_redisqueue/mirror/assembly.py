"""A bridge with all that belongs to it."""

from __future__ import annotations

from ..conf import Settings
from ..connection import worker_link
from ..link import Link
from ..store.events import PAGE
from ..store.transitions import Transitions
from .bridge import Bridge, Follower
from .housekeeping import Housekeeping
from .reconcile import Reconciler
from .signalling import KeepAlive, Signaller
from .source import Source
from .themes import JOBS, WORKFLOWS
from .trimming import Trimmer


def make_bridge(
    settings: Settings,
    *,
    link: Link | None = None,
    page: int = PAGE,
    keep_alive: KeepAlive = lambda seconds: None,
) -> Bridge:
    """The bridge of one shard. Its followers come in the order of their haste."""
    link = link or worker_link()
    followers: list[Follower] = []
    bridge = Bridge(
        settings, link=link, source=Source(link, settings), followers=followers, page=page
    )
    followers += [
        Trimmer(Transitions(link, settings)),
        Signaller(JOBS, keep_alive=keep_alive),
        Signaller(WORKFLOWS, keep_alive=keep_alive),
        Reconciler(link, settings),
        Housekeeping(settings),
    ]
    return bridge
