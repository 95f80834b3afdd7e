"""Huey: Redis without acknowledgement, no results, threads."""

from huey import RedisHuey
from work import URL, program, work

PACKAGES = ("huey", "redis", "hiredis")
huey = RedisHuey("peer", url=URL, results=False)
enqueue = huey.task()(work)


def worker(kind: str) -> list[str] | None:
    if kind == "async":
        return None
    threads = 8 if kind == "ten_ms" else 1
    return [program("huey_consumer"), "huey_peer.huey", f"-w{threads}", "-kthread", "-q"]
