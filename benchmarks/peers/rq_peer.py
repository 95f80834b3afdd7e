"""RQ: SimpleWorker, which does not fork, and a pool of 8 for 10 ms; recovery: Worker, 3 retries."""

from redis import Redis
from rq import Queue, Retry
from work import URL, program, work

PACKAGES = ("rq", "hiredis")
queue = Queue(connection=Redis.from_url(URL))


def enqueue(kind: str, number: int) -> None:
    retry = Retry(max=3) if kind == "long" else None
    queue.enqueue(work, kind, number, result_ttl=0, retry=retry)


def worker(kind: str) -> list[str] | None:
    options = ["--url", URL, "--quiet"]
    if kind == "ten_ms":
        return [program("rq"), "worker-pool", *options, "-n", "8", "-w", "rq.SimpleWorker"]
    if kind == "long":
        return [program("rq"), "worker", *options]
    return None if kind == "async" else [program("rq"), "worker", *options, "-w", "rq.SimpleWorker"]
