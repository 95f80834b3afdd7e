"""Queues that stand still because a key of theirs is of a wrong type: said once in each process.

Whoever meets one goes on with its other queues. That something went wrong is for the log; what to
do about it is in docs/operations.md.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

logger = logging.getLogger("django_redisqueue")


class BrokenQueues:
    """Logs when a queue begins to stand still and when it goes on. ``who`` meets them."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._known: dict[str, str] = {}

    def note(self, found: Mapping[str, str]) -> None:
        """All that stand still now, each with what is wrong."""
        if not found and not self._known:
            return
        for queue, problem in found.items():
            if self._known.get(queue) != problem:
                logger.error("%s: queue %s stands still: %s", self._who, queue, problem)
        for queue in self._known.keys() - found.keys():
            logger.warning("%s: queue %s goes on, its keys are in order", self._who, queue)
        self._known = dict(found)
