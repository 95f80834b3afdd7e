"""Forgets gathers that have files: first the files, then what names them, so that none is left."""

from __future__ import annotations

import logging

from ..conf import Settings
from ..largeresults import delete_result
from ..store.gathers import GatherReads
from ..store.transitions import Transitions

logger = logging.getLogger("django_redisqueue")

GATHERS_A_PASS = 20


class Sweeper:
    """One pass deletes the files of some gathers that are over. A pass that dies begins again."""

    def __init__(self, store: Transitions, settings: Settings) -> None:
        self._store = store
        self._reads = GatherReads(store.link, settings)

    def run_once(self) -> bool:
        """True when there may be more to do at once. Raises RedisQueueError."""
        keys = self._reads.closed(GATHERS_A_PASS)
        swept = [self._sweep(key) for key in keys]
        return all(swept) and len(keys) == GATHERS_A_PASS

    def _sweep(self, key: str) -> bool:
        gather_id, names = self._reads.files(key)
        try:
            for name in names:
                delete_result(name)
        except Exception as error:  # a storage may raise anything; the next pass tries again
            logger.error("the files of gather %r cannot be deleted yet: %r", key, error)
            return False
        self._store.discard(key, gather_id)
        return True
