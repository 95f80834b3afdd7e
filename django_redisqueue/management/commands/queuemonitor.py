"""``manage.py queuemonitor``: queues, workers and events, live on the terminal."""

from __future__ import annotations

import json
import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from types import FrameType
from typing import IO, Any, cast

from ...broker.connection import worker_connection
from ...broker.redis_url import redis_address
from ...conf import get_settings
from ...monitor.loop import Monitor
from ...monitor.screen import HAS_RICH, ScreenView
from ...monitor.snapshot import Observer, as_json
from ...monitor.views import JsonView, LineView, MonitorView, render_tables
from .. import base
from ..base import QueueCommand


class Command(QueueCommand):
    help = "Shows queues, workers and the events of jobs, live."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--queue", type=base.argument(base.queue_list), metavar="A,B",
            help="show only these queues (default: all)",
        )  # fmt: skip
        parser.add_argument(
            "--interval", type=base.interval, default=1.0,
            help="seconds between refreshes of busy queues (default: 1)",
        )  # fmt: skip
        parser.add_argument("--once", action="store_true", help="print one plain table, then exit")
        parser.add_argument(
            "--json", action="store_true",
            help="print JSON: one document with --once, otherwise one line per event and refresh",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        out = cast(IO[str], self.stdout._out)
        if isinstance(out, TextIOWrapper):  # show escapes for characters that a terminal lacks
            out.reconfigure(errors="backslashreplace")
        queues = options["queue"] or tuple(get_settings().queues)
        observer = Observer(worker_connection(), queues)
        if options["once"]:
            snapshot = observer.observe()
            self.stdout.write(
                json.dumps(as_json(snapshot)) if options["json"] else render_tables(snapshot)
            )
            return
        view = JsonView(out) if options["json"] else self._view(out, queues)
        with _until_interrupted(), view.opened():
            Monitor(observer, view, options["interval"]).run()

    def _view(self, out: IO[str], queues: Sequence[str]) -> MonitorView:
        if not out.isatty():
            return LineView(out)
        if not HAS_RICH:
            self.stdout.write(
                "The output is plain lines, because the library rich is not installed; "
                "pip install 'django-redisqueue[monitor]' adds it. Stop with Ctrl-C."
            )
            return LineView(out)
        return ScreenView(
            out, redis_address(), queues, sys.stdin if sys.stdin and sys.stdin.isatty() else None
        )


@contextmanager
def _until_interrupted() -> Iterator[None]:
    """End the block on Ctrl-C, SIGTERM or a broken pipe. Later signals are ignored, so that the
    terminal is restored undisturbed."""

    def stop(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the last flush goes there
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
