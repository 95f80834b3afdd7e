"""What the jobs of all peers do: nothing, but the first and the last note the time."""

from __future__ import annotations

import os
import time


def work(number: int, last: int) -> None:
    if number in (0, last):
        with open(os.environ["PEER_TIMES"], "a") as file:
            file.write(f"{time.time()}\n")
