"""RQ: its SimpleWorker, which runs jobs without a fork, and no results."""

import os

from redis import Redis
from rq import Queue
from work import work

queue = Queue(connection=Redis.from_url(os.environ["PEER_URL"]))


def enqueue(number: int, last: int) -> None:
    queue.enqueue(work, number, last, result_ttl=0)


WORKER = [
    "rq", "worker", "--url", os.environ["PEER_URL"], "--quiet", "-w", "rq.SimpleWorker", "default",
]  # fmt: skip
