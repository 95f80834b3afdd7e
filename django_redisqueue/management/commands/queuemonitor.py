"""``manage.py queuemonitor``: queues, workers and events, live on the terminal."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from types import FrameType
from typing import IO, Any, cast

from django.core.management.base import CommandError

from ...conf import get_settings
from ...connection import worker_link
from ...exceptions import RedisQueueError
from ...monitor.loop import Monitor
from ...monitor.screen import HAS_RICH, ScreenView
from ...monitor.snapshot import Observer, as_json
from ...monitor.views import JsonView, LineView, View, once
from ...store.reads import PAGE, Reads
from ...targets import get_target
from .. import arguments
from ..base import PatientCommand

SHORTEST = 0.1  # s


def interval(text: str) -> float:
    """Seconds between two looks."""
    value = arguments.seconds(text)
    if value < SHORTEST:
        raise argparse.ArgumentTypeError(f"must be {SHORTEST:g} seconds or more, not {text!r}")
    return value


class Command(PatientCommand):
    help = "Shows the queues, the workers and what happens to jobs, live."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--queue", type=arguments.checked(arguments.queue_list), metavar="A,B",
            help="only these queues (default: all)",
        )  # fmt: skip
        parser.add_argument(
            "--interval", type=interval, default=1.0,
            help="seconds between two looks at busy queues (default: 1)",
        )  # fmt: skip
        parser.add_argument("--once", action="store_true", help="one plain table, then end")
        parser.add_argument(
            "--json", action="store_true",
            help="with --once one JSON document, else one a line for each event and look",
        )  # fmt: skip

    def handle(self, *args: Any, **options: Any) -> None:
        out = _for_any_text(cast(IO[str], self.stdout._out))
        try:
            queues = options["queue"] or tuple(get_settings().queues)
            reads = Reads(worker_link())
            observer = Observer(reads, queues, PAGE)
            if options["once"]:
                snapshot = observer.look()
                self.stdout.write(
                    json.dumps(as_json(snapshot)) if options["json"] else once(snapshot)
                )
                return
            view = JsonView(out) if options["json"] else self._view(out)
        except RedisQueueError as error:
            raise CommandError(str(error)) from error
        with _until_told_to_stop(), view.opened():
            Monitor(reads.keys, queues, observer, view, options["interval"]).run()

    def _view(self, out: IO[str]) -> View:
        if not out.isatty():
            return LineView(out)
        if not HAS_RICH:
            self.stdout.write(
                "Plain lines, for the library rich is not installed: "
                "pip install 'django-redisqueue[monitor]' has it. Ctrl-C ends."
            )
            return LineView(out)
        return ScreenView(out, get_target().address)


def _for_any_text(out: IO[str]) -> IO[str]:
    """A terminal that knows only some characters shows the others as escapes."""
    if isinstance(out, TextIOWrapper):
        out.reconfigure(errors="backslashreplace")
    return out


@contextmanager
def _until_told_to_stop() -> Iterator[None]:
    """Ctrl-C, SIGTERM and the end of a pipe's reader are the ways to end; a second signal does not
    disturb the clearing of the screen."""

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
