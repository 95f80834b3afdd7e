"""Huey: Redis without acknowledgement, no results, one thread."""

import os

from huey import RedisHuey
from work import work

huey = RedisHuey("peer", url=os.environ["PEER_URL"], results=False)
job = huey.task()(work)
enqueue = job
WORKER = ["huey_consumer", "huey_peer.huey", "-w1", "-kthread", "-q"]
