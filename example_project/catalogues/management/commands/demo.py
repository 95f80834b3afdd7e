from __future__ import annotations

import time
from argparse import ArgumentParser
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from django_redisqueue import JobQueue
from django_redisqueue.exceptions import RedisQueueError

from ...demo.display import Display, choose_display
from ...demo.run import Run, report
from ...demo.worker import Worker, running_worker
from ...discovery import find_catalogues
from ...tasks import measure

NO_CATALOGUE = "conf/locale/tlh/LC_MESSAGES/django.po"  # Klingon: its job is retried, then fails
UNFINISHED = ("queued", "processing", "retrying")
POLL_SECONDS = 0.05
MOST_UNFINISHED = 16  # unfinished jobs after which a poll stops


class Command(BaseCommand):
    help = "Measures every translation catalogue of Django, one job each, with its own worker."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--processes", type=int, default=2, help="of the worker (2)")
        parser.add_argument("--plain", action="store_true", help="lines of plain text")
        parser.add_argument("--timeout", type=float, default=120, help="seconds for all jobs (120)")

    def handle(self, **options: Any) -> None:
        display = choose_display(self.stdout, plain=options["plain"])
        try:
            run = self.measure_all(display, options["processes"], options["timeout"])
        except RedisQueueError as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            message = "Interrupted. Jobs that are still in the queue wait for the next worker."
            raise CommandError(message, returncode=130) from None
        report(display, run, options["processes"])
        if run.completed != len(run.jobs) - 1:
            raise CommandError("More jobs failed than the one that is meant to.")

    def measure_all(self, display: Display, processes: int, timeout: float) -> Run:
        """Start a worker, enqueue every catalogue, and watch until all jobs have finished."""
        queue = JobQueue("default")
        queue.get_stats()  # the first call to Redis starts the embedded server
        call_command("migrate", verbosity=0, interactive=False)
        with running_worker(processes) as worker:
            display.say(f"Worker: pid {worker.process.pid}, {processes} processes")
            paths = [NO_CATALOGUE, *find_catalogues()]
            run = Run(measure.enqueue_many([(path,) for path in paths]))
            display.say(f"Enqueued: {len(run.jobs):,} jobs, one per catalogue")
            watch(run, queue, worker, display, timeout)
        return run


def watch(run: Run, queue: JobQueue, worker: Worker, display: Display, timeout: float) -> None:
    """Show the progress of ``run``. Raises CommandError if the worker dies or time is up."""
    deadline = time.monotonic() + timeout
    with display.bar(len(run.jobs)) as move:
        while True:
            problem = trouble(worker, deadline)  # first, so that the jobs below are as it left them
            run.refresh(most_unfinished=len(run.jobs) if problem else MOST_UNFINISHED)
            stats = queue.get_stats()
            move(run.finished, ", ".join(f"{stats[name]:,} {name}" for name in UNFINISHED))
            if not run.pending:
                return
            if problem:
                raise CommandError(f"{problem}. {run.stuck()}. It printed:\n{worker.output()}")
            time.sleep(POLL_SECONDS)


def trouble(worker: Worker, deadline: float) -> str:
    """Why there is no point in waiting; empty if there is."""
    if worker.has_died():
        return f"The worker ended unexpectedly, exit status {worker.process.returncode}"
    return "Time is up, and the worker is still running" if time.monotonic() > deadline else ""
