"""taskiq: its stream broker, which acknowledges; one process, 100 at a time; no results."""

from taskiq_redis import RedisStreamBroker
from work import URL, program, work_async

PACKAGES = ("taskiq", "taskiq-redis", "hiredis")
broker = RedisStreamBroker(URL, consumer_id="0")  # from the first job, even one before the worker
job = broker.task(task_name="work")(work_async)


async def enqueue(kind: str, number: int) -> None:
    await job.kiq(kind, number)


def worker(kind: str) -> list[str]:
    concurrency = {"ten_ms": 8}.get(kind, 100)
    options = ["--workers", "1", "--max-async-tasks", str(concurrency), "--log-level", "ERROR"]
    return [program("taskiq"), "worker", "taskiq_peer:broker", *options]
