"""Dramatiq: one process with its eight threads, jobs acknowledged after they ran."""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from work import work

dramatiq.set_broker(RedisBroker(url=os.environ["PEER_URL"]))
job = dramatiq.actor(actor_name="work")(work)
enqueue = job.send
WORKER = ["dramatiq", "dramatiq_peer", "--processes", "1", "--threads", "8"]
