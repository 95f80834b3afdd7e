"""Enqueue so many jobs of a peer one at a time, and print how many a second."""

import sys
import time
from importlib import import_module

enqueue = import_module(sys.argv[1]).enqueue
jobs = int(sys.argv[2])
enqueue(-1, jobs)  # opens the connection
begun = time.perf_counter()
for number in range(jobs):
    enqueue(number, jobs - 1)
print(jobs / (time.perf_counter() - begun))
