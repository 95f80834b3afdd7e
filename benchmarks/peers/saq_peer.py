"""SAQ: one process, coroutines 10 at a time, results for ten minutes; recovery: three tries."""

from redis.asyncio import Redis
from saq.queue.redis import RedisQueue
from work import CONCURRENCY, URL, program, work_async

PACKAGES = ("saq[redis,hiredis]", "typing_extensions")
queue = RedisQueue(Redis.from_url(URL))


async def work(context: object, *, kind: str, number: int) -> None:
    await work_async(kind, number)


settings = {"queue": queue, "functions": [work], "concurrency": CONCURRENCY or 10}


async def enqueue(kind: str, number: int) -> None:
    await queue.enqueue("work", kind=kind, number=number, retries=3 if kind == "long" else 1)


def worker(kind: str) -> list[str]:
    return [program("saq"), "saq_peer.settings", "--quiet"]
