"""Celery: one process with the solo pool, no results, jobs acknowledged when they start."""

import os

from celery import Celery
from work import work

url = os.environ["PEER_URL"].replace("unix://", "redis+socket://")
app = Celery("celery_peer", broker=url)
app.conf.update(task_ignore_result=True, worker_prefetch_multiplier=4)
job = app.task(name="work")(work)
enqueue = job.delay
WORKER = ["celery", "-A", "celery_peer", "worker", "-P", "solo", "-l", "ERROR",
          "--without-gossip", "--without-mingle"]  # fmt: skip
