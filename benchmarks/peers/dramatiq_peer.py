"""Dramatiq: one process with eight threads, 100 for async; acknowledges what has run."""

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import AsyncIO
from work import URL, program, work, work_async

PACKAGES = ("dramatiq[redis]", "hiredis")
broker = RedisBroker(url=URL)
broker.add_middleware(AsyncIO())
dramatiq.set_broker(broker)
job = dramatiq.actor(actor_name="work")(work)
async_job = dramatiq.actor(actor_name="work_async")(work_async)


def enqueue(kind: str, number: int) -> None:
    (async_job if kind == "async" else job).send(kind, number)


def worker(kind: str) -> list[str]:
    threads = 100 if kind == "async" else 8
    return [program("dramatiq"), "dramatiq_peer", "-p", "1", "-t", str(threads), "--skip-logging"]
