"""Pauses of queues, shares and limits in memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from ..core.limits import decode_lane
from .hashes import JobHash

WHOLE = ""  # in place of a share or a limit key


class InMemoryPauses:
    """What is paused in a test, until it is resumed."""

    def __init__(self) -> None:
        self._paused: defaultdict[str, dict[str, str]] = defaultdict(dict)  # with who paused it

    def pause(self, queue: str, key: str, paused: bool, by: str) -> bool:
        """Pause or resume a queue, or one of its limit keys or ``s:<share>``. True when that
        changed anything."""
        found = self._paused[queue]
        if paused == (key in found):
            return False
        if paused:
            found[key] = by
        else:
            del found[key]
        return True

    def is_paused(self, queue: str) -> bool:
        return WHOLE in self._paused[queue]

    def pauses(self, queue: str) -> Mapping[str, str]:
        """Limit keys and shares, with who paused them."""
        return {key: by for key, by in self._paused[queue].items() if key != WHOLE}

    def hold(self, job: JobHash) -> bool:
        """Whether a job may not start because its queue, its share or a limit is paused."""
        found = self._paused[job["queue"]]
        if not found or WHOLE in found or "lane" not in job:
            return WHOLE in found
        lane = decode_lane(job["lane"])
        return not found.keys().isdisjoint({f"s:{lane.share}", *lane.limits})
