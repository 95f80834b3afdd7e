"""``python -m tests.simulator``: any number of random histories."""

from __future__ import annotations

import argparse
import gc
import logging
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.util import Finalize
from pathlib import Path

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

from ..support.servers import RedisServer  # noqa: E402
from .history import LENGTH, SHARDS, parse  # noqa: E402
from .keyspace import SimulatedBroker  # noqa: E402
from .run import fail_of, simulate  # noqa: E402

CHUNK = 50  # histories given to a process at a time
brokers: list[SimulatedBroker] = []  # of this process


def main() -> int:
    options = _options()
    if options.replay:
        return _replay(options.replay)
    begun, done, failures = time.monotonic(), 0, 0
    firsts = range(options.seed, options.seed + options.histories, CHUNK)
    last = options.seed + options.histories
    with ProcessPoolExecutor(options.processes, initializer=_start_server) as pool:
        chunks = [(first, min(first + CHUNK, last), options.steps) for first in firsts]
        for (first, end, _), found in zip(chunks, pool.map(_simulate, chunks), strict=True):
            print("\n\n".join([*found, ""]), end="")
            done, failures = done + end - first, failures + len(found)
            rate = done / (time.monotonic() - begun) * 60
            print(f"{done} histories, {failures} failed, {rate:.0f} a minute", flush=True)
            if failures >= options.failures:
                pool.shutdown(cancel_futures=True)
                break
    return min(failures, 1)


def _start_server() -> None:
    """One server for all histories of this process, until the process ends."""
    logging.disable(logging.WARNING)  # schedules that were late
    server = RedisServer()
    Finalize(None, server.close, exitpriority=10)  # a pool's processes do not run atexit handlers
    brokers.extend(SimulatedBroker(server, shard) for shard in range(SHARDS))
    gc.freeze()  # imported objects stay


def _simulate(chunk: tuple[int, int, int]) -> list[str]:
    """The failures of these seeds, as text."""
    first, last, steps = chunk
    found = [simulate(brokers, seed, steps) for seed in range(first, last)]
    return [str(failure) for failure in found if failure is not None]


def _replay(path: str) -> int:
    text = sys.stdin.read() if path == "-" else Path(path).read_text()
    _start_server()
    error = fail_of(brokers, parse(text.splitlines()), print)
    print(f"{type(error).__name__}: {error}" if error else "No law is broken.")
    return bool(error)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.simulator", description=__doc__)
    parser.add_argument("--histories", type=int, default=10_000, help="how many (10000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first; each has its own (0)")
    parser.add_argument("--steps", type=int, default=LENGTH, help=f"of each history ({LENGTH})")
    parser.add_argument("--processes", type=int, help="how many at a time (one a core)")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many (1)")
    parser.add_argument("--replay", metavar="FILE", help="the steps that were printed; - is stdin")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
