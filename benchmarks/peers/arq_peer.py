"""arq: one process, coroutines 10 at a time, polls every 0.5 s, no results."""

from arq import create_pool
from arq.connections import ArqRedis, RedisSettings
from work import CONCURRENCY, URL, program, work_async

PACKAGES = ("arq", "hiredis")
LOGGING = {"version": 1, "loggers": {"arq": {"level": "ERROR"}}}  # no line a job
pools: list[ArqRedis] = []


async def work(context: object, kind: str, number: int) -> None:
    await work_async(kind, number)


class WorkerSettings:
    functions = [work]
    redis_settings = RedisSettings.from_dsn(URL)
    max_jobs = CONCURRENCY or 10
    keep_result = 0


async def enqueue(kind: str, number: int) -> None:
    if not pools:
        pools.append(await create_pool(WorkerSettings.redis_settings))
    await pools[0].enqueue_job("work", kind, number)


def worker(kind: str) -> list[str]:
    return [program("arq"), "arq_peer.WorkerSettings", "--custom-log-dict", "arq_peer.LOGGING"]
