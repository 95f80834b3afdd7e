"""What the bridge's process does now and then: old rows go, and those of the charts are joined."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from ..conf import Settings
from ..metrics import fold
from .retention import Retention, of_the_mirror
from .writer import Cursor

INTERVAL = 60.0  # s between two rounds with nothing to do
SHARE = 4  # times as long as a step took, others may write; then comes the next


class Housekeeping:
    """A follower of the bridge: one bounded step, if it is time."""

    def __init__(self, settings: Settings) -> None:
        self._retention = Retention(settings, of_the_mirror)
        self._more = False
        self._due = time.monotonic() + INTERVAL  # not what a start waits for

    def __call__(self, cursor: Cursor) -> bool:
        """A step when it is time; True while there is more."""
        begun = time.monotonic()
        if begun >= self._due:
            self._more = self._retention.run_once() or fold(datetime.now(UTC)) > 0
            ended = time.monotonic()
            self._due = ended + (SHARE * (ended - begun) if self._more else INTERVAL)
        return self._more
