"""Where a drain spends its time: samples of a child in this process, and Redis's own statistics.

The child runs in burst mode on a queue that was filled before. ITIMER_PROF samples its CPU time; a
sample counts for the innermost frame of this package or redis-py. Redis reports microseconds by
command; commands that a script calls are counted separately, and again as part of EVALSHA.
"""

from __future__ import annotations

import resource
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from tests.support.burst import work

from ..environment import Environment, Options
from ..processes import cpu_seconds
from ..report import Row
from .drain import fill

SHOWN = 14
LEAST = 0.4  # us below which a command in Redis is not shown


class Sampler:
    """Counts where CPU time is spent, in samples of a millisecond or the kernel's tick."""

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def __enter__(self) -> Sampler:
        signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _take(self, number: int, frame: FrameType | None) -> None:
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if {"django_redisqueue", "redis", "project"} & set(path.parts):
                self.found[f"{path.parent.name}/{path.stem}.{frame.f_code.co_qualname}"] += 1
                return
            frame = frame.f_back
        self.found["elsewhere"] += 1


def run(environment: Environment, options: Options) -> Iterator[Row]:
    jobs = options.jobs_or(100_000)
    environment.empty()
    fill(jobs)
    environment.redis.config_resetstat()
    before_redis, before = cpu_seconds(environment.server.pid), time.perf_counter()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    with Sampler() as sampler:
        work()
    wall = time.perf_counter() - before
    after = resource.getrusage(resource.RUSAGE_SELF)
    user, system = after.ru_utime - usage.ru_utime, after.ru_stime - usage.ru_stime
    redis = cpu_seconds(environment.server.pid) - before_redis
    each = 1e6 / jobs
    yield Row("wall time a job (sampling on)", wall * each, "us")
    yield Row("child: CPU, user", user * each, "us a job")
    yield Row("child: CPU, system", system * each, "us a job")
    yield Row("child: waits for Redis", (wall - user - system) * each, "us a job")
    yield Row("Redis: CPU, all", redis * each, "us a job")
    yield from redis_rows(environment, jobs)
    yield from python_rows(sampler, user + system, jobs)


def redis_rows(environment: Environment, jobs: int) -> Iterator[Row]:
    stats = environment.redis.info("commandstats")
    scripts = stats.pop("cmdstat_evalsha")
    yield Row("Redis: in EVALSHA", scripts["usec"] / jobs, "us a job")
    yield Row("jobs a call", jobs / scripts["calls"], "jobs")
    inner = {name: stat for name, stat in stats.items() if stat["usec"] / jobs > LEAST}
    for name, stat in sorted(inner.items(), key=lambda item: -item[1]["usec"]):
        calls = f"us a job ({stat['calls'] / jobs:.2f} calls)"
        yield Row(f"  of it {name.removeprefix('cmdstat_').upper()}", stat["usec"] / jobs, calls)
    used = sum(stat["usec"] for stat in stats.values())
    yield Row("  of it Lua itself", (scripts["usec"] - used) / jobs, "us a job")


def python_rows(sampler: Sampler, seconds: float, jobs: int) -> Iterator[Row]:
    total = sum(sampler.found.values())
    for place, samples in sampler.found.most_common(SHOWN):
        share = samples / total
        yield Row(f"child: {place}", share * seconds * 1e6 / jobs, f"us a job ({share:.0%})")
