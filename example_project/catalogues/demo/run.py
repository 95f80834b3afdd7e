"""The jobs of one demo, watched until all have finished, and the closing report on them."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence

from django.conf import settings

from django_redisqueue import Job

from ..coverage import Language, best_covered, by_language, least_covered, translations
from .display import Display

FINISHED = frozenset({"completed", "failed", "cancelled"})
LANGUAGES = 8  # rows of each table
TRACEBACKS = 3
HEADINGS = ("language", "catalogues", "translated", "fuzzy", "untranslated", "coverage")
SHELL = (
    "from catalogues.tasks import measure; "
    "print(measure.enqueue('conf/locale/de/LC_MESSAGES/django.po').wait(timeout=10))"
)


class Run:
    """Keeps track of which of its jobs had finished at the last ``refresh``. Jobs of earlier demos
    do not count."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.jobs = jobs
        self.pending = list(jobs)
        self.completed = 0
        self._started = self._ended = time.monotonic()

    @property
    def finished(self) -> int:
        return len(self.jobs) - len(self.pending)

    @property
    def seconds(self) -> float:
        """From the last refresh that found no job completed to the one that found the last."""
        return self._ended - self._started

    def refresh(self, most_unfinished: int) -> None:
        """Refresh pending jobs until ``most_unfinished`` of them turn out unfinished.

        Jobs finish roughly in the order of the queue, so the cost of a refresh depends on how many
        jobs have finished since the last one, not on how many are still waiting.
        """
        unfinished: list[Job] = []
        completed = 0
        rest = iter(self.pending)
        for job in rest:
            job.refresh()
            completed += job.status == "completed"
            if job.status not in FINISHED:
                unfinished.append(job)
                if len(unfinished) == most_unfinished:
                    break
        self.pending = [*unfinished, *rest]
        self._count(completed)

    def with_status(self, status: str) -> list[Job]:
        return [job for job in self.jobs if job.status == status]

    def retries(self) -> int:
        """How many attempts were repeated: all spent ones, except the last one of a failed job."""
        return sum(max(job.attempts - (job.status == "failed"), 0) for job in self.jobs)

    def stuck(self) -> str:
        """A description of what had not finished at the last refresh."""
        counts = Counter(str(job.status) for job in self.pending)
        listed = ", ".join(f"{number:,} {status}" for status, number in counts.most_common())
        first = ", ".join(job.id for job in self.pending[:3])
        return (
            f"{len(self.pending):,} of {len(self.jobs):,} jobs have not finished: {listed} "
            f"(the first of them: {first})"
        )

    def _count(self, completed: int) -> None:
        now = time.monotonic()
        self.completed += completed
        if completed:
            self._ended = now
        elif not self.completed:
            self._started = self._ended = now


def report(display: Display, run: Run, processes: int) -> None:
    """Show the coverage, how the queue performed, what failed, and what to try next."""
    show_coverage(display, run)
    show_work(display, run, processes)
    show_failures(display, run.with_status("failed"))
    show_next(display)


def show_coverage(display: Display, run: Run) -> None:
    languages = translations(by_language(job.result for job in run.with_status("completed")))
    for title, chosen in (
        ("The least covered languages", least_covered(languages, LANGUAGES)),
        ("The best covered languages", best_covered(languages, LANGUAGES)),
    ):
        display.say()
        display.table(title, HEADINGS, [_row(language) for language in chosen])
    complete = sum(language.share == 1 for language in languages)
    display.say()
    display.say(f"{len(languages)} languages besides the English source, {complete} complete.")


def show_work(display: Display, run: Run, processes: int) -> None:
    failed = len(run.with_status("failed"))
    display.say(
        f"{len(run.jobs):,} jobs: {run.completed:,} completed, {failed:,} failed, "
        f"{run.retries():,} retries."
    )
    rate = run.completed / max(run.seconds, 0.001)
    display.say(f"{rate:,.0f} jobs/s: {run.seconds:.2f} s with {processes} processes.")


def show_failures(display: Display, failed: list[Job]) -> None:
    for job in failed[:TRACEBACKS]:
        display.say()
        display.say(f"Failed after {job.attempts} attempts: {job.id}")
        if job.error:
            display.say(f"{job.error.type}: {job.error.message}")
            display.say(job.error.traceback.rstrip())
    if len(failed) > TRACEBACKS:
        display.say(f"... and {len(failed) - TRACEBACKS:,} more failed jobs")


def show_next(display: Display) -> None:
    manage = f"{_shown(sys.executable)} {_shown(sys.argv[0])}"
    display.say()
    display.say("What to try next")
    display.say(f"  A worker that keeps running, in another terminal:\n    {manage} runworker")
    display.say(f'  While it is running, a job from the shell:\n    {manage} shell -c "{SHELL}"')
    display.say(f"  Recover the jobs of workers that have died:\n    {manage} reapqueue --once")
    scheme, _, folder = settings.REDISQUEUE["CONNECTION"]["URL"].partition("://")
    if scheme == "embedded":
        pid_file = _shown(f"{folder}/redis.pid")
        display.say(
            "  The embedded Redis keeps running, with its jobs; to stop it:\n"
            f"    kill $(cat {pid_file})"
        )
    made = "MAKELEVEL" in os.environ
    compare = "make report" if made else f"{manage} comparereports"
    display.say(f"  A report from three queries, in turn and side by side:\n    {compare}")
    site = "make site" if made else f"{manage} site"
    display.say(f"  The site, its reports and its admin; it prints how to log in:\n    {site}")


def _row(language: Language) -> tuple[str, ...]:
    numbers = (language.catalogues, language.translated, language.fuzzy, language.untranslated)
    return (language.code, *(f"{number:,}" for number in numbers), f"{language.share:.1%}")


def _shown(path: str) -> str:
    """The path as a person would type it here: relative if it is below this folder."""
    relative = os.path.relpath(path)
    return shlex.quote(path if relative.startswith("..") else relative)
