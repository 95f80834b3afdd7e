"""The process of a producer: ``python -m tests.gauntlet.producer NUMBER SEED``, until SIGTERM."""

from __future__ import annotations

import signal
import sys

import django


def main() -> None:
    django.setup()
    from .feed import Feed

    feed = Feed(int(sys.argv[1]), int(sys.argv[2]))

    def stop(*_: object) -> None:
        feed.stopping = True

    signal.signal(signal.SIGTERM, stop)
    feed.run()


if __name__ == "__main__":
    main()
